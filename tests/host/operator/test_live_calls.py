"""Calls that run now: seen with their output, and ended by an operator."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import AuditError, InvalidInputError, ToolResult
from toolcell.guard.spi import audit_page
from toolcell.host import Host, HostConfig
from toolcell.host.operator import actions
from toolcell.host.operator.audit_anchors import HeadFile
from toolcell.host.operator.events import CallEvent, Event
from toolcell.host.operator.live_calls import LiveCall
from toolcell.tools import RunContext

pytestmark = pytest.mark.anyio
WAITS = """
import sys, time
print("begun", flush=True)
print("oops", file=sys.stderr, flush=True)
while True:
    time.sleep(0.05)
"""
CALLS = "tools.run_shell(command='echo inner; sleep 600')"


def config(folder: Path) -> HostConfig:
    path = folder / "toolcell.toml"
    path.write_text(
        """
[sandbox]
backend = "subprocess"
[sandbox.limits]
wall_seconds = 600
[tools]
builtin = ["code", "arithmetic"]
[state]
folder = "state"
[audit]
path = "audit.jsonl"
[[policies]]
agent_id = "a"
allow = ["run_python", "run_shell", "calculate"]
[[policies]]
agent_id = "b"
allow = ["run_python"]
"""
    )
    return HostConfig.from_file(path)


class Running:
    """A host, and calls that run in it."""

    def __init__(self, host: Host, tasks: Any) -> None:
        self.host = host
        self._tasks = tasks
        self.results: dict[str, ToolResult] = {}
        self.seen: list[Event] = []

    async def start(
        self, name: str, tool: str = "run_python", agent: str = "a", **arguments: Any
    ) -> LiveCall:
        """Begin a call; return it once it is seen to run."""
        self._tasks.start_soon(self._call, name, tool, agent, arguments)
        return await self.until(name)

    async def _call(self, name: str, tool: str, agent: str, arguments: Any) -> None:
        run = RunContext(run_id="r", session="s")
        self.results[name] = await self.host.call(
            tool, arguments, agent_id=agent, call_id=name, run=run
        )

    async def until(self, name: str, said: bytes = b"") -> LiveCall:
        """Wait until a call runs, and has printed something."""
        with anyio.fail_after(60):
            while True:
                for call in self.host.live_calls.all():
                    text = b"".join(data for _, data in call.output.read()[1])
                    if name in (call.id, call.tool) and said in text:
                        return call
                await anyio.sleep(0.01)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Running]:
    async with Host(config(folder)) as host, anyio.create_task_group() as tasks:
        running = Running(host, tasks)
        with host.event_bus.subscribed(running.seen.append):
            yield running
        tasks.cancel_scope.cancel()


def events(folder: Path) -> list[dict[str, Any]]:
    return [dict(each.record) for each in audit_page(folder / "audit.jsonl")]


async def test_a_call_is_seen_with_its_output_and_can_be_ended(tmp_path: Path) -> None:
    async with opened(tmp_path) as running:
        live = running.host.live_calls
        call = await running.start("one", code=WAITS)
        await running.start("other", agent="b", code="import time; time.sleep(600)")
        await running.until("one", b"oops")
        assert (call.agent_id, call.tool, call.parent_id) == ("a", "run_python", None)
        assert (call.session, call.run_id) == ("s", "r")
        assert call.deadline is not None
        assert call.deadline - call.since > 30
        assert call.arguments(running.host.redactor) == {"code": WAITS}
        assert sorted(call.output.read()[1]) == [
            ("stderr", b"oops\n"),
            ("stdout", b"begun\n"),
        ]
        assert [each.id for each in live.all()] == ["one", "other"]
        assert [each.id for each in live.all("b")] == ["other"]
        assert live.find(call.number) is call

        await actions.cancel_call(live, call, by="Ann", audit=running.host.audit)
        assert (call.status, call.cancelled_by) == ("cancelled", "Ann")
        assert [each.id for each in live.all()] == ["other"]
        with pytest.raises(InvalidInputError):
            live.find(call.number)
        with anyio.fail_after(60):
            while "one" not in running.results:
                await anyio.sleep(0.01)
        # A second act finds it ended, and waits for nothing.
        await live.cancel(call, by="Bob")
        assert call.cancelled_by == "Ann"

        result = running.results["one"]
        assert (result.status, result.error and result.error.kind) == (
            "cancelled",
            "tool.cancelled",
        )
        record = running.host.executor.records.get_record("one")
        assert record is not None
        assert record.status == "cancelled"
    told = {
        each.kind: each
        for each in running.seen
        if isinstance(each, CallEvent) and each.id == "one"
    }
    assert list(told) == ["call.started", "call.ended"]
    assert told["call.ended"].model_dump() == {
        "agent": "a",
        "id": "one",
        "tool": "run_python",
        "number": call.number,
        "parent": None,
        "status": "cancelled",
    }
    acted = [event for event in events(tmp_path) if event["event"] == "call_cancelled"]
    assert [(each["by"], each["call_id"], each["agent_id"]) for each in acted] == [
        ("Ann", "one", "a")
    ]
    last = next(event for event in events(tmp_path) if event.get("call_id") == "one")
    assert (last["event"], last["status"]) == ("outcome", "cancelled")


async def test_a_call_inside_a_program_is_ended_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as running:
        code = f"try:\n    {CALLS}\nexcept ToolError as error:\n    print(error.code)"
        outer = await running.start("outer", code=code)
        inner = await running.until("run_shell", b"inner")
        assert (inner.parent_id, inner.agent_id) == ("outer", "a")
        await running.host.live_calls.cancel(inner, by="Ann")
        with anyio.fail_after(60):
            await outer.ended.wait()
            while "outer" not in running.results:
                await anyio.sleep(0.01)

        content: Any = running.results["outer"].content
        assert content["stdout"] == "tool.cancelled\n", json.dumps(content)


async def test_sessions_are_seen_interrupted_and_closed(tmp_path: Path) -> None:
    async with opened(tmp_path) as running:
        host, audit = running.host, running.host.audit
        assert host.sessions is not None
        await running.start("one", code=WAITS)
        await running.until("one", b"begun")
        [session] = host.sessions.all()
        assert (session.agent_id, session.key, session.users) == ("a", "s", 1)
        assert session.opened <= session.used

        stop = partial(actions.stop_session, host.sessions, session, audit=audit)
        await stop("interrupt", by="Ann")
        with anyio.fail_after(60):
            while "one" not in running.results:
                await anyio.sleep(0.01)
        content: Any = running.results["one"].content
        assert (content["status"], content["variables"]) == ("cancelled", "new")

        await stop("close", by="Bob")
        assert host.sessions.all() == []
        for way in ("close", "interrupt"):
            with pytest.raises(InvalidInputError):
                await stop(way, by="Bob")
    done = [
        (event["event"], event["by"], event["agent_id"], event["session"])
        for event in events(tmp_path)
        if event["event"].startswith("session_")
    ]
    assert done == [
        ("session_closed", "Bob", "a", "s"),
        ("session_interrupted", "Ann", "a", "s"),
    ]


def lose_log(folder: Path) -> None:
    """Let nothing be recorded any more."""
    (folder / "audit.jsonl").unlink()
    (folder / "audit.jsonl").mkdir()


async def test_a_call_is_ended_though_it_cannot_be_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as running:
        live, audit = running.host.live_calls, running.host.audit
        call = await running.start("one", code=WAITS)
        lose_log(tmp_path)
        with anyio.fail_after(60), caplog.at_level(logging.ERROR, "toolcell.host"):
            assert not await actions.cancel_call(live, call, by="Ann", audit=audit)
        assert call.status == "cancelled"
        assert live.all() == []

    [told] = [message for message in caplog.messages if "call_cancelled" in message]
    assert "'by': 'Ann'" in told
    assert "'call_id': 'one'" in told


async def test_a_session_is_interrupted_and_closed_though_it_cannot_be_recorded(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as running:
        sessions, audit = running.host.sessions, running.host.audit
        assert sessions is not None
        await running.start("one", code=WAITS)
        await running.until("one", b"begun")
        lose_log(tmp_path)
        with anyio.fail_after(60):
            [session] = sessions.all()
            stop = partial(actions.stop_session, sessions, session, by="Ann")
            assert not await stop("interrupt", audit=audit)
            while "one" not in running.results:
                await anyio.sleep(0.01)
            assert not await stop("close", audit=audit)
        assert sessions.all() == []


async def test_other_acts_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as running:
        assert running.host.audit is not None
        lose_log(tmp_path)
        with HeadFile(tmp_path / "heads.db") as heads:
            with pytest.raises(AuditError):
                await actions.keep_head(running.host.audit, heads, by="Ann")
            assert heads.all() == []
