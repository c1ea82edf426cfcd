"""Hosts that forked: no process of theirs keeps cells alive, or holds up a close."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.backends import launcher
from toolcell.sandbox.machine import host_cgroups, process_identity

from ...conftest import SUBPROCESS, BackendRow
from ...support.cells.leftovers import containers_of, host_groups
from ...support.child import Child
from ...support.polling import until
from ...support.process_tree import alive, below, children, runs

pytestmark = pytest.mark.anyio

DRIVER = """
import ctypes, json, os, sys, time
import anyio
from toolcell.sandbox import SandboxConfig, SandboxManager

async def main():
    config = SandboxConfig(**json.loads(sys.argv[1]))
    async with SandboxManager(config) as manager, manager.session() as session:
        await session.run("1")
        child = ctypes.PyDLL(None).fork() if sys.argv[2] == "C" else os.fork()
        while child == 0:
            time.sleep(600)
        print(child, flush=True)
        await session.run("print('up', flush=True)\\nimport time\\ntime.sleep(600)",
            on_output=lambda *_: print("running", flush=True))

anyio.run(main)
"""


@contextmanager
def forked_host(backend: BackendRow, how: str) -> Iterator[subprocess.Popen[str]]:
    """Start a host that has forked and runs a program; its child lives to the end."""
    command = [sys.executable, "-c", DRIVER, json.dumps(backend.options), how]
    with Child(command, stdout=subprocess.PIPE, text=True) as process:
        child = 0
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            assert process.stdout.readline() == "running\n"
            yield process
            assert alive(child)
        finally:
            process.kill()
            if child:
                os.kill(child, signal.SIGKILL)


@pytest.mark.promise("F1")
@pytest.mark.parametrize("how", ["Python", "C"])
async def test_cells_end_with_a_namespace_host_that_forked(how: str) -> None:
    with forked_host(SUBPROCESS, how) as host:
        cells = below(*children(host.pid))
        assert len(cells) >= 3
        host.kill()
        await until(lambda: not any(runs(*each) for each in cells.items()))


@pytest.mark.promise("F1")
async def test_cells_end_with_a_host_that_forked(backend: BackendRow) -> None:
    if backend.name == "subprocess":
        pytest.skip("the test above")
    import docker

    client = docker.from_env()
    with forked_host(backend, "Python") as host:
        name = f"{host.pid}-{process_identity.start_time(host.pid)}"
        assert containers_of(client.api, name)
        host.kill()
        await until(lambda: not containers_of(client.api, name))
    client.close()


@pytest.mark.promise("F1")
async def test_a_process_that_was_forked_does_not_hold_up_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "_END_SECONDS", 60)
    child = 0
    try:
        async with SandboxManager(SUBPROCESS.config()) as manager:
            async with manager.session() as session:
                await session.run("1")
                child = os.fork()
                while child == 0:
                    signal.pause()
            began = anyio.current_time()
        assert anyio.current_time() - began < 30
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.promise("A27")
async def test_a_killed_host_leaves_no_group() -> None:
    def groups() -> list[str]:
        with suppress(OSError):
            places = set(host_cgroups.parents().values())
            names = [
                f"{place}/{name}" for place in places for name in os.listdir(place)
            ]
            return [path for path in names if f"-{host.pid}-" in path]
        return []

    host_cgroups.remove(host_groups())
    with forked_host(SUBPROCESS, "Python") as host:
        assert groups()
        host.kill()
        await until(lambda: not groups())
