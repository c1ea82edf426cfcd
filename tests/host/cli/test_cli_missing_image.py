"""A missing image is offered on a terminal, and only there."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import toolcell.sandbox.spi
from toolcell.core import SandboxUnavailableError
from toolcell.host.cli import commands

ERROR = SandboxUnavailableError(
    "the Docker engine has no image 'a:1'",
    hint="`docker pull a:1`",
    details={"reason": "image_missing", "image": "a:1"},
)


class Command:
    """A command that needs an image; `run` says how it ended, and what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pulled: list[str] = []
        self.here = False
        self._patch = monkeypatch
        monkeypatch.setattr(toolcell.sandbox.spi, "pull_image", self._pull)
        monkeypatch.setattr(commands, "make_app", lambda _: self._app)

    def _pull(self, image: str, **_: Any) -> str:
        if image != "a:1":
            raise SandboxUnavailableError("it was not pulled")
        self.pulled.append(image)
        self.here = True
        return image

    def _app(self, **_: Any) -> int:
        if not self.here:
            raise ERROR
        return 0

    def run(self, answer: str, *, terminal: bool = True, as_json: bool = False) -> int:
        answers = iter([answer])
        words = ["toolcell", "run", "a.py", *(["--json"] if as_json else [])]
        self._patch.setattr(sys, "argv", words)
        for stream in (sys.stdin, sys.stderr):
            self._patch.setattr(stream, "isatty", lambda: terminal, raising=False)
        self._patch.setattr("typer.confirm", lambda *_, **__: next(answers) == "y")
        with pytest.raises(SystemExit) as ended:
            commands.run_command()
        return int(ended.value.code or 0)


@pytest.mark.promise("JE4")
@pytest.mark.parametrize(
    ("answer", "options", "code", "pulled"),
    [
        ("y", {}, 0, ["a:1"]),
        ("n", {}, 4, []),
        ("y", {"terminal": False}, 4, []),
        ("y", {"as_json": True}, 4, []),
    ],
    ids=["yes", "no", "no terminal", "json"],
)
def test_a_missing_image_is_pulled_if_a_person_says_so(
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    options: dict[str, bool],
    code: int,
    pulled: list[str],
) -> None:
    command = Command(monkeypatch)

    assert command.run(answer, **options) == code
    assert command.pulled == pulled


def test_a_pull_that_fails_is_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch)
    monkeypatch.setitem(ERROR.details, "image", "other:1")

    assert command.run("y") == 4
    assert "it was not pulled" in capsys.readouterr().err
