"""Ray as the one that knows the machines of a cluster: real Ray, simulated machines.

The tests share one cluster and are in an order: each leaves two machines with nodes to
the next one, and the last one kills the head.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import ClusterSandbox, RayDirectory
from toolcell.cluster.spi import ClusterAdmin
from toolcell.core import CellLostError, ConfigError, SandboxUnavailableError
from toolcell.host import HostConfig
from toolcell.host.cli.machine.kuberay_manifest import kuberay_manifest
from toolcell.sandbox import Limits

from ...support.cluster.kuberay import pods
from ...support.cluster.patience import LONG, givers
from ...support.cluster.ray_processes import ENVIRON, TOKEN, RayProcesses
from ...support.polling import until
from ...support.process_tree import alive, below
from ...support.toolcell_command import TOOLCELL, toolcell

pytestmark = pytest.mark.anyio
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)"
SLOTS = 4
LOST_SECONDS = 240.0
"""Seconds of silence after which drivers give nodes up."""


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayProcesses]:
    """A Ray cluster of a head and two machines of four slots."""
    started = RayProcesses(tmp_path_factory.mktemp("ray") / "log", ENVIRON)
    yield started
    started.end()


@pytest.fixture(scope="module")
async def machines(ray: RayProcesses) -> list[str]:
    """The numbers of the machines; each has a node."""
    return [await ray.ask("add", slots=SLOTS) for _ in range(2)]


@pytest.fixture(scope="module")
async def token(ray: RayProcesses, machines: list[str]) -> str:
    started: str = await ray.ask("start")
    await have_nodes(ray, 2)
    return started


async def have_nodes(ray: RayProcesses, count: int) -> None:
    """Wait until the cluster has so many nodes."""
    with anyio.fail_after(120):
        while len(await ray.nodes()) != count:
            await anyio.sleep(0.1)


@pytest.fixture
async def sandbox(ray: RayProcesses, token: str) -> AsyncIterator[ClusterSandbox]:
    """A driver with links to both nodes."""
    async with driver(ray, token) as sandbox:
        yield sandbox


@asynccontextmanager
async def driver(ray: RayProcesses, token: str) -> AsyncIterator[ClusterSandbox]:
    async with ClusterSandbox(
        ray, token=token, lost_seconds=LOST_SECONDS, wait_seconds=LONG
    ) as sandbox:
        await until(lambda: len(givers(sandbox)) >= 2)
        yield sandbox


async def lost_by(sandbox: ClusterSandbox, kill: Any) -> dict[str, str]:
    """Run one endless program on each node; return the nodes that lost theirs.

    Args:
        sandbox: The driver.
        kill: Called with the name of one of the nodes, whose loss must be told long
            before it is noticed by its silence.
    """
    ended: dict[str, str] = {}
    async with anyio.create_task_group() as tasks:

        async def run(ready: anyio.Event, named: list[str]) -> None:
            async with sandbox.session() as session:
                named.append(session.node)
                try:
                    await session.run(ENDLESS, on_output=lambda *_: ready.set())
                except CellLostError as error:
                    ended[session.node] = str(error.details["reason"])

        names: list[str] = []
        for _ in range(2):
            ready = anyio.Event()
            tasks.start_soon(run, ready, names)
            await ready.wait()
        assert len(set(names)) == 2
        await kill(names[0])
        with anyio.fail_after(LOST_SECONDS / 2):
            while not ended:
                await anyio.sleep(0.01)
        assert ended == {names[0]: "node_lost"}
        # The other node's run goes on, and new ones go there.
        assert (await sandbox.run("6 * 7")).value == 42
        tasks.cancel_scope.cancel()
    return ended


def number_in(name: str, machines: list[str]) -> str:
    [found] = [
        machine for machine in machines if machine.startswith(name.rpartition("-")[2])
    ]
    return found


async def test_programs_run_on_the_machines_of_ray(
    sandbox: ClusterSandbox, ray: RayProcesses
) -> None:
    assert (await sandbox.run("6 * 7")).value == 42
    assert sandbox.config.max_concurrency == 2 * SLOTS
    # Ray is started as docs/cluster.md says: it has nothing to remark.
    assert not [notice for notice in sandbox.notices if "Ray" in notice]
    assert len(ray.actors("NodeActor")) == 2


@pytest.mark.promise("cluster-22")
async def test_a_timeout_keeps_the_state_of_a_session(sandbox: ClusterSandbox) -> None:
    """Ray blocks SIGINT in its threads; a node must not inherit that."""
    async with sandbox.session() as session:
        await session.run("x = 42")
        slow = await session.run("while True: pass", limits=Limits(wall_seconds=0.5))
        assert (slow.status, slow.state) == ("timeout", "kept")
        assert (await session.run("x")).value == 42


@pytest.mark.promise("cluster-36")
async def test_programs_see_nothing_of_ray(sandbox: ClusterSandbox) -> None:
    code = f"""
