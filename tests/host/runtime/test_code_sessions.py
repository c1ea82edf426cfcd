"""Programs in a host: they call its tools, and keep state within one session."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.host import Host, HostConfig
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import RunContext
from toolcell.tools.spi import CodeSessions, Progress

from ...support.code_desk import Desk, config, opened
from ...support.polling import until

pytestmark = pytest.mark.anyio


class Sink:
    """Keeps artifacts in memory."""

    def __init__(self) -> None:
        self.saved: list[tuple[str, bytes, str]] = []

    def save(self, name: str, data: bytes, media_type: str) -> str:
        self.saved.append((name, data, media_type))
        return f"kept:{len(self.saved)}"


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Host]:
    async with Host(HostConfig.model_validate(config()), environ={}) as host:
        yield host


@pytest.fixture
def desk(shared: Host) -> Desk:
    return Desk(shared)


@pytest.mark.promise("GR-18")
async def test_a_program_calls_the_tools_of_its_agent(desk: Desk) -> None:
    """GR-18: through guard and records, and the result tells what really ran."""
    code = """
total = tools.calculate(expression="6 * 7")
try:
    tools.run_python(code="1", nonsense=2)
except ToolError as error:
    print(error.code)
total
"""
    result = await desk.host.call(
        "run_python", {"code": code}, agent_id="a", call_id="outer"
    )
    records = desk.host.executor.records.query(parent_id="outer")

    assert isinstance(result.content, dict)
    assert result.content["value"] == 42
    assert result.content["stdout"] == "tool.validation\n"
    calls: Any = result.content["calls"]
    assert [(call["name"], call["status"]) for call in calls] == [
        ("calculate", "ok"),
        ("run_python", "error"),
    ]
    assert [(record.call_id, record.agent_id) for record in records] == [
        (call["id"], "a") for call in calls
    ]


async def test_a_program_has_no_more_rights_than_its_agent(desk: Desk) -> None:
    code = "tools.calculate(expression='1')"
    told = await desk("run_python", agent="b", code=code)

    assert told["status"] == "error"
    assert "calls" not in told


async def test_calls_of_programs_count_for_the_run(desk: Desk) -> None:
    code = """
def attempt():
    try:
        return tools.calculate(expression="1")
    except ToolError as error:
        return error.code
[attempt() for _ in range(3)]
"""
    run = RunContext(run_id="counted", session="s")
    result = await desk.host.call("run_python", {"code": code}, agent_id="c", run=run)

    assert isinstance(result.content, dict)
    assert result.content["value"] == [1, 1, "guard.denied"]


async def test_a_program_makes_as_many_calls_as_the_configuration_says(
    desk: Desk,
) -> None:
    code = """
made = 0
try:
    while True:
        tools.calculate(expression="1")
        made += 1
except ToolError as error:
    reason = error.code
[made, reason]
"""
    assert await desk.value(code, session="capped") == [5, "too_many"]


async def test_variables_and_files_stay_within_a_session(desk: Desk) -> None:
    new = partial(desk, session="new")
    first = await new("run_python", code="x = 41\nopen('f', 'w').write('data')")
    second = await new("run_python", code="x + 1")
    shell = await new("run_shell", command="cat f")
    read = await new("read_file", path="f")
    await new("write_file", path="g", text="from a file tool")
    found = await desk.value("open('g').read()", session="new")

    assert (first["variables"], second["variables"]) == ("new", "kept")
    assert second["value"] == 42
    assert shell["stdout"] == read["text"] == "data"
    assert found == "from a file tool"


@pytest.mark.promise("E-83")
async def test_sessions_are_never_shared(desk: Desk) -> None:
    look = "import os\n['x' in globals(), os.listdir()]"
    assert await desk.value("x = 1\nopen('secret', 'w').close()\n1") == 1

    for where in ({"agent": "b"}, {"session": "other"}, {"session": None}):
        own = ["main.py"] if where == {"session": None} else []
        assert await desk.value(look, **where) == [False, own], where
    listed = await desk("list_files", agent="b")
    assert listed == {"files": [], "more": False}
    assert await desk.value("x") == 1


async def test_without_a_session_nothing_stays(desk: Desk) -> None:
    await desk("run_python", session=None, code="y = 1")
    told = await desk("run_python", session=None, code="y")
    files = await desk("list_files", session=None)

    assert told["status"] == "error"
    assert "variables" not in told
    assert "of no session" in files


async def test_a_program_inside_a_program_does_not_wait_for_its_session(
    desk: Desk,
) -> None:
    code = """
