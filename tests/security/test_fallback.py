"""The backend without a daemon, and what must not be silent about choosing it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.sandbox import SandboxConfig, SandboxManager, run

from ..conftest import BackendRow, level_here
from ..support.attacks.as_programs import attempt, program, system_call
from ..support.attacks.programs import reach_supervisor
from ..support.ordinary_user import need_an_ordinary_user

pytestmark = pytest.mark.anyio

DEAD_ENGINE = "tcp://127.0.0.1:9"


@pytest.mark.promise("E-39")
async def test_descriptors_of_the_host_are_not_inherited(
    backend: BackendRow, tmp_path: Path
) -> None:
    (tmp_path / "canary").write_text("canary")
    with (tmp_path / "canary").open() as file, socket.create_server(("", 0)) as server:
        for descriptor in (file.fileno(), server.fileno()):
            os.set_inheritable(descriptor, True)
        async with SandboxManager(backend.config()) as manager:
            code = "import os\n[os.readlink(f'/proc/self/fd/{n}') for n in range(4)]"
            listed = await manager.run(
                "import os\nsorted(os.listdir('/proc/self/fd'), key=int)"
            )
            targets = await manager.run(code)

    # Standard streams, the result socket, and listdir's own.
    assert listed.value == ["0", "1", "2", "3", "4"]
    assert isinstance(targets.value, list)
    assert targets.value[0] == "/dev/null"
    kinds = [str(target).partition(":")[0] for target in targets.value[1:]]
    assert kinds == ["pipe", "pipe", "socket"]


@pytest.mark.promise("E-40")
async def test_a_container_that_was_asked_for_is_never_replaced() -> None:
    for options in (
        {"backend": "docker"},
        {"backend": "auto", "minimum_isolation": "container"},
        {"backend": "auto", "minimum_isolation": "kernel"},
    ):
        config = SandboxConfig(**options, docker_host=DEAD_ENGINE)  # type: ignore[arg-type]
        with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
            async with SandboxManager(config):
                pass
    with pytest.raises(ConfigError, match="container"):
        SandboxConfig(backend="subprocess", minimum_isolation="container")


@pytest.mark.promise("E-40")
async def test_a_downgrade_is_said_and_shown() -> None:
    config = SandboxConfig(backend="auto", docker_host=DEAD_ENGINE)
    async with SandboxManager(config) as manager:
        result = await manager.run("1")

    backend, *weaker = manager.notices
    assert "subprocess backend" in backend
    assert ["cells are 'confined'" in each for each in weaker] == (
        [True] * (level_here() == "confined")
    )
    assert (result.backend, result.isolation and result.isolation.level) == (
        "subprocess", level_here()
    )  # fmt: skip


def signals() -> dict[str, str]:
    import os

    said = {
        f"{pid} {number}": attempt(lambda p=pid, n=number: os.kill(p, n))  # type: ignore[misc]
        for pid in (1, os.getppid(), 2**22 - 1)
        for number in (0, 9, 15, 19)
    }
    attempt(lambda: os.killpg(0, 0))
    return said


@pytest.mark.promise("E-42")
async def test_signals_reach_no_one(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        said = await session.run(program(signals, attempt), fresh=True)
        # Kills everything that it may: itself, if the kernel counts it in.
        await session.run("import os\nos.kill(-1, 9)\nos.killpg(0, 9)", fresh=True)
        after = await session.run("'alive'", fresh=True)

    assert isinstance(said.value, dict)
    assert set(said.value.values()) <= {"EPERM", "ESRCH"}, said.value
    assert after.value == "alive"


def raise_limits() -> dict[str, Any]:
    import os
    import resource
    import subprocess
    import sys

    said: dict[str, Any] = {}
    for name in ("NOFILE", "CORE", "NPROC", "AS", "MEMLOCK", "NICE", "RTPRIO"):
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        if hard == resource.RLIM_INFINITY:
            continue
        said[name] = [
            attempt(lambda k=kind, v=value: resource.setrlimit(k, (v, v)))  # type: ignore[misc]
            for value in (hard + 1, resource.RLIM_INFINITY)
        ]
    said["nice"] = attempt(lambda: os.nice(-5))
    said["realtime"] = attempt(
        lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    )
    said["prlimit 1"] = system_call(
        302 if os.uname().machine == "x86_64" else 261, 1, resource.RLIMIT_NOFILE, 0, 0
    )
    code = "from resource import *\n"
    code += "print(getrlimit(RLIMIT_NOFILE), getrlimit(RLIMIT_CORE))"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said["after exec"] = again.stdout.strip()
    return said


@pytest.mark.promise("E-43", "E-58", "E-64")
async def test_limits_cannot_be_raised(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    result = await sandbox.run(program(raise_limits, attempt, system_call))

    assert isinstance(result.value, dict), result.stderr
    said: dict[str, Any] = dict(result.value)
    assert said.pop("after exec") == "(256, 256) (1, 1)"
    # Who asks for a core is told yes, and has none: the limit stays 1.
    assert said.pop("CORE") == ["done", "done"]
    assert "NOFILE" in said
    if backend.name == "runsc":
        # gVisor keeps nice values and never uses them.
        assert said.pop("nice") == "done"
    flat = [
        how
        for each in said.values()
        for how in (each if isinstance(each, list) else [each])
    ]
    assert "done" not in flat, said


@pytest.mark.promise("E-44")
def test_hosts_with_many_threads_start_cells(backend: BackendRow) -> None:
    """Each thread opens a manager of its own: forks in the midst of threads."""
    if backend.name != "subprocess":
        pytest.skip("only this backend starts processes")
    with ThreadPoolExecutor(64) as pool:
        runs = [
            pool.submit(run, f"{number}", config=backend.config())
            for number in range(64)
        ]
        values = [each.result(timeout=280).value for each in runs]

    assert values == list(range(64))


@pytest.mark.promise("E-44", "E-60")
async def test_64_starts_at_once(sandbox: SandboxManager, backend: BackendRow) -> None:
    # gVisor's own kernel starts for each: half a second of two CPUs.
    count = 16 if backend.name == "runsc" else 64
    values: dict[int, Any] = {}

    async def one(number: int) -> None:
        values[number] = (await sandbox.run(f"{number}")).value

    with anyio.fail_after(280):
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)

    assert values == {number: number for number in range(count)}


AS_USER = """
import site, sys
site.addsitedir(sys.argv[1])
import anyio, json
from toolcell.sandbox import SandboxConfig, SandboxManager

