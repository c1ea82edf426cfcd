"""Several tasks want packages at the same time."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.packages.layer_store import LayerStore

from ...conftest import SUBPROCESS
from ...support.cells.package_index import filled

pytestmark = pytest.mark.anyio


async def test_a_session_keeps_the_packages_of_each_install(tmp_path: Path) -> None:
    rules = filled(tmp_path).rules(tmp_path / "store", "*")
    async with (
        SandboxManager(SUBPROCESS.config(package_rules=rules)) as manager,
        manager.session() as session,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.install, ["kind"])
            tasks.start_soon(session.install, ["leaf"])
        result = await session.run("import kind, leaf\nkind.answer()")

    assert result.value == 42, result.stderr


async def test_tasks_that_wait_for_one_layer_let_go_of_it(tmp_path: Path) -> None:
    rules = filled(tmp_path).rules(tmp_path / "store", "*")
    store = LayerStore(rules.folder)
    async with SandboxManager(SUBPROCESS.config(package_rules=rules)) as manager:
        await manager.install(["kind"])
        packages = manager._programs._packages
        assert packages is not None
        pruned = store.try_lock("key.use")
        assert pruned is not None
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(packages._hold, "key")
            await anyio.wait_all_tasks_blocked()
            os.close(pruned)

    free = store.try_lock("key.use")
    assert free is not None
    os.close(free)
