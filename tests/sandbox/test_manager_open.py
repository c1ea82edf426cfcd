"""Managers that one task opens and another one closes."""

from __future__ import annotations

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


async def test_closing_ends_runs_as_cancelled() -> None:
    manager = await SandboxManager.open(SUBPROCESS.config())
    statuses = []
    started = anyio.Event()

    async def run() -> None:
        code = "import time\nprint('up', flush=True)\ntime.sleep(600)"
        result = await manager.run(code, on_output=lambda *_: started.set())
        statuses.append(result.status)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(30):
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
