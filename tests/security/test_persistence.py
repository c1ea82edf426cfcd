"""What one run leaves for the next, and a dead host for everybody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import SandboxError
from toolcell.sandbox import SandboxManager
from toolcell.sandbox.backends.container_spec import MACHINE_LABEL, OWNER_LABEL
from toolcell.sandbox.machine import process_identity
from toolcell.sandbox.spi import clean

from ..conftest import IMAGE, BackendRow, missing, why_no_docker
from ..support.attacks.as_programs import attempt, program
from ..support.cells.leftovers import containers_of, groups_of
from ..support.child import Child
from ..support.polling import until
from ..support.process_tree import below, children, runs

pytestmark = pytest.mark.anyio


def plant() -> list[str]:
    import os
    import site
    import sys

    places = [
        "/tmp/planted.py",
        "/dev/shm/planted.py",
        "/work/planted.py",
        "/work/sitecustomize.py",
        "/work/usercustomize.py",
        "/work/json.py",
        "/work/.bashrc",
        "/work/.local/lib/python3.11/site-packages/planted.pth",
        "/var/tmp/planted.py",
        f"{sys.prefix}/planted.pth",
        f"{os.path.dirname(os.__file__)}/sitecustomize.py",
        *(f"{folder}/planted.pth" for folder in site.getsitepackages()),
    ]
    written = []
    for path in places:
        attempt(lambda p=path: os.makedirs(os.path.dirname(p), exist_ok=True))  # type: ignore[misc]
        if attempt(lambda p=path: open(p, "x")) == "done":  # type: ignore[misc]
            written.append(path)
    return written


@pytest.mark.promise("E-79", "E-83")
async def test_nothing_stays_for_another_cell(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    first = await sandbox.run(program(plant, attempt))
    second = await sandbox.run(program(plant, attempt))

    assert isinstance(first.value, list) and isinstance(second.value, list)
    layers = first.isolation.layers if first.isolation else ()
    stays = set()
    if backend.name == "confined" and "own_uid" not in layers:
        # With the host's user it stays in the machine's own shared memory.
        stays = {"/dev/shm/planted.py"}
        Path("/dev/shm/planted.py").unlink(missing_ok=True)
    # The second could plant the rest anew, so nothing was there.
    assert set(first.value) - stays == set(second.value) - stays
    for path in first.value:
        assert str(path).startswith(("/tmp/", "/work/", "/dev/shm/")), path


@pytest.mark.promise("E-80")
async def test_modules_in_the_work_dir_do_not_reach_the_runner(
    sandbox: SandboxManager,
) -> None:
    names = ("json", "os", "resource", "traceback", "sitecustomize", "_ast", "signal")
    poison = f"""
import os
for name in {names!r}:
    for folder in (os.environ["HOME"], os.environ["TMPDIR"]):
        with open(f"{{folder}}/{{name}}.py", "w") as file:
            file.write("raise SystemExit('hijacked')")
with open(os.environ["HOME"] + "/.bashrc", "w") as file:
    file.write("echo hijacked")
"""
    async with sandbox.session() as session:
        assert (await session.run(poison, fresh=True)).ok
        results = [await session.run("6 * 7", fresh=True) for _ in range(3)]
        bash = await session.run("echo clean", fresh=True, language="bash")

    assert [(result.status, result.value) for result in results] == [("ok", 42)] * 3
    assert bash.stdout == "clean\n"


@pytest.mark.promise("E-80")
async def test_variables_of_the_host_do_not_reach_the_runner(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit('hijacked')")
    (tmp_path / "json.py").write_text("raise SystemExit('hijacked')")
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV", "ENV"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    async with SandboxManager(backend.config()) as manager:
        result = await manager.run("6 * 7")

    assert (result.status, result.value) == ("ok", 42)


@pytest.mark.promise("E-81")
async def test_a_ready_cell_is_used_once(backend: BackendRow) -> None:
    look = """
import os
seen = os.path.exists("/work/mark") or os.path.exists("/tmp/mark")
open("/work/mark", "w"), open("/tmp/mark", "w")
if os.fork() == 0:
    os.setsid()
    while True: os.getpid()
