"""Commands, files and programs of providers are calls through the guard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest

from toolcell.core import (
    CellLostError,
    GuardDeniedError,
    InvalidInputError,
    StoreUnavailableError,
)
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
    Budget,
)
from toolcell.guard.spi import ApprovalReply
from toolcell.providers.cells import guarded_session
from toolcell.providers.cells.guarded_session import GuardedSession, exit_code
from toolcell.providers.cells.thread_session import ThreadSession
from toolcell.sandbox import ExecutionResult, SandboxConfig, Usage
from toolcell.tools.spi import MemoryRecords

from ..conftest import SUBPROCESS
from ..support.polling import PATIENCE

Do = Callable[[GuardedSession], Awaitable[object]]
REFUSED: dict[str, Do] = {
    "exec": lambda guarded: guarded.exec(["rm", "kept"]),
    "spawn": lambda guarded: guarded.spawn(["rm", "kept"]),
    "run_python": lambda guarded: guarded.run_python("open('kept', 'w')"),
    "read_file": lambda guarded: guarded.read_file("secret/key"),
    "write_file": lambda guarded: guarded.write_file("kept", "changed"),
    "connect": lambda guarded: guarded.connect(8000),
}
POLICY = AgentPolicy(
    agent_id="sandbox",
    allow=[
        {"tools": ["exec"], "when": {"command": {"argv": [["cat", "kept"]]}}},
        {"tools": ["read_file"], "when": {"path": {"under": "open"}}},
    ],
    ask=[{"tools": ["exec"], "when": {"cwd": {"equals": "/"}}}],
    budgets=[Budget(unit="cpu_ms", limit=10**6, window="day")],
)


async def _narrow(request: ApprovalRequest) -> ApprovalReply:
    return Approve(approver="pat", arguments={**request.call.arguments, "cwd": ""})


@pytest.fixture(scope="module")
def thread() -> Iterator[ThreadSession]:
    guard = ActionGuard([POLICY], approvals=Approvals(handler=_narrow))
    config: SandboxConfig = SUBPROCESS.config()
    session = ThreadSession(config, guard=guard)
    session.call(session.guarded.session.write_file, "kept", "as it was")
    yield session
    session.close()
    assert not session.alive


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_call_does_nothing(thread: ThreadSession, what: str) -> None:
    with pytest.raises(GuardDeniedError):
        thread.call(REFUSED[what], thread.guarded)

    kept = thread.call(thread.guarded.session.read_file, "kept")
    assert kept == b"as it was"


def test_an_allowed_call_runs_from_one_loop_after_another(
    thread: ThreadSession,
) -> None:
    async def cat() -> str:
        result = await thread.acall(thread.guarded.exec, ["cat", "kept"])
        return result.stdout

    assert [asyncio.run(cat()), asyncio.run(cat())] == ["as it was"] * 2


def test_a_changed_call_runs_as_it_was_changed(thread: ThreadSession) -> None:
    result = thread.call(thread.guarded.exec, ["cat", "kept"], cwd="/")

    assert result.stdout == "as it was"


@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("40", 168)])
def test_a_signal_is_told_as_shells_tell_it(name: str, code: int) -> None:
    session = ThreadSession(SUBPROCESS.config())
    try:
        program = f"import os\nos.kill(os.getpid(), {code - 128})"
        result = session.call(session.guarded.run_python, program)
    finally:
        session.close()

    assert (result.signal, exit_code(result)) == (f"SIG{name}", code)


def test_a_closed_session_is_lost() -> None:
    config: SandboxConfig = SUBPROCESS.config()
    session = ThreadSession(config)
    guarded = session.guarded
    session.close()
    session.close()

    with pytest.raises(CellLostError):
        asyncio.run(guarded.exec(["true"]))


class Fetching:
    """A session whose commands bring so many bytes over the network."""

    running = False

    def __init__(self, network_bytes: int) -> None:
        usage = Usage(network_bytes=network_bytes)
        self._result = ExecutionResult(status="ok", usage=usage)

    async def exec(self, *_: object, **__: object) -> Fetching:
        return self

    async def wait(self) -> ExecutionResult:
        return self._result

    async def usage(self) -> None:
        raise CellLostError("nothing is measured here")


@pytest.mark.promise("R26")
def test_bytes_over_the_network_are_charged() -> None:
    policy = AgentPolicy(
        agent_id="sandbox",
        allow=["exec"],
        budgets=[Budget(unit="bytes", limit=10**6, window="day")],
    )
    guard = ActionGuard([policy])
    session: Any = Fetching(1_000)
    guarded = GuardedSession(session, guard=guard)

    async def used() -> list[int]:
        found = []
        for call in (guarded.exec, guarded.spawn, guarded.exec):
            await call(["curl"])
            [state] = await guard.limits("sandbox", "exec")
            found.append(int(state.used))
        return found

    # What was spawned has ended at once.
    assert asyncio.run(used()) == [1_000, 2_000, 3_000]


@pytest.mark.promise("R26")
def test_what_was_spawned_is_charged_to_the_next_call() -> None:
    policy = AgentPolicy(
        agent_id="sandbox",
        allow=["exec"],
        budgets=[Budget(unit="cpu_ms", limit=10**6, window="day")],
    )
    guard = ActionGuard([policy])
    config: SandboxConfig = SUBPROCESS.config()
    session = ThreadSession(config, guard=guard)

    async def used() -> int:
        [state] = await guard.limits("sandbox", "exec")
        return 10**6 - int(state.left)

    async def burn() -> tuple[int, int, float]:
        guarded = session.guarded
        code = "import time\nwhile time.process_time() < 1: pass"
        process = await guarded.spawn(["python3", "-c", code])
        at_start = await used()
        result = await process.wait()
        await guarded.exec(["true"])
        return at_start, await used(), result.usage.cpu_ms

    try:
        at_start, charged, measured = session.call(burn)
    finally:
        session.close()

    assert measured >= 900
    assert charged - at_start >= 0.95 * measured


@pytest.mark.promise("R26")
def test_a_command_that_is_cut_off_is_charged_what_it_used() -> None:
    policy = AgentPolicy(
        agent_id="sandbox",
        allow=["exec"],
        budgets=[Budget(unit="wall_ms", limit=10**9, window="day")],
    )
    guard, records = ActionGuard([policy]), MemoryRecords()
    config: SandboxConfig = SUBPROCESS.config()
    session = ThreadSession(config, guard=guard, records=records)

    async def cut_off() -> int:
        with anyio.move_on_after(1):
            await session.guarded.exec("sleep 600")
        [state] = await guard.limits("sandbox", "exec")
        return 10**9 - int(state.left)

    try:
        charged = session.call(cut_off)
    finally:
        session.close()

    [record] = records.query()
    assert 0 < charged < 600_000
    assert (record.status, record.usage["wall_ms"]) == ("cancelled", charged)


class Burning(Fetching):
    """One whose processes have used so much of the processor."""

    used_ms = 0

    async def usage(self) -> Usage:  # type: ignore[override]
        return Usage(cpu_ms=self.used_ms)

    async def wait(self) -> ExecutionResult:
        await anyio.sleep(0)
        return await super().wait()


@pytest.mark.promise("R26")
def test_what_a_store_did_not_take_is_charged_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budgets = [
        Budget(unit=unit, limit=10**6, window="day") for unit in ("cpu_ms", "bytes")
    ]
    policy = AgentPolicy(agent_id="sandbox", allow=["exec"], budgets=budgets)
    guard = ActionGuard([policy])
    burning: Any = Burning(1_000)
    guarded = GuardedSession(burning, guard=guard)

    async def unavailable(*_: object) -> bool:
        raise StoreUnavailableError("the store does not answer")

    async def used() -> list[int]:
        burning.running = True
        await guarded.spawn(["curl"])
        burning.running, burning.used_ms = False, 700
        with monkeypatch.context() as patch:
            patch.setattr(guard, "charge", unavailable)
            assert await guarded.charge()
        assert await guarded.charge()
        return [int(limit.used) for limit in await guard.limits("sandbox", "exec")]

    assert asyncio.run(used()) == [700, 1_000]


@pytest.mark.promise("R26")
def test_processes_that_end_are_charged_once() -> None:
    """Two calls may find them at once."""
    session: Any = Burning(0)
    guarded = GuardedSession(session)
    ended: Any = [Burning(100), Burning(1_000)]

    async def charged() -> int:
        guarded._spawned += ended
        costs = [{"bytes": 0}, {"bytes": 0}]
        await asyncio.gather(*map(guarded._add_background, costs))
        return sum(cost["bytes"] for cost in costs)

    assert asyncio.run(charged()) == 1_100


STORM = """
import os, time
for number in range(4):
    if os.fork() == 0:
        while time.process_time() < 0.5: pass
        with open(f"used-{number}", "w") as file: file.write(str(time.process_time()))
        os.rename(f"used-{number}", f"done-{number}")
        os._exit(0)