import os
seen = [open('/proc/self/environ').read(), *map(str, os.environ.items())]
for each in filter(str.isdigit, os.listdir('/proc')):
    try: seen.append(open(f'/proc/{{each}}/environ').read())
    except OSError: pass
any('RAY_' in each or {TOKEN!r} in each for each in seen)
"""
    result = await sandbox.run(code.replace(repr(TOKEN), f"'5a' * {len(TOKEN) // 2}"))
    assert result.value is False, result.stderr


@pytest.mark.promise("cluster-32")
async def test_what_runs_are_given_is_not_in_ray(
    sandbox: ClusterSandbox, ray: RayProcesses
) -> None:
    marker = "marker-" + os.urandom(8).hex()
    result = await sandbox.run("len(x)", inputs={"x": [marker] * 20_000})
    assert result.value == 20_000

    raylets = [await ray.ask("pid", process="raylet")]
    for pid in (await ray.ask("pid", process="gcs_server"), *raylets):
        assert not memory_has(pid, marker.encode())
    assert memory_has(os.getpid(), marker.encode())


def memory_has(pid: int, marker: bytes) -> bool:
    """Return True if the memory of a process has a text."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            start, _, end = line.split()[0].partition("-")
            if " r" not in line or "[v" in line:
                continue
            try:
                memory.seek(int(start, 16))
                if marker in memory.read(int(end, 16) - int(start, 16)):
                    return True
            except (OSError, OverflowError, ValueError):
                continue
    return False


@pytest.mark.promise("cluster-47")
async def test_a_killed_keeper_comes_back_and_starts_no_second_node(
    ray: RayProcesses, sandbox: ClusterSandbox
) -> None:
    before = await ray.nodes()
    [keeper] = ray.actors("Keeper")
    nodes = ray.actors("NodeActor")
    async with sandbox.session() as session:
        await session.run("x = 42")
        os.kill(keeper, signal.SIGKILL)
        assert (await session.run("x")).value == 42
    await until(lambda: ray.actors("Keeper") not in ([], [keeper]))
    with anyio.fail_after(120):
        while True:
            try:
                if (after := await ray.nodes()) and len(after) == 2:
                    break
            except SandboxUnavailableError:
                pass
            await anyio.sleep(0.1)
    assert {*after} == {*before}
    assert ray.actors("NodeActor") == nodes


@pytest.mark.promise("cluster-04", "cluster-05")
async def test_a_killed_node_costs_its_own_runs_alone_and_comes_back(
    ray: RayProcesses, sandbox: ClusterSandbox
) -> None:
    gone: list[int] = []

    async def kill(name: str) -> None:
        for pid in ray.actors("NodeActor"):
            if name_of(pid, sandbox) == name:
                gone.extend([pid, *below(pid)])
                os.kill(pid, signal.SIGKILL)

    def name_of(pid: int, sandbox: ClusterSandbox) -> str:
        ports = {each.record.port: each.record.name for each in sandbox._nodes.open}
        return next((ports[port] for port in listening(pid) if port in ports), "")

    await lost_by(sandbox, kill)

    assert len(gone) > 2
    await until(lambda: not any(map(alive, gone)))
    await until(lambda: len(givers(sandbox)) == 2)
    assert len(ray.actors("NodeActor")) == 2