mine = str(os.getpid())
[seen, [p for p in os.listdir("/proc") if p.isdigit() and p != mine]]
"""
    async with SandboxManager(backend.config(pool=2)) as manager:
        results = [await manager.run(look) for _ in range(5)]

    for result in results:
        assert isinstance(result.value, list), result.stderr
        seen, others = result.value
        assert seen is False
        # PID 1 and the child that was just made.
        assert isinstance(others, list) and len(others) == 2


@pytest.mark.promise("E-83")
async def test_sessions_share_nothing(sandbox: SandboxManager) -> None:
    async with sandbox.session() as first, sandbox.session() as second:
        await first.run("name = 1\nopen('file', 'w')", fresh=True)
        seen = await second.run("import os\nos.listdir()", fresh=True)
        named = await second.run("name", fresh=True)

    assert seen.value == []
    assert named.exception is not None
    assert named.exception.type == "NameError"


DRIVER = """
import sys, anyio, json
from toolcell.sandbox import SandboxConfig, SandboxManager

async def main():
    async with SandboxManager(SandboxConfig(**json.loads(sys.argv[1]))) as manager:
        async with manager.session() as session:
            await session.run("import os, time\\nfor _ in range(3): os.fork()\\n"
                "print('started', flush=True)\\ntime.sleep(600)",
                fresh=True, on_output=lambda *_: print("running", flush=True))

anyio.run(main)
"""


@contextmanager
def driver(options: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Start another host with a program that runs; kill -9 it when left."""
    command = [sys.executable, "-c", DRIVER, json.dumps(options)]
    with Child(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.promise("E-82")
async def test_a_killed_host_leaves_nothing(backend: BackendRow) -> None:
    import docker

    client = docker.from_env() if backend.options["backend"] == "docker" else None
    with driver(backend.options) as process:
        name = f"{process.pid}-{process_identity.start_time(process.pid)}"
        cells = below(process.pid)
        if client is not None:
            assert containers_of(client.api, name)
    # The sweep of the next start; `toolcell clean` is the same one.
    async with SandboxManager(backend.config()) as manager:
        assert (await manager.run("1")).ok
        await until(lambda: not any(runs(*each) for each in cells.items()))
        await clean()
        assert (await manager.run("2")).ok

    if client is not None:
        assert containers_of(client.api, name) == []
        client.close()
    else:
        assert len(cells) >= 9
        assert groups_of(name) == []


@pytest.mark.promise("E-82", "QD9")
@pytest.mark.docker
async def test_the_sweep_takes_only_what_is_ours_and_dead() -> None:
    if why := why_no_docker(None):
        missing(why)
    import docker

    client = docker.from_env()
    api: Any = client.api
    dead = f"{2**22 + 1}-1"
    machine, alive = process_identity.machine_id(), process_identity.this_process()
    labels = {
        "dead": {OWNER_LABEL: dead, MACHINE_LABEL: machine},
        "alive": {OWNER_LABEL: alive, MACHINE_LABEL: machine},
        "elsewhere": {OWNER_LABEL: dead, MACHINE_LABEL: "another-boot.1"},
        "foreign": {"com.example": "x"},
    }
    made = {
        name: api.create_container(IMAGE, ["true"], labels=marks)["Id"]
        for name, marks in labels.items()
    }
    try:
        await clean()
        left = {container["Id"] for container in api.containers(all=True)}

        assert {name for name, each in made.items() if each in left} == {
            "alive", "elsewhere", "foreign"
        }  # fmt: skip
    finally:
        for container in made.values():
            try:
                api.remove_container(container, force=True)
            except docker.errors.NotFound:
                continue
        client.close()


@pytest.mark.promise("E-82")
async def test_cells_end_with_their_launcher(backend: BackendRow) -> None:
    if backend.name != "subprocess":
        pytest.skip("only this backend has a launcher")
    async with SandboxManager(backend.config()) as manager:
        async with manager.session() as session:
            await session.run("1", fresh=True)
            launcher = newest_launcher()
            cells = below(launcher)
            started = process_identity.start_time(launcher)
            os.kill(launcher, signal.SIGKILL)
            await until(lambda: not runs(launcher, started))
            with pytest.raises(SandboxError):
                await session.run("2", fresh=True)
        assert (await manager.run("3")).value == 3

    assert cells
    await until(lambda: not any(runs(*each) for each in cells.items()))


def newest_launcher() -> int:
    """Return the launcher that this process started last."""
    ours = {}
    for pid, started in children(os.getpid()).items():
        # Others come and go meanwhile.
        with suppress(OSError):
            if "launcher" in Path(f"/proc/{pid}/cmdline").read_text():
                ours[pid] = int(started)
    return max(ours, key=ours.__getitem__)
