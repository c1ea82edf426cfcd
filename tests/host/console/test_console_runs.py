"""Runs and sessions in the console: seen by viewers, ended by operators."""

from __future__ import annotations

import json
import re
import signal
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx2
import pytest

from toolcell.core import ToolResult
from toolcell.core.text.printable import COLOUR
from toolcell.guard.spi import audit_page
from toolcell.host.http import serving as http_serving
from toolcell.host.operator.live_calls import LiveCall

from ...support.cells.stopped_cell import signal_cell
from ...support.console.client import Client, signed_in
from ...support.console.served import Service, served
from ...support.corpora import naughty_strings

CODE = """
[sandbox]
backend = "subprocess"
[sandbox.limits]
wall_seconds = 600
[tools]
builtin = ["code", "arithmetic"]
timeout_seconds = 600
[[policies]]
agent_id = "coder"
allow = ["run_python", "calculate"]
"""
WAITS = (
    "print('begun <b>bold</b>', flush=True)\nimport time\nwhile True: time.sleep(0.02)"
)


def begun(
    service: Service, code: str, session: str | None = None
) -> tuple[LiveCall, Future[ToolResult]]:
    """Begin a program; return its call once it has printed something."""
    before = {each.number for each in service.host.live_calls.all()}
    future = service.call("run_python", "coder", session=session, code=code)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for live in service.host.live_calls.all():
            if live.number not in before and live.output.size:
                return live, future
        assert not future.done(), future.result()
        time.sleep(0.01)
    raise AssertionError("the program did not begin")


def measured(client: Client) -> str:
    """Return the page of sessions once all of them were measured in time."""
    end = time.monotonic() + 60
    while "not measured" in (page := client.page("/sessions")):
        assert time.monotonic() < end, page
    return page


def records(service: Service) -> list[Any]:
    return service.host.executor.records.page(limit=1_000)


def acts(service: Service) -> list[tuple[str, str]]:
    log = service.host.config.audit.path
    assert log is not None
    found = [each.record for each in audit_page(log, limit=1_000)]
    return [(each["event"], each["by"]) for each in found if "by" in each][::-1]


def test_a_run_is_followed_and_ended(
    service: Service, viewer: Client, operator: Client
) -> None:
    call, future = begun(service, WAITS)
    path = f"/runs/live/{call.number}"
    listed, shown = viewer.page("/runs"), viewer.page(path)
    assert "run_python" in listed
    assert "begun <b>bold</b>" in shown
    assert "print(" in shown
    assert viewer.acts == set()
    viewer.act(f"{path}/cancel", 403)
    assert not call.ended.is_set()

    lines = viewer.lines(f"{path}/stream?after=0")
    assert next(lines) == "event: line"
    assert json.loads(next(lines)[6:]) == [["", "begun <b>bold</b>\n"]]
    operator.page(path)
    assert operator.acts == {f"{path}/cancel"}
    answer = operator.act(f"{path}/cancel")
    assert answer.headers["location"] == "/runs"
    assert [line for line in lines if line][-2:] == ["event: end", 'data: "cancelled"']
    assert future.result(60).status == "cancelled"
    viewer.page(path, 404)
    operator.act(f"{path}/cancel", 404)
    assert acts(service)[-1] == ("call_cancelled", "operator")
    found = records(service)[0]
    page = viewer.page(f"/runs/{found.number}")
    assert "cancelled" in page
    assert "tool.cancelled" in page


