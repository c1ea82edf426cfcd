"""What other systems let through or leave behind, one row a test (see
tests/sandbox/test_requirements_runs.py)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import anyio
import pytest

from toolcell.sandbox import ExecutionResult, Limits, SandboxManager
from toolcell.sandbox.backends.container_spec import OWNER_LABEL
from toolcell.sandbox.machine.process_identity import this_process

from ..conftest import BackendRow

pytestmark = pytest.mark.anyio


def has_our_user(result: ExecutionResult) -> bool:
    """Say whether a program had the user of this process, as in some confined cells."""
    assert result.isolation is not None
    isolation = result.isolation
    return isolation.level == "confined" and "own_uid" not in isolation.layers


@pytest.mark.promise("RG-08")
async def test_a_cell_is_locked_down_by_default(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = """
import os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status"))
wanted = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"]
found = {name: int(status[name], 16) for name in wanted if name in status}
try:
    open("/usr/new", "w")
except OSError as error:
    found["root"] = error.strerror
[found, 0 in (os.getuid(), os.geteuid(), os.getgid())]
"""
    result = await sandbox.run(code)

    assert isinstance(result.value, list)
    found, is_root = result.value
    assert isinstance(found, dict)
    assert found.pop("root") in ("Read-only file system", "Permission denied")
    ours_is_root = 0 in (os.getuid(), os.getgid())
    assert is_root is (has_our_user(result) and ours_is_root)
    walls = {"Seccomp": 2, "NoNewPrivs": 1}
    empty = {"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapBnd": 0, "CapAmb": 0}
    if backend.name == "runsc":
        # gVisor's /proc does not show these two.
        del walls["NoNewPrivs"], empty["CapAmb"]
    assert result.isolation is not None
    if backend.name == "confined" and "no_bounding_set" not in result.isolation.layers:
        # Only a process with CAP_SETPCAP can empty it.
        del empty["CapBnd"], found["CapBnd"]
    assert found == walls | empty


@pytest.mark.promise("RG-14")
async def test_nothing_of_the_host_leaks_in(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-51f0")
    monkeypatch.setenv("PYTHONSTARTUP", "canary-51f0")
    secret = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(secret, True)
    code = """
import os
[sorted(os.environ), os.getuid(), sorted(map(int, os.listdir("/proc/self/fd")))]
"""
    try:
        async with SandboxManager(backend.config(env={"MINE": "1"})) as sandbox:
            result = await sandbox.run(code)
    finally:
        os.close(secret)

    assert isinstance(result.value, list)
    names, uid, descriptors = result.value
    base = {"HOME", "LANG", "MPLBACKEND", "PATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR"}
    base |= {"LOGNAME", "USER"}
    assert isinstance(names, list)
    assert set(names) - {"LC_CTYPE"} == base | {"MINE"}
    assert (uid == os.getuid()) is has_our_user(result)
    # Standard streams, the result pipe, and the listing itself.
    assert isinstance(descriptors, list)
    assert descriptors[:3] == [0, 1, 2]
    assert len(descriptors) <= 5


@pytest.mark.promise("RA-09", "RO-08", "RO-09")
async def test_only_its_own_folder_is_there(
    sandbox: SandboxManager, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret")
    code = """
import os
seen = []
up = "/.." * os.getcwd().count("/")
for path in (canary, os.getcwd() + up + canary, "/etc/shadow"):
    try:
        open(path).read()
    except OSError as error:
        continue
    seen.append(path)
