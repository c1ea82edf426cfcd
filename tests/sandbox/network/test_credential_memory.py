"""The value of a credential is in no process and no file of a cell, in many runs."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from toolcell.cluster import new_token
from toolcell.sandbox import (
    ExecutionResult,
    HostCalls,
    Limits,
    Sandbox,
    SandboxManager,
)
from toolcell.sandbox.credentials.masking import spellings

from ...conftest import BackendRow
from ...support.cells.gates import Gate
from ...support.cells.leak_check import owner_of
from ...support.cells.leftovers import containers_of
from ...support.cells.memory import found_in_cells
from ...support.cells.mirror import credential_of, inspected
from ...support.cells.web_server import NAME, resolve_here
from ...support.child import Child
from ...support.cluster.local import local_cluster

pytestmark = pytest.mark.anyio

# Of this process alone, whose memory is not searched.
VALUE = f"ghp_{secrets.token_hex(20)}"
SPELLINGS = spellings(VALUE)
USE = """
import os, urllib.request
token = os.environ["API_TOKEN"]
def answer(path):
    request = urllib.request.Request(f"https://{name}:{port}/{path}")
    request.add_header("Authorization", "Bearer " + token)
    with urllib.request.urlopen(request) as came:
        return f"{came.reason} {came.headers} {came.read().decode()}"
shown = [answer(path) for path in ("plain", "base64", "hex", "value", "pieces")]
with open("answers", "w") as file:
    file.writelines(shown)
tools.look(token)
shown[0].count(token)
"""


@pytest.fixture
async def manager(
    backend: BackendRow, mirror: Any, certificate: Path, tmp_path: Path
) -> AsyncIterator[Sandbox]:
    (tmp_path / "token").write_text(VALUE)
    host = f"{NAME}:{mirror.port}"
    agents = ["web/builder" if backend.on_nodes else "builder"]
    credential = credential_of(tmp_path / "token", host, prefix="ghp_", agents=agents)
    config = backend.config(
        network=inspected(host, certificate),
        credentials=(credential,),
        limits=Limits(wall_seconds=600),
    )
    make: Any = SandboxManager
    if backend.on_nodes:
        make = partial(local_cluster, driver=("web", new_token()))
    async with make(config, resolver=resolve_here) as manager:
        yield manager


@pytest.fixture
def containers(backend: BackendRow) -> Iterator[Callable[[], list[str]]]:
    """Give what returns the containers that are cells of this process."""
    if backend.options["backend"] != "docker":
        yield list
        return
    import docker

    client = docker.from_env()
    yield partial(containers_of, client.api, owner_of(os.getpid()))
    client.close()


MANY = pytest.mark.full, pytest.mark.timeout(3_600)


@pytest.mark.on_nodes
@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    ("runs", "in_one_cell"),
    [
        (2, False),
        pytest.param(200, False, marks=MANY),
        pytest.param(200, True, marks=MANY),
    ],
)
async def test_no_cell_has_the_value_during_and_after_its_runs(
    manager: Sandbox,
    mirror: Any,
    containers: Callable[[], list[str]],
    runs: int,
    in_one_cell: bool,
) -> None:
    found: list[set[bytes]] = []

    def search(*more: bytes) -> set[bytes]:
        return found_in_cells(*SPELLINGS, *more, containers=containers())

    async def look(name: str, arguments: list[Any], _: Any) -> dict[str, Any]:
        placeholder = arguments[0].encode()
        found.append(await anyio.to_thread.run_sync(search, placeholder))
        return {"value": None}

    inputs: dict[str, Any] = {"name": NAME, "port": mirror.port}
    calls = HostCalls(names=("look",), handler=look)
    options: dict[str, Any] = {"inputs": inputs, "gate": Gate(), "calls": calls}
    async with AsyncExitStack() as stack:
        run: Callable[..., Awaitable[ExecutionResult]]
        run = partial(manager.run, agent_id="builder")
        if in_one_cell:
            session = manager.session(agent_id="builder")
            run = (await stack.enter_async_context(session)).run
        for _ in range(runs):
            result = await run(USE, **options)
            assert (result.status, result.value) == ("ok", 3), result.stderr
            assert not any(text.decode() in repr(result) for text in SPELLINGS)
            assert not found[-1] & {*SPELLINGS}
            assert not search()

    assert all(found), "a placeholder that a program has was not found"
    sent = [head for head in mirror.heads if f"Bearer {VALUE}\n" in head]
    assert len(sent) >= runs * 5


@pytest.mark.timeout(60)
async def test_the_search_reads_files_and_waits_for_no_pipe(tmp_path: Path) -> None:
    text = secrets.token_bytes(20)
    (tmp_path / "file").write_bytes(b"before " + text)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "folder").mkdir()

    with Child(["cat"], cwd=tmp_path, stdin=subprocess.PIPE):
        before = len(os.listdir("/proc/self/fd"))
        assert found_in_cells(text) == {text}
        assert len(os.listdir("/proc/self/fd")) == before


LARGE = """
import mmap, sys
area = mmap.mmap(-1, 1 << 29, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, 1 << 20)
for each, place in ((area, (1 << 28) - 10), (shared, (1 << 20) - 20)):
    each[place : place + 20] = sys.stdin.buffer.read(20)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.timeout(60)
async def test_the_search_finds_the_little_that_is_written_in_a_large_area() -> None:
    """Areas that are mostly room are quick to search: their zeros are not read."""
    texts = secrets.token_bytes(20), secrets.token_bytes(20)
    argv = [sys.executable, "-c", LARGE]
    started: Child[bytes] = Child(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with started as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"".join(texts))
        child.stdin.flush()
        assert child.stdout.readline()
        assert found_in_cells(*texts) == {*texts}
        child.kill()