def test_a_secret_with_colours_inside_is_hidden(
    service: Service, viewer: Client
) -> None:
    token = "ghp_" + "a1B2" * 9
    said = f"\x1b[31m{token[:9]}\x1b[32m{token[9:]}\x1b[0m \x1b[\x1b[1m31m"
    call, future = begun(service, WAITS.replace("begun <b>bold</b>", repr(said)[1:-1]))
    path = f"/runs/live/{call.number}"
    lines = viewer.lines(f"{path}/stream?after=0")
    assert next(lines) == "event: line"
    event = json.loads(next(lines)[6:])
    shown = viewer.page(path)
    service.portal.call(_cancel, service, call)
    future.result(60)
    assert [line for line in lines if line][-1] == 'data: "cancelled"'

    assert event == [
        ["ansi-1", "[redacted]"],
        ["", " \\u{1b}["],
        ["bold", "31m\n"],
    ]
    assert "[redacted] \\u{1b}[31m" in shown
    assert token not in shown


def without_colours(text: str) -> str:
    """Return a text without codes of colours, also where they are written out."""
    return COLOUR.sub("", re.sub(r"\\u\{1b\}|\\u001b", "\x1b", text))


@pytest.mark.promise("E-108")
def test_no_page_or_record_shows_a_secret_with_colours_inside(
    service: Service, viewer: Client
) -> None:
    """Attack: a page leaves the colours out, and so puts the parts together."""
    token = "ghp_" + "a1B2" * 9
    said = f"{token[:9]}\x1b[32m{token[9:]}"
    code = f"print({said[:14]!r} + {said[14:]!r}); {said[:14]!r} + {said[14:]!r}"
    assert service.call("run_python", "coder", code=code).result(60).ok
    assert service.call("note", text=said).result(60).ok
    log = service.host.config.audit.path
    assert log is not None
    found = records(service)[:2]
    shown = [log.read_text()]
    shown += [json.dumps([r.arguments, r.result], default=dict) for _, r in found]
    shown += [viewer.page(f"/runs/{number}") for number, _ in found]
    shown += [viewer.page(f"/runs/{number}/why") for number, _ in found]

    assert [token in without_colours(each) for each in shown] == [False] * 7


@pytest.mark.promise("R67")
def test_streams_of_who_is_removed_or_signed_out_end(service: Service) -> None:
    assert http_serving.LOOK_SECONDS <= 0.5
    call, future = begun(service, WAITS)
    paths = ("/events", f"/runs/live/{call.number}/stream?after=0")
    broken_off = (httpx2.NetworkError, httpx2.ProtocolError)
    with signed_in(service, "approver") as removed, signed_in(service, "admin") as out:
        open_streams = [each.lines(path) for each in (removed, out) for path in paths]
        assert all(next(lines) for lines in open_streams)
        with service.people.removing("approver"):
            pass
        [session] = [s for s in service.sessions.all() if s.person.id == "admin"]
        service.sessions.close(session.id)
        end = time.monotonic() + 30
        for lines in open_streams:
            with pytest.raises(broken_off):
                for _ in lines:
                    assert time.monotonic() < end
    service.portal.call(_cancel, service, call)
    assert future.result(60).status == "cancelled"


def test_a_run_is_ended_though_it_cannot_be_recorded(tmp_path: Path) -> None:
    with served(tmp_path, CODE) as made, signed_in(made, "operator") as client:
        call, future = begun(made, WAITS)
        # The log sees that its file is gone.
        (tmp_path / "audit.jsonl").unlink()
        answer = client.act(f"/runs/live/{call.number}/cancel", 200)
        assert "the audit log could not be written" in answer.text
        assert future.result(60).status == "cancelled"


def test_the_calls_of_a_program_are_a_tree(service: Service, viewer: Client) -> None:
    code = "tools.calculate(expression='6*7')\ntools.calculate(expression='1/0')"
    assert service.call("run_python", agent="coder", code=code).result(60).ok
    inner = [record for record in records(service) if record.record.parent_id]
    outer = next(record for record in records(service) if not record.record.parent_id)
    page = viewer.page(f"/runs/{outer.number}")

    assert len(inner) == 2
    assert page.split("Calls of its program")[1].count("calculate") == 2
    assert "in a program" in viewer.page("/runs")