[seen, os.listdir("."), os.listdir(os.environ["TMPDIR"])]
"""
    inputs = {"canary": str(canary)}
    result = await sandbox.run(code, inputs=inputs)

    assert result.value == [[], ["main.py"], []]


@pytest.mark.promise("RO-06")
async def test_a_program_is_really_run(sandbox: SandboxManager) -> None:
    code = "import hashlib\nhashlib.sha256(text.encode()).hexdigest()[:8]"
    result = await sandbox.run(code, inputs={"text": "toolcell"})

    assert result.value == hashlib.sha256(b"toolcell").hexdigest()[:8]


@pytest.mark.promise("RO-07")
@pytest.mark.parametrize("command", ["true; rm -rf", "env rm -rf", "exec rm -rf"])
async def test_no_word_of_a_shell_reaches_the_host(
    sandbox: SandboxManager, tmp_path: Path, command: str
) -> None:
    canary = tmp_path / "canary"
    canary.write_text("still here")
    result = await sandbox.run(f"{command} '{tmp_path}' ./x", language="bash")

    assert result.status == "ok"
    assert canary.read_text() == "still here"


MARK = "86399.25"
"""Seconds that only these tests sleep, to know their processes by."""

_ENDLESS = f"""
import subprocess, sys
for _ in range(2):
    subprocess.Popen(["setsid", "sleep", "{MARK}"])
print("on", flush=True)
while True: pass
"""


def at_large(backend: BackendRow) -> set[str]:
    """Return our containers, or the marked processes of this machine."""
    if backend.options["backend"] == "subprocess":
        return {str(path) for path in Path("/proc").glob("[0-9]*") if is_marked(path)}
    import docker

    client = docker.from_env()
    try:
        label = f"{OWNER_LABEL}={this_process()}"
        containers = client.api.containers(all=True, filters={"label": label})
    finally:
        client.close()
    return {container["Id"] for container in containers}


def is_marked(process: Path) -> bool:
    try:
        return MARK.encode() in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.promise("RG-16")
async def test_a_timeout_leaves_nothing(backend: BackendRow) -> None:
    before, during = at_large(backend), set()
    async with SandboxManager(backend.config()) as sandbox:
        result = await sandbox.run(
            _ENDLESS,
            limits=Limits(wall_seconds=2),
            on_output=lambda stream, data: during.update(at_large(backend)),
        )

    assert result.status == "timeout"
    assert during - before
    assert at_large(backend) <= before


@pytest.mark.promise("RG-18", "RO-10")
async def test_cancelling_kills_before_control_returns(backend: BackendRow) -> None:
    before, during = at_large(backend), set()
    scope = anyio.CancelScope()

    def cancel(stream: str, data: bytes) -> None:
        during.update(at_large(backend))
        scope.cancel()

    async with SandboxManager(backend.config()) as sandbox:
        with scope:
            await sandbox.run(_ENDLESS, on_output=cancel)

        assert scope.cancelled_caught
        assert during - before
        assert at_large(backend) <= before
        assert sandbox.active_cells == 0
        assert (await sandbox.run("1")).value == 1


_COUNT_OTHERS = """
import os
names = [name for name in os.listdir("/proc") if name.isdigit()]
lines = []
for name in names:
    try:
        lines.append(open(f"/proc/{name}/cmdline").read())
    except OSError:
        pass
sum("sleep" in line.split("\\0")[0] for line in lines)
"""


@pytest.mark.promise("RG-17", "RO-07")
@pytest.mark.parametrize(
    ("code", "limits", "status"),
    [
        ("import subprocess\nsubprocess.Popen(['sleep', '600'])", None, "ok"),
        (
            "import subprocess\nsubprocess.run(['sleep', '600'])",
            Limits(wall_seconds=0.5),
            "timeout",
        ),
        (
            "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '600'])\n1/0",
            None,
            "error",
        ),
    ],
)
async def test_grandchildren_end_with_their_run(
    sandbox: SandboxManager, code: str, limits: Limits | None, status: str
) -> None:
    async with sandbox.session() as session:
        with anyio.fail_after(60):
            result = await session.run(code, fresh=True, limits=limits)
        left = await session.run(_COUNT_OTHERS, fresh=True)

    assert result.status == status
    assert (left.status, left.value) == ("ok", 0)


@pytest.mark.promise("RO-11")
async def test_a_busy_program_blocks_nobody_else(sandbox: SandboxManager) -> None:
    started = anyio.Event()

    async def busy() -> None:
        code = "print('on', flush=True)\nwhile True: pass"
        await sandbox.run(code, on_output=lambda stream, data: started.set())
        pytest.fail("it came to an end")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(busy)
        await started.wait()
        result = await sandbox.run("2")
        tasks.cancel_scope.cancel()

    assert (result.status, result.value) == ("ok", 2)
