"""Faults around the sandbox: engines that vanish, odd environments, many runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import ExecutionResult, Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.backends.container_spec import OWNER_LABEL
from toolcell.sandbox.machine import host_cgroups, process_identity

from ..conftest import BACKENDS, ENGINE_SOCKET, BackendRow, missing, why_no_docker
from ..support.process_tree import below, runs

pytestmark = pytest.mark.anyio


class Relay:
    """A door to the Docker engine that can be slammed."""

    def __init__(self, path: str) -> None:
        self.address = f"unix://{path}"
        self._sockets: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._server.accept()[0]
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(ENGINE_SOCKET)
            self._sockets += [client, engine]
            for ends in ((client, engine), (engine, client)):
                self._threads.append(threading.Thread(target=self._copy, args=ends))
                self._threads[-1].start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def slam(self) -> None:
        # A shutdown wakes the threads that wait; closing alone would not.
        self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for opened in (self._server, *self._sockets):
            opened.close()


@pytest.mark.promise("E-138")
@pytest.mark.docker
async def test_an_engine_that_vanishes_costs_one_run(
    backend: BackendRow, tmp_path: Path
) -> None:
    if backend.name != "docker":
        pytest.skip("one engine is enough")
    import docker

    relay = Relay(str(tmp_path / "engine.sock"))

    client = docker.from_env()
    before = our_containers(client)
    started = anyio.Event()
    code = "import time\nprint('here', flush=True)\ntime.sleep(600)"
    async with SandboxManager(backend.config(docker_host=relay.address)) as manager:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slam_once, started, relay)
            with pytest.raises(CellLostError):
                await manager.run(code, on_output=lambda *_: started.set())
        with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
            await manager.run("1")
    # The container ends with its stream; nobody is there to ask the engine.
    with anyio.fail_after(60):
        while not our_containers(client) <= before:
            await anyio.sleep(0.05)
    client.close()


def our_containers(client: Any) -> set[str]:
    filters = {"label": f"{OWNER_LABEL}={process_identity.this_process()}"}
    return {
        container["Id"]
        for container in client.api.containers(all=True, filters=filters)
    }


async def slam_once(started: anyio.Event, relay: Relay) -> None:
    await started.wait()
    await anyio.to_thread.run_sync(relay.slam)


@pytest.mark.promise("E-138")
@pytest.mark.docker
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": "toolcell-test/none:none"}, "has no image"),
        ({"runtime": "no-such-runtime"}, "has no runtime"),
        ({"docker_host": "tcp://127.0.0.1:9"}, "no Docker engine answers"),
    ],
)
async def test_an_engine_that_cannot_is_a_typed_error(
    options: dict[str, str], said: str
) -> None:
    if "docker_host" not in options and (why := why_no_docker(None)):
        missing(why)
    config = SandboxConfig(backend="docker", **options)  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailableError, match=said) as caught:
        async with SandboxManager(config) as manager:
            await manager.run("1")

    assert caught.value.hint


@pytest.mark.promise("E-138")
async def test_a_full_disk_harms_one_run(sandbox: SandboxManager) -> None:
    fill = "with open('big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))"
    async with sandbox.session() as session:
        full = await session.run(fill, fresh=True)
        again = await session.run("print('still here')", fresh=True)
        emptied = await session.run(
            "import os\nos.unlink('big')\nopen('x', 'w').write('x')",
            fresh=True,
        )

    assert (full.status, full.self_reported) == ("disk_limit", True)
    assert (again.status, again.stdout) == ("ok", "still here\n")
    assert emptied.value == 1


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "C locale": {"LC_ALL": "C", "LANG": "C"},
    "unknown locale": {"LC_ALL": "xx_XX.nothing"},
    "far time zone": {"TZ": "Pacific/Kiritimati"},
    "bad time zone": {"TZ": ":/no/such/zone"},
    "no home": {},
    "bad home": {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/nothing"},
    "narrow": {"COLUMNS": "1", "TERM": "dumb", "NO_COLOR": "1"},
    "odd temporary folder": {"TMPDIR": "/nonexistent"},
}


# To the command gVisor is but an option of the engine.
@pytest.mark.promise("E-139")
@pytest.mark.parametrize("backend", BACKENDS[:2], indirect=True)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_command_runs_in_odd_environments(backend: BackendRow, name: str) -> None:
    options = ["--backend", str(backend.options["backend"]), "--json"]
    for option in ("image", "runtime"):
        if value := backend.options.get(option):
            options += [f"--{option}", str(value)]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "toolcell"), "run", *options, "-"],
        input="print('ä\N{SNOWMAN}')\n6 * 7".encode(),
        env={"PATH": "/usr/bin:/bin", **engine_address(), **ENVIRONMENTS[name]},
        cwd="/",
        capture_output=True,
        timeout=180,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["value"], result["stdout"]) == (42, "ä\N{SNOWMAN}\n")


def engine_address() -> dict[str, str]:
    """Return the one variable that says where the engine is, if it is set."""
    address = os.environ.get("DOCKER_HOST")
    return {"DOCKER_HOST": address} if address else {}


def footprint() -> dict[str, int]:
    groups = 0
    try:
        for place in set(host_cgroups.parents().values()):
            for path in Path(place).glob(f"{host_cgroups.own_name()}*"):
                groups += sum(each.is_dir() for each in path.iterdir())
    except OSError:
        pass
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "groups": groups,
    }


# What may be under way at the moment of counting: cells that are destroyed behind
# the caller's back, the engine client's kept connections, anyio's 40 workers.
SLACK = {"descriptors": 12, "threads": 40, "groups": 6}


@contextmanager
def flat() -> Iterator[None]:
    before = footprint()
    yield
    after = footprint()
    grown = {name: after[name] - before[name] for name in before}
    assert all(grown[name] <= slack for name, slack in SLACK.items()), grown


async def many_runs(manager: SandboxManager, count: int) -> None:
    for number in range(count):
        result: ExecutionResult = await manager.run(f"{number}")
        assert result.value == number


@pytest.mark.promise("E-58", "E-140")
async def test_many_runs_leave_the_host_as_it_was(backend: BackendRow) -> None:
    count = {"subprocess": 300, "confined": 100, "docker": 30, "runsc": 15}
    async with SandboxManager(backend.config()) as manager:
        await many_runs(manager, 5)
        with flat():
            await many_runs(manager, count[backend.name])


@pytest.mark.promise("E-140")
@pytest.mark.full
@pytest.mark.timeout(3600)
async def test_10_000_runs_leave_the_host_as_it_was(backend: BackendRow) -> None:
    count = {"docker": 1_000, "runsc": 300}.get(backend.name, 10_000)
    async with SandboxManager(backend.config()) as manager:
        await many_runs(manager, 5)
        with flat():
            await many_runs(manager, count)


def living(backend: BackendRow) -> set[object]:
    """Return the cells of this process: containers, or PID namespaces."""
    if backend.options["backend"] == "subprocess":
        ours = below(os.getpid())
        return namespaces_of(pid for pid, start in ours.items() if runs(pid, start))
    import docker

    client = docker.from_env()
    found = our_containers(client)
    client.close()
    return set(found)


def namespaces_of(pids: Iterable[int]) -> set[object]:
    found: set[object] = set()
    for pid in pids:
        # It may end while we look.
        with suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/pid"))
    return found


@pytest.mark.promise("E-56", "E-133")
async def test_cancelling_stops_the_program_and_has_one_outcome(
    backend: BackendRow,
) -> None:
    outcomes: list[ExecutionResult] = []
    said: list[str] = []
    begun = anyio.Event()
    code = """