z = 5
inner = tools.run_python(code="'z' in globals()")
try:
    tools.list_files()
except ToolError as error:
    files = str(error)
[inner["value"], files]
"""
    inner, files = await desk.value(code)

    assert inner is False
    assert "by itself" in files


async def test_a_lost_state_is_told_and_begun_anew(desk: Desk) -> None:
    await desk("run_python", session="fatal", code="x = 1")
    died = await desk(
        "run_python", session="fatal", code="import os\nos.kill(os.getpid(), 9)"
    )
    after = await desk("run_python", session="fatal", code="'x' in globals()")

    assert (died["status"], died["variables"]) == ("killed", "lost")
    assert after["value"] is False


@pytest.mark.promise("C1")
async def test_a_cancelled_program_ends_and_its_session_goes_on(desk: Desk) -> None:
    await desk("run_python", code="x = 7")
    started = anyio.Event()

    def heard(progress: Progress) -> None:
        started.set()

    code = "import time\nwhile True:\n    print('on', flush=True); time.sleep(0.05)"
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def go() -> None:
                run = RunContext(session="given up", on_progress=heard)
                await desk.host.call(
                    "run_python", {"code": code}, agent_id="a", run=run
                )

            tasks.start_soon(go)
            await started.wait()
            tasks.cancel_scope.cancel()
    again = await desk("run_python", session="given up", code="1")

    assert (again["value"], again["variables"]) == (1, "kept")


async def test_artifacts_are_handed_out_once(desk: Desk) -> None:
    sink = Sink()
    run = RunContext(session="pictures", artifacts=sink)
    make = "import os\nos.makedirs('artifacts')\nopen('artifacts/a.png', 'wb')"
    png = r".write(b'\x89PNG\r\n\x1a\n' + bytes(8))"
    told = []
    for code in (make + png, "1"):
        result = await desk.host.call(
            "run_python", {"code": code}, agent_id="a", run=run
        )
        assert isinstance(result.content, dict)
        told.append(result.content.get("artifacts"))

    facts = {
        "name": "a.png",
        "mime": "image/png",
        "bytes": 16,
        "sha256": hashlib.sha256(b"\x89PNG\r\n\x1a\n" + bytes(8)).hexdigest(),
        "reference": "kept:1",
    }
    assert told == [[facts], None]
    assert [(name, len(data), kind) for name, data, kind in sink.saved] == [
        ("a.png", 16, "image/png")
    ]


async def test_the_greediest_agent_loses_its_idle_session_first() -> None:
    async with opened(max_sessions=2) as desk:
        await desk("run_python", session="1", agent="b", code="x = 1")
        await desk("run_python", session="1", code="x = 1")
        # Two are open, which is all there may be; of equals the older one goes.
        await desk("run_python", session="2", code="x = 1")
        gone = await desk.value("'x' in globals()", session="1", agent="b")
        kept = await desk.value("x", session="2")
        sessions = desk.host.sessions
        assert sessions is not None
        assert len(sessions) == 2

    assert (gone, kept) == (False, 1)


async def test_a_session_that_is_at_work_is_never_taken_away() -> None:
    async with opened(max_sessions=2) as desk:
        sessions = desk.host.sessions
        assert sessions is not None
        async with sessions.use("a", "1"), sessions.use("b", "1"):
            with pytest.raises(SandboxUnavailableError) as caught:
                async with sessions.use("b", "2"):
                    pass
            refused = await desk("run_python", session="3", code="1")
        assert await desk.value("1", session="3") == 1

    assert refused.startswith("error: 2 sessions of code are in use")
    assert caught.value.details["reason"] == "sessions_full"
    assert caught.value.retryable


@pytest.mark.promise("A25")
async def test_an_agent_at_work_in_all_sessions_leaves_one_to_another() -> None:
    async with opened(max_sessions=2) as desk:
        sessions = desk.host.sessions
        assert sessions is not None
        ends = {key: anyio.Event() for key in ("1", "2")}

        async def greedy(key: str, *, task_status: TaskStatus[None]) -> None:
            async with sessions.use("a", key):
                task_status.started()
                await ends[key].wait()

        async def other(agent: str, told: list[Any]) -> None:
            told.append(await desk.value("x = 1\nx", agent=agent))
            told.append(await desk.value("x", agent=agent))

        told: list[Any] = []
        async with anyio.create_task_group() as tasks:
            for key in ends:
                await tasks.start(greedy, key)
            tasks.start_soon(other, "b", told)
            # Its oldest is asked back: who is at work there goes on, nobody new begins.
            while not isinstance(again := await desk("run_python", "1", code="1"), str):
                pass
            assert told == []
            ends["1"].set()
            await until(lambda: len(told) == 2)
            ends["2"].set()

    assert again.startswith("error: 2 sessions of code are in use")
    assert told == [1, 1]


@pytest.mark.promise("A25")
async def test_who_waits_for_a_session_waits_no_longer_than_a_program_may_run() -> None:
    async with opened(max_sessions=1, limits={"wall_seconds": 1}) as desk:
        sessions = desk.host.sessions
        assert sessions is not None
        async with sessions.use("a", "1") as asked_back:
            with pytest.raises(SandboxUnavailableError) as caught:
                async with sessions.use("b", "1"):
                    pass
        # The one that was asked back ends all the same.
        await asked_back.closed.wait()
        async with sessions.use("b", "1"):
            assert len(sessions) == 1

    assert caught.value.details["reason"] == "sessions_full"


async def test_idle_sessions_end_and_leave_their_cells() -> None:
    async with opened(session_idle_seconds=1) as desk:
        assert await desk.value("x = 1\n1") == 1
        sandbox, sessions = desk.host.sandbox, desk.host.sessions
        assert sandbox is not None
        assert sessions is not None
        with anyio.fail_after(60):
            while sandbox.active_cells or len(sessions):
                await anyio.sleep(0.02)
        told = await desk("run_python", code="'x' in globals()")

    assert (told["value"], told["variables"]) == (False, "lost")


async def test_a_session_is_closed_at_will_and_with_its_host() -> None:
    async with opened() as desk:
        await desk("run_python", code="x = 1")
        sessions, sandbox = desk.host.sessions, desk.host.sandbox
        assert sessions is not None
        assert sandbox is not None
        await sessions.aclose("a", "s")
        await sessions.aclose("a", "never opened")
        assert (len(sessions), sandbox.active_cells) == (0, 0)
        await desk("run_python", code="x = 1")

    assert (len(sessions), sandbox.active_cells) == (0, 0)


async def test_tools_that_come_along_are_named_one_by_one() -> None:
    chosen = ["read_file", "clock", "run_python", "calculate"]
    sandbox = {"backend": "subprocess"}
    wanted = {"sandbox": sandbox, "tools": {"builtin": chosen}}
    async with Host(HostConfig.model_validate(wanted), environ={}) as host:
        offered = host.registry.list_tools()

    names = ["calculate", "get_today_date", "read_file", "run_python"]
    assert sorted(offered) == names


async def test_an_error_inside_a_host_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with opened() as desk:
            await desk("run_python", code="x = 1")
            raise ZeroDivisionError


async def test_what_cannot_be_opened_is_an_error_of_the_call() -> None:
    never_opened = SandboxManager(SandboxConfig(backend="subprocess"))
    async with CodeSessions(never_opened) as sessions:
        for _ in range(2):
            with pytest.raises(SandboxUnavailableError, match="not open"):
                async with sessions.use("a", "s"):
                    pass
        assert len(sessions) == 0


def test_a_host_keeps_cells_for_more_than_sessions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="below the sandbox's max_concurrency"):
        CodeSessions(SandboxManager(SandboxConfig(max_concurrency=2)), max_sessions=2)
    path = tmp_path / "toolcell.toml"
    path.write_text(
        '[tools]\nbuiltin = ["code"]\nmax_sessions = 4\n'
        "[sandbox]\nmax_concurrency = 4\n"
    )
    with pytest.raises(ConfigError, match=r"max_sessions \(4\) has to be below"):
        HostConfig.from_file(path, environ={})