def test_records_are_found_page_by_page(service: Service, viewer: Client) -> None:
    for number in range(120):
        # No policy: each is refused.
        service.call("note", agent="stranger", text=f"{number}").result(60)
    first = viewer.page("/runs?agent=stranger")
    last = records(service)[0].number
    second = viewer.page(f"/runs?agent=stranger&before={last - 49}")

    # The filter and its summary have the name once more.
    assert first.count("stranger") == second.count("stranger") == 52
    assert "Older" in first
    assert "No record fits" in viewer.page("/runs?tool=nothing")
    for path in ("/runs/0", "/runs/x", "/runs/99999999", "/runs?before=-1"):
        viewer.page(path, 404)


def test_a_refusal_is_told_without_frames(service: Service, viewer: Client) -> None:
    service.call("pay", to="thief").result(60)
    [refused] = service.host.executor.records.page(status="denied", limit=1)
    page = viewer.page(f"/runs/{refused.number}")

    assert "GuardDeniedError" not in page.split("Arguments")[0]
    assert "What the tool said" not in page
    assert page.index("The whole traceback") < page.index("Traceback")


def test_sessions_are_interrupted_and_closed(
    service: Service, viewer: Client, operator: Client
) -> None:
    name = "<script>s</script>"
    call, future = begun(service, WAITS, name)
    del call
    sessions = service.host.sessions
    assert sessions is not None
    [session] = sessions.all()
    path = f"/sessions/{session.number}"
    assert name in viewer.page("/sessions")
    assert "at work" in viewer.page("/sessions")
    viewer.act(f"{path}/interrupt", 403)
    viewer.act(f"{path}/close", 403)
    operator.act(f"{path}/interrupt")
    content: Any = future.result(60).content
    assert content["status"] == "cancelled"
    assert "MiB" in measured(viewer)
    operator.act(f"{path}/close")
    assert sessions.all() == []
    assert "No session of code is open" in viewer.page("/sessions")
    operator.act(f"{path}/close", 404)
    assert acts(service)[-2:] == [
        ("session_interrupted", "operator"),
        ("session_closed", "operator"),
    ]


def test_a_cell_that_does_not_answer_is_not_measured(
    service: Service, viewer: Client
) -> None:
    service.call("run_python", "coder", session="silent", code="1").result(60)
    assert "silent" in measured(viewer)
    sessions = service.host.sessions
    assert sessions is not None
    [held] = sessions.all()
    signal_cell(held.session, signal.SIGSTOP)
    shown = viewer.page("/sessions")
    signal_cell(held.session, signal.SIGCONT)
    service.portal.call(sessions.aclose, "coder", "silent")

    assert "not measured" in shown
    assert "silent" in shown


PRINTS = """
import sys, time
for each in {texts}:
    sys.stdout.buffer.write(each.encode("utf-8", "replace") + b"\\n")
sys.stdout.flush()
while True:
    time.sleep(0.02)
"""


def test_hostile_output_is_text_everywhere(service: Service, viewer: Client) -> None:
    hostile = [
        *naughty_strings(),
        "</script><script>alert(1)</script>",
        "\x1b[2J\u202e",
    ]
    call, future = begun(service, PRINTS.format(texts=repr(hostile)), "hostile")
    end = time.monotonic() + 60
    # The last text is printed after the first one was seen.
    while "\\u{1b}[2J\\u{202e}" not in (
        page := viewer.page(f"/runs/live/{call.number}")
    ):
        assert time.monotonic() < end, page
    assert "<script>alert(1)</script>" in page
    service.portal.call(_cancel, service, call)
    future.result(60)
    for text in hostile[::7]:
        service.call("note", text=text).result(60)
        found = records(service)[0]
        for path in (f"/runs/{found.number}", f"/runs/{found.number}/why"):
            viewer.page(path)


async def _cancel(service: Service, call: LiveCall) -> None:
    await service.host.live_calls.cancel(call, by="test")