def listening(pid: int) -> set[int]:
    """Return the TCP ports that a process listens at."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        parts = line.split()
        if parts[3] == "0A" and parts[9] in inodes:
            ports.add(int(parts[1].rpartition(":")[2], 16))
    return ports


async def groups(ray: RayProcesses, name: str) -> list[tuple[str, float]]:
    return [
        (state, slots)
        for each, state, slots in await ray.ask("groups")
        if each.startswith(name)
    ]


@pytest.mark.promise("cluster-45")
async def test_what_is_busy_is_held_and_what_waits_is_asked_for(
    ray: RayProcesses, sandbox: ClusterSandbox
) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2 * SLOTS + 3):
            tasks.start_soon(sandbox.run, ENDLESS)
        with anyio.fail_after(120):
            while await groups(ray, "toolcell-waiting") != [("PENDING", 3.0)]:
                await anyio.sleep(0.2)
            held = [("CREATED", 1.0)] * 2 * SLOTS
            while await groups(ray, "toolcell-held") != held:
                await anyio.sleep(0.2)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(120):
        while await groups(ray, "toolcell-waiting"):
            await anyio.sleep(0.2)
    # An idle machine is let go after a minute: test_capacity has the clock.
    assert await groups(ray, "toolcell-held")


@pytest.mark.promise("cluster-06")
async def test_a_dead_machine_costs_its_own_runs_alone_and_a_new_one_is_used(
    ray: RayProcesses, sandbox: ClusterSandbox, machines: list[str]
) -> None:
    async def kill(name: str) -> None:
        number = number_in(name, machines)
        await ray.ask("kill", process="raylet", number=number)
        machines.remove(number)

    await lost_by(sandbox, kill)

    machines.append(await ray.ask("add", slots=SLOTS))
    await until(lambda: len(givers(sandbox)) == 2)
    await have_nodes(ray, 2)


@pytest.mark.promise("cluster-28")
async def test_a_drained_node_stays_away(
    ray: RayProcesses, token: str, machines: list[str]
) -> None:
    # Later it is a node again, and has a place for each of three drivers.
    machines.append(await ray.ask("add", slots=SLOTS))
    await have_nodes(ray, 3)
    [name] = [
        node.name
        for node in await ray.nodes()
        if number_in(node.name, machines) == machines[-1]
    ]
    await ClusterAdmin(ray, token=token).drain(name, 5)
    await have_nodes(ray, 2)
    # Its actor is there, so that no other one is started.
    assert len(ray.actors("NodeActor")) == 3


@pytest.fixture
def command(ray: RayProcesses, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command of `toolcell` with the cluster in its configuration."""
    config = tmp_path / "toolcell.toml"
    config.write_text(
        f"""
        [sandbox]
        backend = "subprocess"
        [cluster]
        address = "{ray.address}"
        """
    )

    async def run(*arguments: str, code: int = 0) -> Any:
        environ = {**os.environ, **ENVIRON}
        whole = ("cluster", *arguments, "--config", str(config), "--json")
        done = await to_thread.run_sync(lambda: toolcell(*whole, env=environ))
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout or done.stderr)

    return run


async def test_the_commands_of_the_cluster_work_on_ray(
    ray: RayProcesses,
    token: str,
    sandbox: ClusterSandbox,
    command: Callable[..., Any],
) -> None:
    async with sandbox.session() as session:
        admin = ClusterAdmin(ray, token=token)
        await admin.drain(session.node, 60)
        await admin.undrain(session.node)
        found = await command("doctor")
    assert {node["name"] for node in found["nodes"]} == set(sandbox.nodes)
    assert sum(node["busy"] for node in found["nodes"]) == 1
    assert {node["problem"] for node in found["nodes"]} == {""}
    refused = await command("up", code=2)
    assert "other settings" in refused["error"]["message"]