async def main():
    async with SandboxManager(SandboxConfig(backend="subprocess")) as manager:
        result = await manager.run(sys.stdin.read())
        print(json.dumps(result.to_json()))

anyio.run(main)
"""


def run_as_nobody(code: str) -> dict[str, Any]:
    """Run a program through a host that is an ordinary user."""
    need_an_ordinary_user()
    packages = str(Path(pytest.__file__).parents[1])
    # Another user may be unable to enter the folder of this interpreter.
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/bin/{version}"):
        with suppress(PermissionError, FileNotFoundError):
            done = subprocess.run(
                [python, "-c", AS_USER, packages],
                input=code,
                user="nobody",
                group="nogroup",
                extra_groups=[],
                cwd="/",
                env={"PATH": os.environ["PATH"]},
                capture_output=True,
                text=True,
                timeout=180,
            )
            assert done.returncode == 0, done.stderr
            result: dict[str, Any] = json.loads(done.stdout)
            return result
    pytest.skip("there is no interpreter that an ordinary user may start")


@pytest.mark.promise("E-36", "E-41", "E-42", "E-73")
def test_the_supervisor_of_an_ordinary_user_is_out_of_reach() -> None:
    result = run_as_nobody(program(reach_supervisor, attempt, system_call))

    assert result["status"] == "ok", result
    reached = {name for name, how in result["value"].items() if how == "done"}
    # One uid for both: the kernel lets it ask PID 1, but drops every signal.
    asked = {name for name in reached if name.startswith("signal ")}
    assert reached - asked <= {"priority", "affinity"}, result["value"]


@pytest.mark.promise("E-42")
@pytest.mark.namespaces
def test_signals_of_an_ordinary_users_program_change_nothing() -> None:
    result = run_as_nobody("import os\nos.kill(1, 9), os.kill(1, 19)\n'alive'")

    assert (result["status"], result["value"]) == ("ok", "alive")
