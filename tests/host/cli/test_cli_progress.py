"""Progress of long work: a bar for people, lines for pipes, nothing with `--json`."""

from __future__ import annotations

import io
import sys

import pytest

from toolcell.host.terminal.progress import progress, rate_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, quiet: bool = False
) -> str:
    """Return what two steps of some work show."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("building x", quiet=quiet) as on_step:
        on_step(1, 2, "Step 1/2 \x1b[2J")
        on_step(2, 2, "[bold]done[/bold]")
        on_step(2, 2, "[link=https://example.com]x[/link]")
    return stream.getvalue()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch)

    assert "━" in text and "100%" in text
    assert "\x1b[2J" not in text
    # No link, which a terminal would follow: the words as they came.
    assert "\x1b]8" not in text and "[link=" in text


def test_a_pipe_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(io.StringIO(), monkeypatch).splitlines()

    assert lines == [
        "toolcell: Step 1/2 \\u{1b}[2J",
        "toolcell: [bold]done[/bold]",
        "toolcell: [link=https://example.com]x[/link]",
    ]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_machines_get_none(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(stream(), monkeypatch, quiet=True) == ""


@pytest.mark.promise("JB3")
@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_a_log_gets_a_line_for_each_hundredth(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stream()
    monkeypatch.setattr(sys, "stderr", log)
    with rate_bar(400, 100, as_json=False, lines=True) as show:
        for now in range(101, 401):
            show(now)
    lines = log.getvalue().splitlines()

    assert len(lines) == 75
    assert lines[0] == "toolcell: 104 of 400 have a result"
    assert lines[-1] == "toolcell: 400 of 400 have a result"