@pytest.mark.promise("cluster-48")
async def test_down_ends_our_nodes_and_leaves_ray_alone(
    ray: RayProcesses, token: str, command: Callable[..., Any], tmp_path: Path
) -> None:
    foreign = await ray.ask("foreign")
    ours = ray.actors("NodeActor")

    await command("down")

    await until(lambda: not any(map(alive, ours)) and not ray.actors("Keeper"))
    assert await ray.ask("foreign") == foreign
    with pytest.raises(SandboxUnavailableError, match="nobody has started nodes"):
        await ray.nodes()

    await to_thread.run_sync(start_as_on_kubernetes, ray.address, tmp_path)
    await have_nodes(ray, 3)
    async with driver(ray, token) as sandbox:
        assert (await sandbox.run("6 * 7")).value == 42


def start_as_on_kubernetes(address: str, folder: Path) -> None:
    """Run what a head of KubeRay runs after its start, with its configuration here."""
    config = folder / "toolcell.toml"
    config.write_text(
        """
        [sandbox]
        backend = "subprocess"
        [cluster]
        address = "auto"
        check_seconds = 3600
        """
    )
    settings = HostConfig.from_file(config)
    [_, cluster] = kuberay_manifest(
        settings, config.read_text(), "image", min_nodes=1, max_nodes=2, redis=None
    )
    [pod, _] = pods(cluster)
    hook = pod["spec"]["containers"][0]["lifecycle"]["postStart"]["exec"]["command"]
    command = [each.replace("/etc/toolcell", str(folder)) for each in hook]
    path = f"{Path(TOOLCELL).parent}:{os.environ['PATH']}"
    environ = {**os.environ, **ENVIRON, "RAY_ADDRESS": address, "PATH": path}
    subprocess.run(command, env=environ, check=True, timeout=180)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RAY_AUTH_TOKEN": "5b" * 32}, "the token of Ray does not fit"),
        ({"RAY_AUTH_TOKEN": "", "HOME": "/nowhere"}, "there is no token of Ray"),
    ],
)
async def test_a_wrong_token_is_refused(
    ray: RayProcesses,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, str],
    words: str,
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words):
        await RayDirectory(ray.address).nodes()


async def test_where_nobody_listens_that_is_said(
    monkeypatch: pytest.MonkeyPatch, free_tcp_port: int, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    with anyio.fail_after(60), pytest.raises(SandboxUnavailableError) as caught:
        await RayDirectory(f"127.0.0.1:{free_tcp_port}").nodes()
    assert caught.value.details["reason"] == "no_ray"
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="no Ray cluster on this"):
        RayDirectory("auto")
    with pytest.raises(ConfigError, match="is not the address"):
        RayDirectory("ray://host:10001")


@pytest.mark.promise("cluster-35")
async def test_an_open_cluster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = RayProcesses(tmp_path / "log", {"RAY_AUTH_MODE": "disabled"})
    try:
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        with pytest.raises(ConfigError, match="lets everybody in") as caught:
            await RayDirectory(opened.address).nodes()
        assert caught.value.details["reason"] == "open_cluster"
        assert "ray" not in sys.modules
    finally:
        opened.end()


@pytest.mark.promise("cluster-13")
async def test_links_outlive_the_head_of_ray(
    ray: RayProcesses, sandbox: ClusterSandbox, tmp_path: Path
) -> None:
    """Ray ends a process that has lost its head for a while, if it is not told else."""
    environ = {**os.environ, **ENVIRON}
    quick = "RAY_gcs_rpc_server_reconnect_timeout_s"
    del environ[quick]
    drivers = [ray.driver(ENDLESS, each) for each in (environ, {**environ, quick: "3"})]
    try:
        for each in drivers:
            assert each.stdout is not None
            line = await to_thread.run_sync(each.stdout.readline)
            assert line == "started\n"
        async with sandbox.session() as session:
            await session.run("x = 42")
            await ray.ask("kill", process="gcs_server")
            with anyio.fail_after(180):
                # So it would go with settings of Ray's own.
                assert await to_thread.run_sync(drivers[1].wait) == 1
            assert drivers[0].poll() is None
            assert (await session.run("x")).value == 42
            assert (await sandbox.run("6 * 7")).value == 42
    finally:
        for each in drivers:
            each.kill()
            each.communicate()
