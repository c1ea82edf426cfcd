"""Each type of event is told, by a real cause; the table of types is closed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import anyio
import anyio.to_thread
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError, ToolCall
from toolcell.guard import (
    AgentPolicy,
    Approvals,
    ApprovalStore,
    Approve,
    CallFacts,
    Reject,
)
from toolcell.guard.spi import ApprovalRecord, Rule
from toolcell.host import Host, HostConfig
from toolcell.host.e2b.state.sandbox import Lifecycle, Sandbox
from toolcell.host.e2b.state.sandboxes import Sandboxes
from toolcell.host.http.tokens import open_tokens
from toolcell.host.operator.event_bus import watch_approvals
from toolcell.host.operator.events import EVENTS, ApprovalEnded, Event, SessionClosed
from toolcell.host.rest.openapi import openapi_document
from toolcell.host.rest.operations import StreamedEvent
from toolcell.host.runtime.policy_reload import PolicyReloader
from toolcell.tools import RunContext, tool

from ...support.cells.ended_launcher import linked_interpreter, without_launcher
from ...support.guard.redis_server import RedisServer
from ...support.paths import ROOT
from ...support.polling import until

pytestmark = pytest.mark.anyio
CONFIG = """
[sandbox]
backend = "subprocess"
python = "{python}"
programs_per_cell = 2
session_idle_seconds = {idle}
session_lifetime_seconds = {lifetime}
[tools]
builtin = ["code", "arithmetic"]
max_concurrency = 1
max_sessions = 1
timeout_seconds = 600
[state]
folder = "state"
{state}
[[policies]]
agent_id = "a"
allow = ["calculate", "hold", "run_python"]
ask = ["pay"]
budgets = [{{ unit = "calls", limit = 1000, per = "agent" }}]
[[policies]]
agent_id = "b"
allow = ["run_python"]
"""
SUM = {"expression": "6 * 7"}


@tool
async def pay(to: str) -> str:
    """Pay."""
    return to


@dataclass
class Listened:
    """A host, and the events that it told of."""

    host: Host
    path: Path
    tasks: Any
    redis: RedisServer | None
    python: Path
    """The interpreter of cells, a link."""

    seen: list[Event] = field(default_factory=list)
    held: anyio.Event = field(default_factory=anyio.Event)
    """Ends the calls of `hold`."""

    def call(self, name: str, agent: str = "a", **arguments: Any) -> Awaitable[Any]:
        run = RunContext(run_id="r", session="s")
        return self.host.call(name, arguments, agent_id=agent, run=run)

    def start(self, name: str, **arguments: Any) -> None:
        async def make() -> None:
            await self.call(name, **arguments)

        self.tasks.start_soon(make)

    async def until(self, kind: str) -> Any:
        """Return the first event of a type, once it is there."""
        with anyio.fail_after(60):
            while True:
                for event in self.seen:
                    if event.kind == kind:
                        return event
                await anyio.sleep(0.01)


@asynccontextmanager
async def listened(
    folder: Path, *, redis: bool = False, idle: float = 600, lifetime: float = 3600
) -> AsyncIterator[Listened]:
    path = folder / "toolcell.toml"
    with ExitStack() as stack:
        server, environ = None, {}
        if redis:
            server = RedisServer(folder)
            server.start()
            stack.callback(server.kill)
            environ = {"URL": server.url}
        state = 'redis_url = "env:URL"' if redis else ""
        link = linked_interpreter(folder)
        path.write_text(
            CONFIG.format(state=state, idle=idle, lifetime=lifetime, python=link)
        )
        async with (
            Host(HostConfig.from_file(path), environ=environ) as host,
            anyio.create_task_group() as tasks,
        ):
            made = Listened(host, path, tasks, server, link)

            @tool
            async def hold() -> None:
                """Wait."""
                await made.held.wait()

            host.registry.register_many([pay, hold])
            # Until the host is closed, whose end is told as well.
            stack.enter_context(host.event_bus.subscribed(made.seen.append))
            yield made
            tasks.cancel_scope.cancel()


async def one_call(made: Listened) -> None:
    await made.call("calculate", **SUM)


async def no_place(made: Listened) -> None:
    made.start("hold")
    await made.until("call.started")
    made.start("calculate", **SUM)


async def asked(made: Listened) -> str:
    watch = partial(watch_approvals, look_seconds=0.02)
    made.tasks.start_soon(watch, made.host.approvals, made.host.event_bus.publish)
    made.start("pay", to="x")
    with anyio.fail_after(60):
        while not (waiting := await made.host.approvals.pending()):
            await anyio.sleep(0.01)
    return waiting[0].id


async def approved(made: Listened) -> None:
    await made.host.approvals.answer(await asked(made), Approve(approver="ann"))


async def approved_by_one_of_two(made: Listened) -> None:
    rule = Rule(tools=["pay"], approvers=2)
    both = AgentPolicy(agent_id="a", ask=[rule])
    await anyio.to_thread.run_sync(made.host.guard.replace_policies, [both])
    request = await asked(made)
    await made.until("approval.asked")
    await made.host.approvals.answer(request, Approve(approver="ann"))


async def denied(made: Listened) -> None:
    request = await asked(made)
    await made.until("approval.asked")
    await made.host.approvals.answer(request, Reject(approver="ann"))


async def a_program(made: Listened) -> None:
    await made.call("run_python", code="1")


async def a_closed_session(made: Listened) -> None:
    await a_program(made)
    assert made.host.sessions is not None
    await made.host.sessions.aclose("a", "s")


@asynccontextmanager
async def a_sandbox(made: Listened) -> AsyncIterator[tuple[Sandboxes, Sandbox]]:
    config = made.host.config
    with open_tokens(config) as tokens:
        token = tokens.create("a")[0]
    async with Sandboxes(config, {}, made.host.event_bus) as sandboxes:
        sandbox = await sandboxes.create(
            token,
            template="base",
            lifecycle=Lifecycle(60),
            env={},
            metadata={},
            network=None,
        )
        yield sandboxes, sandbox


async def a_pause(made: Listened) -> None:
    async with a_sandbox(made) as (sandboxes, sandbox):
        await sandboxes.pause(sandbox)


async def a_resumption(made: Listened) -> None:
    async with a_sandbox(made) as (sandboxes, sandbox):
        await sandboxes.pause(sandbox)
        await sandboxes.resume(sandbox, 60)


async def a_lost_cell(made: Listened) -> None:
    await a_program(made)
    assert made.host.sessions is not None
    async with made.host.sessions.use("a", "s") as held:
        assert held.session is not None
        await held.session._shared.cell.kill()  # type: ignore[attr-defined]
        with pytest.raises(CellLostError):
            await held.session.run("1")


async def an_unclean_cell(made: Listened) -> None:
    assert made.host.sandbox is not None
    await made.host.sandbox.run("raise SystemExit(3)", agent_id="a")


async def no_cell(made: Listened) -> None:
    assert made.host.sandbox is not None
    with without_launcher(made.host.sandbox, made.python):
        for _ in range(3):
            with pytest.raises(SandboxUnavailableError):
                await made.host.sandbox.run("1")


async def a_cell_again(made: Listened) -> None:
    assert made.host.sandbox is not None
    await no_cell(made)
    await made.host.sandbox.run("1")


async def other_policies(made: Listened) -> None:
    fresh = AgentPolicy(agent_id="a", allow=["calculate"])
    replace = made.host.guard.replace_policies
    await anyio.to_thread.run_sync(replace, [fresh])


async def no_store(made: Listened) -> None:
    assert made.redis is not None
    made.redis.kill()
    result = await made.call("calculate", **SUM)
    assert result.status == "denied"


async def a_store_again(made: Listened) -> None:
    await no_store(made)
    assert made.redis is not None
    made.redis.start()
    with anyio.fail_after(60):
        while (await made.call("calculate", **SUM)).status == "denied":
            await anyio.sleep(0.05)


CAUSES: dict[str, Callable[[Listened], Awaitable[Any]]] = {
    "call.queued": no_place,
    "call.started": one_call,
    "call.parked": asked,
    "call.resumed": approved,
    "call.ended": one_call,
    "approval.asked": asked,
    "approval.voted": approved_by_one_of_two,
    "approval.ended": denied,
    "session.opened": a_program,
    "session.paused": a_pause,
    "session.resumed": a_resumption,
    "session.closed": a_closed_session,
    "cell.lost": a_lost_cell,
    "cell.discarded": an_unclean_cell,
    "cell.unavailable": no_cell,
    "cell.available": a_cell_again,
    "policy.changed": other_policies,
    "store.unavailable": no_store,
    "store.available": a_store_again,
}


def test_the_table_is_closed() -> None:
    assert set(EVENTS) == set(CAUSES)
    schemas = openapi_document("1")["components"]["schemas"]
    assert {event.__name__ for event in EVENTS.values()} <= set(schemas)
    described = schemas["StreamedEvent"]["discriminator"]["mapping"]
    assert set(described) == {"stream.opened", *EVENTS}
    assert all(event.__doc__ for event in EVENTS.values())
    told = (ROOT / "docs" / "rest.md").read_text()
    assert [event for event in EVENTS if f"`{event}`" not in told] == []


# Sandboxes of E2B's API have a home of their own, and so namespaces.
NAMESPACES = {a_pause, a_resumption}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.namespaces) if by in NAMESPACES else kind
        for kind, by in CAUSES.items()
    ],
)
async def test_each_type_is_told_by_its_cause(tmp_path: Path, kind: str) -> None:
    async with listened(tmp_path, redis=kind.startswith("store.")) as made:
        await CAUSES[kind](made)
        event = await made.until(kind)

    text = event.model_dump_json()
    message = {"id": "0-1", "event": kind, "data": text}
    streamed: Any = StreamedEvent.model_validate(message).root
    assert streamed.data == event
    # Ids and words alone.
    assert all(isinstance(each, str | int | None) for each in json.loads(text).values())
    assert "6 * 7" not in text


async def test_a_request_that_is_ended_is_told_as_ended(tmp_path: Path) -> None:
    async with listened(tmp_path) as made:
        request = await asked(made)
        await made.until("approval.asked")
        await made.host.approvals.end(request, reason="nobody needs it")
        event = await made.until("approval.ended")

    assert isinstance(event, ApprovalEnded) and event.status == "ended"


async def test_a_call_that_waits_is_told_step_by_step(tmp_path: Path) -> None:
    async with listened(tmp_path) as made:
        request = await asked(made)
        parked = await made.until("call.parked")
        # It has lent its place, and waits for it after the answer.
        made.start("hold")
        live = made.host.live_calls
        await until(lambda: [e.state for e in live.all()] == ["parked", "running"])
        await made.host.approvals.answer(request, Approve(approver="ann"))
        slots: Any = made.host.executor._slots
        await until(lambda: slots._waiting)
        still = live.all()[0].state
        made.held.set()
        await made.until("call.resumed")
        await until(lambda: not live.all())
        mine = [each.kind for each in made.seen if getattr(each, "id", 0) == parked.id]

    assert still == "parked"
    assert mine == ["call.started", "call.parked", "call.resumed", "call.ended"]


async def test_a_queued_call_is_seen_and_can_be_ended(tmp_path: Path) -> None:
    async with listened(tmp_path) as made:
        await no_place(made)
        queued = await made.until("call.queued")
        live = made.host.live_calls
        call = live.find(queued.number)
        assert (call.state, call.deadline, call.tool) == ("queued", None, "calculate")
        with anyio.fail_after(60):
            await live.cancel(call, by="ann")
        record = made.host.executor.records.get_record(call.id)
        assert [each.state for each in live.all()] == ["running"]

    assert record is not None
    assert (record.status, record.error_kind) == ("cancelled", "tool.cancelled")


async def test_a_parked_call_can_be_ended(tmp_path: Path) -> None:
    async with listened(tmp_path) as made:
        await asked(made)
        [call] = made.host.live_calls.all()
        with anyio.fail_after(60):
            await made.host.live_calls.cancel(call, by="ann")
        ended = await made.until("call.ended")
        # The place that it had lent is free.
        result = await made.call("calculate", **SUM)

    assert (ended.status, result.status) == ("cancelled", "ok")


async def closed(made: Listened) -> SessionClosed:
    event: SessionClosed = await made.until("session.closed")
    return event


async def test_sessions_tell_why_they_ended(tmp_path: Path) -> None:
    async with listened(tmp_path) as made:
        await made.call("run_python", agent="a", code="1")
        await made.call("run_python", agent="b", code="1")
        reclaimed = await closed(made)
        made.seen.clear()
        assert made.host.sessions is not None
        [session] = made.host.sessions.all()
        async with made.host.sessions.use("b", "s") as held:
            assert held is session
            assert held.session is not None
            await held.session._shared.cell.kill()  # type: ignore[attr-defined]
        lost = await closed(made)
        made.seen.clear()
        await made.call("run_python", agent="a", code="1")
        assert [each.kind for each in made.seen].count("session.closed") == 0
    at_end = await closed(made)

    assert (reclaimed.agent, reclaimed.session) == ("a", "s")
    assert (lost.agent, lost.session) == ("b", "s")
    ends = [each.reason for each in (reclaimed, lost, at_end)]
    assert ends == ["reclaimed", "lost", "shutdown"]


@pytest.mark.parametrize("reason", ["idle", "lifetime"])
async def test_a_session_tells_that_its_time_is_over(
    tmp_path: Path, reason: str
) -> None:
    idle, lifetime = (3, 3600) if reason == "idle" else (3, 3)
    async with listened(tmp_path, idle=idle, lifetime=lifetime) as made:
        await a_program(made)
        if reason == "lifetime":
            assert made.host.sessions is not None
            async with made.host.sessions.use("a", "s") as held:
                assert held.session is not None
                with anyio.fail_after(60):
                    while held.session.alive:
                        await anyio.sleep(0.02)
        event = await closed(made)

    assert event.reason == reason


async def test_an_event_of_another_thread_is_told_in_the_loop(tmp_path: Path) -> None:
    threads = []
    async with listened(tmp_path) as made:
        with made.host.event_bus.subscribed(lambda _: threads.append(get_ident())):
            await other_policies(made)

    assert threads == [get_ident()]


async def test_policies_of_a_changed_file_are_told(tmp_path: Path) -> None:
    async with listened(tmp_path) as made:
        config = made.host.config
        reloader = PolicyReloader(made.host.guard, config, made.path, look_seconds=0.02)
        made.tasks.start_soon(reloader.watch)
        text = made.path.read_text()
        made.path.write_text(text.replace('"calculate", "hold"', '"calculate"'))
        event = await made.until("policy.changed")

        assert event.version == made.host.guard.policy_version


@pytest.mark.promise("R51")
async def test_a_request_that_waits_is_read_once_and_not_at_each_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ApprovalStore()
    approvals = Approvals(store, answered_elsewhere=True)
    calls = [ToolCall(id=n, name="pay", agent_id="a") for n in ("1", "2", "3")]
    for place, call in enumerate(calls):
        await approvals.put(call, CallFacts(run_id=str(place)))
    looks, reads, waits, reported = [0], list[str](), store.waiting, list[Event]()

    def look(now: float, agent_id: str | None = None) -> dict[str, int]:
        looks[0] += 1
        return waits(now, agent_id)

    def read(request_id: str) -> ApprovalRecord | None:
        reads.append(request_id)
        return get(request_id)

    get = store.get
    monkeypatch.setattr(store, "waiting", look)
    monkeypatch.setattr(store, "get", read)
    monkeypatch.setattr(store, "pending", lambda now: pytest.fail("all is read"))
    async with anyio.create_task_group() as tasks:
        watch = partial(watch_approvals, look_seconds=0)
        tasks.start_soon(watch, approvals, reported.append)
        await until(lambda: looks[0] >= 10)
        tasks.cancel_scope.cancel()

    assert len(reads) == 3
    assert [each.model_dump()["id"] for each in reported] == reads
