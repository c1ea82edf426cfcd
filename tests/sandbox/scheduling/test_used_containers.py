"""Containers that several programs of one agent use; others are in test_used_cells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcell.sandbox import ExecutionResult, Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.backends import container_spec, docker
from toolcell.sandbox.cell.wire.contract import RENEWAL_SECONDS

from ...conftest import DOCKER, RUNSC, missing, why_no_docker
from ...support.cells.changed_bundle import changed_bundle

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

_TRIES = 20
_SOCKET = "import socket\nsocket.socket().fileno() > 0"
_WRITABLE = """
import os
found = []
for folder, folders, _ in os.walk("/"):
    if folder == "/":
        folders.remove("proc")
    folders[:] = [f for f in folders if not os.path.islink(os.path.join(folder, f))]
    if os.access(folder, os.W_OK):
        found.append(folder)
        folders.clear()
sorted(found)
"""


@pytest.fixture(
    params=[
        pytest.param(DOCKER, id="runc"),
        pytest.param(RUNSC, id="runsc", marks=[pytest.mark.runsc, pytest.mark.full]),
    ]
)
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    if why := why_no_docker(request.param.options.get("runtime")):
        missing(why)
    config: SandboxConfig = request.param.config(programs_per_cell=1000)
    return config


@pytest.fixture
async def sandbox(config: SandboxConfig) -> AsyncIterator[SandboxManager]:
    async with SandboxManager(config) as manager:
        yield manager


def number_of(result: ExecutionResult) -> int:
    assert result.isolation is not None
    return result.isolation.program_number


async def in_a_used_cell(
    sandbox: SandboxManager, code: str, **options: Any
) -> ExecutionResult:
    """Return the result in a cell that was used before; it may take tries."""
    for _ in range(_TRIES):
        result = await sandbox.run(code, **{"agent_id": "a", **options})
        if number_of(result) > 1:
            return result
    pytest.fail("no cell was used again")


@pytest.mark.promise("E-79", "E-83")
async def test_programs_of_one_agent_use_a_container_again(
    sandbox: SandboxManager,
) -> None:
    code = "import os\nopen('/tmp/x', 'x')\nos.getpid() > 1"
    assert (await in_a_used_cell(sandbox, code, agent_id="a")).value is True
    assert number_of(await sandbox.run(code, agent_id="b")) == 1


async def test_only_runs_with_a_cell_of_their_own_have_sockets(
    sandbox: SandboxManager,
) -> None:
    first = await sandbox.run(_SOCKET, agent_id="a")
    later = await in_a_used_cell(sandbox, _SOCKET)
    for result in (first, later):
        assert result.exception is not None
        assert result.exception.type == "OSError"
    assert (await sandbox.run(_SOCKET, minimum_freshness="cell")).value is True
    async with sandbox.session() as session:
        assert (await session.run(_SOCKET)).value is True
        assert (await session.run(_SOCKET, fresh=True)).value is True
        command = await session.exec(["python3", "-c", _SOCKET])
        assert (await command.wait()).exit_code == 0


@pytest.mark.parametrize(
    ("code", "wall_seconds"),
    [
        ("raise SystemExit(3)", 15),
        ("while True: pass", 0.5),
        ("import os, time\nif os.fork() == 0: os.setsid(); time.sleep(99)", 15),
        (
            "import os\nfor n in range(15_000): open(f'/tmp/{n}', 'w').close()\n"
            "for n in range(15_000): open(f'/dev/shm/{n}', 'w').close()",
            15,
        ),
    ],
    ids=["exit", "timeout", "stray", "too much to remove"],
)
async def test_only_a_clean_end_leaves_a_container(
    sandbox: SandboxManager, code: str, wall_seconds: float
) -> None:
    limits = Limits(wall_seconds=wall_seconds)
    await sandbox.run(code, agent_id="a", limits=limits)
    assert number_of(await sandbox.run("1", agent_id="a")) == 1


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("wire.contract", "RENEWAL_SECONDS = 0.05", "RENEWAL_SECONDS = 0.0"),
        (
            "workdir.emptying",
            "if self._state(path) != before",
            "if self._state(path) == before",
        ),
    ],
    ids=["slow", "not as it was"],
)
async def test_a_container_that_cannot_be_made_new_is_destroyed(
    monkeypatch: pytest.MonkeyPatch,
    config: SandboxConfig,
    module: str,
    old: str,
    new: str,
) -> None:
    packed = changed_bundle([(module, old, new)])
    monkeypatch.setattr(docker, "bundle", lambda: packed)
    async with SandboxManager(config) as sandbox:
        assert [number_of(await sandbox.run("1")) for _ in range(2)] == [1, 1]


async def test_a_slow_fork_does_not_cost_a_container(
    monkeypatch: pytest.MonkeyPatch, config: SandboxConfig
) -> None:
    fork = "pid = linux.clone(linux.CLONE_PARENT)"
    slow = f"select.select([], [], [], {2 * RENEWAL_SECONDS}); {fork}"
    packed = changed_bundle([("supervisor.zygote", fork, slow)])
    monkeypatch.setattr(docker, "bundle", lambda: packed)
    async with SandboxManager(config) as sandbox:
        assert (await in_a_used_cell(sandbox, "1")).value == 1


@pytest.mark.promise("E-79")
async def test_every_folder_that_programs_can_write_to_is_emptied(
    sandbox: SandboxManager, config: SandboxConfig
) -> None:
    found = (await sandbox.run(_WRITABLE)).value

    assert isinstance(found, list)
    assert found
    assert set(found) <= set(container_spec.writable(config.work_dir))
