"""Managers that one task opens and another one closes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import SandboxConfig, SandboxManager

from ..conftest import SUBPROCESS, BackendRow

pytestmark = pytest.mark.anyio


async def test_one_task_opens_and_another_closes(backend: BackendRow) -> None:
    managers: list[SandboxManager] = []

    async def open_it() -> None:
        managers.append(await SandboxManager.open(backend.config()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_it)
    [manager] = managers
    result = await manager.run("6 * 7")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(manager.aclose)

    assert result.value == 42
    with pytest.raises(SandboxUnavailableError):
        await manager.run("1")


async def test_closing_ends_runs_as_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 60)
    manager = await SandboxManager.open(SUBPROCESS.config())
    statuses = []
    started = anyio.Event()

    async def run() -> None:
        code = "import time\nprint('up', flush=True)\ntime.sleep(600)"
        result = await manager.run(code, on_output=lambda *_: started.set())
        statuses.append(result.status)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(60):
            await started.wait()
        await manager.aclose()
        await manager.aclose()

    assert statuses == ["cancelled"]


async def test_open_raises_what_entering_raises() -> None:
    config = SandboxConfig(backend="docker", docker_host="unix:///nowhere.sock")

    with pytest.raises(SandboxUnavailableError):
        await SandboxManager.open(config)


async def test_async_with_is_not_closed_by_a_call() -> None:
    async with SandboxManager(SUBPROCESS.config()) as manager:
        with pytest.raises(InvalidInputError, match="not opened by open"):
            await manager.aclose()
        assert (await manager.run("1")).value == 1


def test_values_of_another_type_are_no_configuration() -> None:
    settings: Any = {"backend": "subprocess"}
    with pytest.raises(InvalidInputError, match="config must be of type SandboxConfig"):
        SandboxManager(settings)


async def test_what_is_no_command_is_refused() -> None:
    wrong: list[Any] = [5, None, [], [5], b"ls"]
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        async with sandbox.session() as session:
            for command in wrong:
                with pytest.raises(InvalidInputError, match="a command is text"):
                    await session.exec(command)


async def test_a_file_of_this_machine_is_not_looked_for_in_the_cell() -> None:
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        async with sandbox.session() as session:
            with pytest.raises(InvalidInputError) as here:
                await session.load("/nonexistent")
            with pytest.raises(InvalidInputError) as there:
                await session.read_file("nonexistent")

    assert here.value.hint == "look at the path on this machine"
    assert there.value.hint == "look with list_files()"
    assert here.value.details == there.value.details == {"reason": "missing"}