import os, time
if os.fork():
    print(os.readlink("/proc/self/ns/pid"), flush=True)
time.sleep(600)
"""

    def hear(_: str, data: bytes) -> None:
        said.extend(data.decode().split())
        begun.set()

    async with SandboxManager(backend.config()) as manager:
        before = living(backend)

        async def run() -> None:
            outcomes.append(await manager.run(code, on_output=hear))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            with anyio.fail_after(60):
                await begun.wait()
            during = living(backend)
            # Containers tell nobody their names, and none is made ahead.
            cells = {said[0]} if backend.name == "subprocess" else during - before
            assert cells and cells <= during
            tasks.cancel_scope.cancel()
        after = living(backend)
        assert (await manager.run("1")).value == 1

    assert outcomes == []
    assert cells & after == set()


@pytest.mark.promise("E-133")
async def test_closing_the_manager_ends_runs_as_cancelled(backend: BackendRow) -> None:
    outcomes: list[str] = []
    begun = anyio.Event()
    manager = SandboxManager(backend.config(limits=Limits(wall_seconds=600)))
    async with anyio.create_task_group() as tasks:
        async with manager:

            async def run() -> None:
                result = await manager.run(
                    "import time\nprint('here', flush=True)\ntime.sleep(600)",
                    on_output=lambda *_: begun.set(),
                )
                outcomes.append(result.status)

            tasks.start_soon(run)
            with anyio.fail_after(60):
                await begun.wait()

    assert outcomes == ["cancelled"]