"""


def budgeted(limit: int) -> tuple[ActionGuard, ThreadSession]:
    budget = Budget(unit="cpu_ms", limit=limit, window="day")
    policy = AgentPolicy(agent_id="sandbox", allow=["exec"], budgets=[budget])
    guard = ActionGuard([policy])
    config: SandboxConfig = SUBPROCESS.config()
    return guard, ThreadSession(config, guard=guard)


async def used_ms(guard: ActionGuard) -> int:
    [state] = await guard.limits("sandbox", "exec")
    return int(state.used)


@pytest.mark.promise("R26")
def test_a_storm_that_a_command_left_is_charged_as_the_kernel_counts_it() -> None:
    guard, session = budgeted(10**6)

    async def oracle() -> float:
        """Return what the kernel says of each of the processes, when all have ended."""
        files = session.guarded.session
        while True:
            with suppress(InvalidInputError):
                done = [await files.read_file(f"done-{number}") for number in range(4)]
                return sum(map(float, done)) * 1_000
            await anyio.sleep(0.1)

    async def burn() -> tuple[int, float]:
        begun = await session.guarded.exec(["python3", "-c", STORM])
        with anyio.fail_after(PATIENCE):
            # No further call is made.
            while await used_ms(guard) < 0.95 * 2_000:
                await anyio.sleep(0.1)
            real = await oracle()
            while await used_ms(guard) < 0.95 * real:
                await anyio.sleep(0.1)
        return await used_ms(guard), real + begun.usage.cpu_ms

    try:
        charged, real = session.call(burn)
    finally:
        session.close()

    assert charged <= 1.05 * real + 50


@pytest.mark.promise("R26")
def test_what_runs_at_the_end_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_session, "LOOK_SECONDS", 3_600)
    guard, session = budgeted(10**6)

    async def burn() -> float:
        guarded = session.guarded
        await guarded.exec("while :; do :; done & sleep 0.1")
        with anyio.fail_after(PATIENCE):
            while (used := (await guarded.session.usage()).cpu_ms) < 500:
                await anyio.sleep(0.05)
        return used

    try:
        used = session.call(burn)
    finally:
        session.close()

    assert asyncio.run(used_ms(guard)) >= 0.95 * used


@pytest.mark.promise("R26")
def test_a_session_ends_with_the_budget_that_its_processes_use_up() -> None:
    _, session = budgeted(500)
    try:
        session.call(session.guarded.exec, "while :; do :; done & sleep 0.1")
        session._thread.join(PATIENCE)

        assert not session.alive
        with pytest.raises(CellLostError, match="a budget is used up"):
            session.call(session.guarded.exec, "true")
    finally:
        session.close()


@pytest.mark.promise("R26")
@pytest.mark.parametrize("is_async", [False, True])
def test_waits_under_way_are_lost_with_the_session(is_async: bool) -> None:
    _, session = budgeted(500)

    async def wait() -> None:
        await session.acall(anyio.sleep_forever)

    try:
        session.call(session.guarded.exec, "while :; do :; done & sleep 0.1")
        with pytest.raises(CellLostError, match="a budget is used up"):
            if is_async:
                asyncio.run(wait())
            else:
                session.call(anyio.sleep_forever)
    finally:
        session.close()


def test_a_session_that_is_ending_is_lost() -> None:
    session = ThreadSession(SUBPROCESS.config())
    release = threading.Event()

    async def hold() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(release.wait)

    try:
        session.start(hold)
        session.call(session._portal.stop)

        with pytest.raises(CellLostError, match="the session has ended"):
            session.call(anyio.sleep, 0)
    finally:
        release.set()
        session.close()


def test_a_wait_that_is_cancelled_is_not_lost(thread: ThreadSession) -> None:
    async def wait() -> bool:
        with anyio.move_on_after(0.01) as scope:
            await thread.acall(anyio.sleep_forever)
        return scope.cancelled_caught

    assert asyncio.run(wait())
    assert thread.alive
