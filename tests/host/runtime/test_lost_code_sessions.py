"""The end of a session of code is said in its next result, and why it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.host import Host, HostConfig
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools.code.session_costs import SessionCosts
from toolcell.tools.spi import CodeSession

from ...support.code_desk import Desk, config, opened
from ...support.polling import until

pytestmark = pytest.mark.anyio


@pytest.mark.promise("JA10", "P-07")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_sessions": 1}, "only 1 are open at once (tools.max_sessions)"),
        (
            {"session_idle_seconds": 0.2},
            "not used for 0.2 seconds (sandbox.session_idle_seconds)",
        ),
        (
            {"session_lifetime_seconds": 3},
            "open for 3 seconds (sandbox.session_lifetime_seconds)",
        ),
        ({}, "the cell was ended"),
    ],
)
async def test_the_next_result_says_once_why_a_session_ended(
    options: dict[str, Any], why: str
) -> None:
    async with opened(**options) as desk:
        sessions = desk.host.sessions
        assert sessions is not None
        first = await desk("run_python", code="x = 1")
        [held] = sessions.all()
        if "max_sessions" in options:
            await desk("run_python", session="other", agent="b", code="1")
        elif not options:
            await held.session._shared.cell.kill()  # type: ignore[union-attr]
        session = held.session
        assert session is not None
        await until(lambda: held.over.is_set() or not session.alive)
        with pytest.MonkeyPatch.context() as patch:
            never_opened = SandboxManager(SandboxConfig(backend="subprocess"))
            patch.setattr(desk.host.sandbox, "session", never_opened.session)
            assert "not open" in await desk("run_python", code="1")
        lost = await desk("run_python", code="'x' in globals()")
        if "session_idle_seconds" not in options:
            again = await desk("run_shell", command="true")
            assert "lost" not in again

    assert (first["variables"], "lost" in first) == ("new", False)
    assert (lost["value"], lost["variables"]) == (False, "lost")
    assert lost["lost"].startswith("variables and files of this session are lost: ")
    assert lost["lost"].endswith(f"{why}; upload files and set variables again")


async def test_a_session_that_its_run_ended_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def collect(*_: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr("toolcell.sandbox.client.run_report.RunReport.collect", collect)
    leaves = "import os; os.makedirs('artifacts'); open('artifacts/a', 'w').close()"
    async with opened() as desk:
        await desk("run_python", code=leaves)
        lost = await desk("run_python", code="1")

    why = "the session ended: the artifacts of a run could not be collected"
    assert f"files of this session are lost: {why}" in lost["lost"]


async def test_a_loss_is_said_after_a_session_that_could_not_begin() -> None:
    async with opened() as desk:
        assert desk.host.sessions is not None
        desk.host.sessions._ends.note_end(("a", "s"), "a reason")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SessionCosts, "begin", _refuse)
            assert "no answer" in await desk("run_python", code="1")
        lost = await desk("run_python", code="1")

    assert "are lost: a reason;" in lost["lost"]


async def test_the_end_of_a_session_that_is_only_beginning_is_said() -> None:
    begun, may_go_on = anyio.Event(), anyio.Event()
    found: list[Any] = []

    async def begin(costs: SessionCosts, held: CodeSession) -> None:
        if not begun.is_set():
            begun.set()
            await may_go_on.wait()

    async def run(desk: Desk, agent: str) -> None:
        found.append(await desk("run_python", agent=agent, code="1"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionCosts, "begin", begin)
        async with opened(max_sessions=1) as desk, anyio.create_task_group() as tasks:
            sessions = desk.host.sessions
            assert sessions is not None
            tasks.start_soon(run, desk, "a")
            await begun.wait()
            [held] = sessions.all()
            tasks.start_soon(run, desk, "b")
            await until(lambda: held.closing)
            may_go_on.set()
            await until(lambda: len(found) == 2)
            lost = await desk("run_python", code="1")

    assert ["lost" in each for each in found] == [False, False]
    assert "its place went to another" in lost["lost"]


async def test_a_loss_whose_cause_cannot_be_asked_for_is_said_all_the_same() -> None:
    async with opened() as desk:
        await desk("run_python", code="1")
        assert desk.host.sessions is not None
        [held] = desk.host.sessions.all()
        session = held.session
        assert session is not None
        await session._shared.cell.kill()  # type: ignore[attr-defined]
        await until(lambda: not session.alive)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "usage", _refuse)
            lost = await desk("run_python", code="1")

    assert "its cell was lost" in lost["lost"]


async def _refuse(*_: object) -> None:
    raise SandboxUnavailableError("no answer", hint="try again")


@pytest.mark.parametrize(("name", "path"), [("read_file", "a"), ("list_files", ".")])
async def test_a_tool_of_files_says_once_why_they_are_gone(
    name: str, path: str
) -> None:
    async with opened(max_sessions=1) as desk:
        await desk("write_file", path="a", text="x")
        await desk("run_shell", session="other", command="true")
        said = [str(await desk(name, path=path)) for _ in "ab"]

    assert ["its place went to another" in each for each in said] == [True, False]


async def test_a_session_that_its_client_closed_is_not_lost() -> None:
    async with opened() as desk:
        await desk("run_python", code="x = 1")
        assert desk.host.sessions is not None
        assert await desk.host.sessions.aclose("a", "s")
        new = await desk("run_python", code="1")

    assert (new["variables"], "lost" in new) == ("new", False)


@pytest.mark.promise("JA10", "P-07")
async def test_a_restart_is_said_once(tmp_path: Path) -> None:
    """Where the host has a state folder; and so is an end that nobody heard of."""
    found: dict[str, list[Any]] = {"open": [], "closed": [], "taken": []}
    options = {**config(max_sessions=2), "state": {"folder": str(tmp_path / "state")}}
    for _ in range(2):
        made = HostConfig.model_validate(options)
        async with Host(made, environ={}) as host:
            desk = Desk(host)
            for key in ("taken", "closed", "open"):
                found[key].append(await desk("run_python", key, code="x = 1"))
                if key == "closed":
                    assert host.sessions is not None
                    await host.sessions.aclose("a", key)
            await desk("run_python", "another", code="1")
            found["open"].append(await desk("run_python", "open", code="x"))

    told = {key: [each.get("lost", "") for each in found[key]] for key in found}
    said = "variables and files of this session are lost: %s; upload files and"
    assert [each["variables"] for each in found["open"]] == [
        "new",
        "kept",
        "lost",
        "kept",
    ]
    assert told["open"][2].startswith(said % "its host ended")
    assert told["closed"] == ["", ""]
    assert "only 2 are open at once (tools.max_sessions)" in told["taken"][1]
    assert not any([*told["open"][:2], told["open"][3], told["taken"][0]])
