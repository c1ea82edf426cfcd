"""What a container is allowed, seen from the engine and from inside."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from toolcell.core import ConfigError
from toolcell.sandbox import SandboxConfig, SandboxManager, Session
from toolcell.sandbox.backends.container_spec import OWNER_LABEL
from toolcell.sandbox.machine import process_identity
from toolcell.sandbox.spi import build_image

from ..conftest import BackendRow, missing, why_no_docker
from ..support.attacks.as_programs import attempt, program, value_of

pytestmark = pytest.mark.anyio

ENGINE_SOCKETS = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/var/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
)


@pytest.fixture
def engine() -> Iterator[Any]:
    if why := why_no_docker(None):
        missing(why)
    client = docker.from_env()
    yield client.api
    client.close()


def our_containers(engine: Any) -> list[dict[str, Any]]:
    """Inspect the live containers of this process."""
    label = f"{OWNER_LABEL}={process_identity.this_process()}"
    found = engine.containers(filters={"label": label})
    return [engine.inspect_container(each["Id"]) for each in found]


@pytest.mark.promise(
    "E-14", "E-16", "E-17", "E-18", "E-19", "E-20", "E-24", "E-25", "E-47", "E-59"
)
async def test_the_engine_was_told_to_give_nothing(
    cell: Session, backend: BackendRow, engine: Any
) -> None:
    if backend.options["backend"] != "docker":
        pytest.skip("there is no engine in this backend")
    containers = our_containers(engine)

    assert containers
    for container in containers:
        host, config = container["HostConfig"], container["Config"]
        assert host["Privileged"] is False
        assert host["CapDrop"] == ["ALL"]
        added = [name.removeprefix("CAP_") for name in host["CapAdd"]]
        assert sorted(added) == ["KILL", "SETGID", "SETPCAP", "SETUID"]
        assert (host["Binds"], host["VolumesFrom"]) == (None, None)
        mounts = {mount["Destination"]: mount["RW"] for mount in container["Mounts"]}
        # Where the kernel is the host's: pseudo-terminals, and few.
        terminals = {} if backend.name == "runsc" else {"/dev/pts": True}
        assert mounts == {"/etc/hosts": False, **terminals}
        assert len(host["Mounts"]) == len(mounts)
        scratch = dict(host["Tmpfs"])
        names = scratch.pop("/python").split(",")
        assert {"mode=0755", "nr_inodes=16", "size=64k"} < set(names)
        assert set(scratch) == {"/work", "/tmp", "/dev/shm"}
        for options in scratch.values():
            assert "size=64m" in options and "nr_inodes=16384" in options
        assert host["Devices"] in (None, [])
        assert host["ReadonlyRootfs"] is True
        assert host["NetworkMode"] == "none"
        assert config["NetworkDisabled"] is True
        assert (host["PidMode"], host["UTSMode"], host["IpcMode"]) == (
            "",
            "",
            "private",
        )
        assert config["Tty"] is False
        assert host["LogConfig"]["Type"] == "none"
        assert host["Memory"] == host["MemorySwap"] == 256 << 20
        assert host["PidsLimit"] == 64
        assert host["OomScoreAdj"] >= 500
        assert host["RestartPolicy"]["Name"] == "no"
        assert host["AutoRemove"] is True
        options = [option.partition("=")[0] for option in host["SecurityOpt"]]
        assert sorted(options) == ["no-new-privileges", "seccomp"]
        assert "/proc/kcore" in host["MaskedPaths"]
        assert "/proc/sys" in host["ReadonlyPaths"]


def identity() -> dict[str, Any]:
    import ctypes
    import os

    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    return {
        "ids": sorted({*os.getresuid(), *os.getresgid()}),
        "groups": os.getgroups(),
        "capabilities": [status.get(name, "0") for name in sets],
        "no new privileges": ctypes.CDLL(None).prctl(39, 0, 0, 0, 0),
        "seccomp": status["Seccomp"].strip(),
        "become root": attempt(lambda: os.setuid(0)),
        "join root": attempt(lambda: os.setgid(0)),
        "give away": attempt(lambda: os.chown("/tmp", 0, 0)),
    }


@pytest.mark.promise("E-14", "E-17", "E-18")
@pytest.mark.smoke
async def test_programs_have_no_rights(cell: Session) -> None:
    said = await value_of(cell, program(identity, attempt))

    assert (said["ids"], said["groups"]) == ([10_001], [])
    assert {int(capability, 16) for capability in said["capabilities"]} == {0}
    assert (said["no new privileges"], said["seccomp"]) == (1, "2")
    # No such uid, where only one is mapped.
    assert {said["become root"], said["join root"]} <= {"EPERM", "EINVAL"}
    assert said["give away"] == "EPERM"


def setuid_programs() -> dict[str, str]:
    import os
    import stat
    import subprocess

    said = {}
    for folder in ("/usr/bin", "/usr/sbin", "/bin"):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            mode = os.stat(path).st_mode if os.path.exists(path) else 0
            if not stat.S_ISREG(mode) or not mode & stat.S_ISUID:
                continue
            null = subprocess.DEVNULL
            child = subprocess.Popen([path], stdin=null, stdout=null, stderr=null)
            # Ended but not yet waited for: its ids can still be read.
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            with open(f"/proc/{child.pid}/status") as file:
                said[path] = next(line for line in file if line.startswith("Uid:"))
            child.wait()
    return said


@pytest.mark.promise("E-18")
async def test_setuid_programs_keep_the_uid(cell: Session) -> None:
    said = await value_of(cell, program(setuid_programs))

    if not said:
        missing("there is no setuid program in this root")
    assert {tuple(line.split()[1:]) for line in said.values()} == {("10001",) * 4}


def writable_folders() -> list[str]:
    import os

    with open("/proc/self/mounts") as file:
        points = {line.split()[1] for line in file}
    tried = {"/", "/usr", "/usr/bin", "/etc", "/bin", "/lib", "/root", "/home", "/var"}
    tried |= {"/var/tmp", "/opt", "/run", "/sys/kernel", "/proc/sys", *points}
    return sorted(
        path
        for path in tried
        if os.path.isdir(path)
        and attempt(lambda p=path: open(f"{p}/planted", "x")) == "done"  # type: ignore[misc]
    )


@pytest.mark.promise("E-16", "E-19")
@pytest.mark.smoke
async def test_only_scratch_space_can_be_written(
    cell: Session, backend: BackendRow
) -> None:
    said = await value_of(cell, program(writable_folders, attempt))

    queues = {"/dev/mqueue"} if backend.name == "docker" else set()
    assert set(said) - queues == {"/work", "/tmp", "/dev/shm"}


def kernel_files() -> dict[str, str]:
    import os

    write = [
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv4/ping_group_range",
        "/proc/sys/user/max_user_namespaces",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/ksm/run",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory.max",
        "/proc/self/oom_score_adj",
    ]

    def masked(path: str) -> bool:
        try:
            return os.stat(path).st_rdev == os.stat("/dev/null").st_rdev
        except OSError:
            return False

    said = {
        f"write {path}": attempt(lambda path=path: os.open(path, os.O_WRONLY))  # type: ignore[misc]
        for path in write
        if not masked(path)
    }
    # Whoever may open it may still not lower it.
    adjust = "/proc/self/oom_score_adj"
    said[f"write {adjust}"] = attempt(
        lambda: os.write(os.open(adjust, os.O_WRONLY), b"-1000")
    )

    def content(path: str) -> str:
        try:
            with open(path, "rb") as file:
                return "content" if file.read(64) else "empty"
        except OSError:
            return "refused"

    # gVisor makes device nodes, but has no devices behind them.
    attempt(lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)))
    attempt(lambda: os.mknod("/tmp/memory", 0o20666, os.makedev(1, 1)))
    secret = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug")
    devices = ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/sda", "/dev/vda")
    for name in (*secret, *devices, "/tmp/disk", "/tmp/memory"):
        said[f"read {name}"] = content(name)
    return said


@pytest.mark.promise("E-21")
@pytest.mark.smoke
async def test_kernel_files_are_closed(cell: Session, backend: BackendRow) -> None:
    said = await value_of(cell, program(kernel_files, attempt))

    opened = {name for name, how in said.items() if how in ("done", "content")}
    if backend.name == "runsc":
        # gVisor keeps the number to itself; the host's is the engine's 500.
        opened -= {"write /proc/self/oom_score_adj"}
    assert opened == set(), said


def namespaces() -> dict[str, str]:
    import os

    return {
        name: os.readlink(f"/proc/self/ns/{name}")
        for name in os.listdir("/proc/self/ns")
        if not name.startswith("time")
    }


# The engine starts containers in its own user namespace unless it was told
# otherwise (userns-remap); there the other uid is the wall.
SHARED: dict[str, set[str]] = {
    "subprocess": set(),
    "cluster": set(),
    "docker": {"user"},
    "runsc": set(),
}


@pytest.mark.promise("E-20")
@pytest.mark.smoke
async def test_namespaces_are_not_the_hosts(cell: Session, backend: BackendRow) -> None:
    said = await value_of(cell, program(namespaces))

    host = {name: os.readlink(f"/proc/self/ns/{name}") for name in said}
    assert {name for name in said if said[name] == host[name]} <= SHARED[backend.name]
    assert {"pid", "net", "user"} <= said.keys()


@pytest.mark.promise("E-20")
async def test_no_wall_is_claimed_that_does_not_stand(cell: Session) -> None:
    result = await cell.run(program(namespaces), fresh=True)

    assert isinstance(result.value, dict) and result.isolation is not None
    kinds = {"user", "mount", "pid", "net", "ipc", "uts"}
    for layer in kinds & set(result.isolation.layers):
        name = "mnt" if layer == "mount" else layer
        here = os.readlink(f"/proc/self/ns/{name}")
        # gVisor's own kernel lists fewer kinds, and has none of the host's.
        assert result.value.get(name, "its own") != here, layer


def engine_doors(paths: list[str]) -> dict[str, str]:
    import socket

    def connect(family: int, address: Any) -> None:
        with socket.socket(family) as client:
            client.settimeout(2)
            client.connect(address)

    said = {p: attempt(lambda p=p: connect(socket.AF_UNIX, p)) for p in paths}  # type: ignore[misc]
    for host in ("172.17.0.1", "10.0.2.2", "host.docker.internal", "127.0.0.1"):
        for port in (2375, 2376, 10250, 6443):
            where = (host, port)
            said[f"{host}:{port}"] = attempt(
                lambda w=where: connect(socket.AF_INET, w)  # type: ignore[misc]
            )
    return said


@pytest.mark.promise("E-15")
@pytest.mark.smoke
async def test_no_engine_can_be_reached(cell: Session) -> None:
    code = program(engine_doors, attempt)
    said = await value_of(cell, code, paths=list(ENGINE_SOCKETS))

    assert "done" not in said.values(), said


@pytest.mark.promise("E-22")
@pytest.mark.parametrize("field", ["workdir", "cwd", "mounts", "volumes"])
def test_nobody_chooses_a_working_folder_or_a_mount(field: str) -> None:
    options: dict[str, Any] = {field: "/proc/self/fd/8"}
    with pytest.raises(ConfigError, match=field):
        SandboxConfig(**options)


@pytest.mark.promise("E-22")
async def test_the_working_folder_is_the_cells_own(cell: Session) -> None:
    said = await value_of(
        cell, "import os\n[os.getcwd(), os.readlink('/proc/self/cwd')]"
    )

    assert said == ["/work", "/work"]


@pytest.mark.promise("E-23")
async def test_the_runtimes_binary_stays_as_it_is(sandbox: SandboxManager) -> None:
    binaries = [path for name in ("runc", "runsc") if (path := shutil.which(name))]
    before = {path: stamp(path) for path in binaries}
    code = """
import os
for pid in (1, os.getpid()):
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        try:
            os.write(os.open(f"/proc/{pid}/exe", flags), b"canary")
        except OSError:
            continue
        raise SystemExit("it was written")
"""
    for _ in range(2):
        assert (await sandbox.run(code)).status == "ok"

    assert {path: stamp(path) for path in binaries} == before


def stamp(path: str) -> tuple[int, int, int]:
    info = Path(path).stat()
    return info.st_ino, info.st_size, info.st_mtime_ns


@pytest.mark.promise("E-25")
@pytest.mark.parametrize(
    ("version", "fixed"),
    [
        ("1.1.5+ds1-1+deb12u1", False),
        ("1.2.7", False),
        ("1.2.8", True),
        ("1.3.2", False),
        ("1.3.3", True),
        ("1.4.0", True),
    ],
)
def test_the_doctor_warns_of_an_old_runtime(version: str, fixed: bool) -> None:
    check = importlib.import_module("toolcell.sandbox.admin.doctor")._runc_check(
        version
    )

    assert check.ok is fixed
    assert fixed or "CVE-2025-52881" in check.fix


@pytest.mark.promise("E-26")
def test_an_image_build_takes_nothing_from_a_program() -> None:
    import inspect

    assert set(inspect.signature(build_image).parameters) == {
        "name", "base", "arguments", "tag", "on_step"
    }  # fmt: skip


@pytest.mark.promise("E-26", "E-27")
async def test_the_engine_never_sees_a_programs_text(
    sandbox: SandboxManager, backend: BackendRow, engine: Any
) -> None:
    if backend.options["backend"] != "docker":
        pytest.skip("there is no engine in this backend")
    async with sandbox.session() as session:
        code = "'marker-4711' + text"
        result = await session.run(code, fresh=True, inputs={"text": "marker-4712"})
        seen = str(our_containers(engine))

    assert result.value == "marker-4711marker-4712"
    assert "marker-471" not in seen


@pytest.mark.promise("E-36")
@pytest.mark.smoke
async def test_two_cells_do_not_see_each_other(sandbox: SandboxManager) -> None:
    code = "import os\nsorted(int(p) for p in os.listdir('/proc') if p.isdigit())"
    async with sandbox.session() as first, sandbox.session() as second:
        # Each looks while the other runs, held open by reading its own pipe.
        seen = [await each.run(code, fresh=True) for each in (first, second)]
        planted = await first.run("open('/tmp/planted', 'w').write('x')", fresh=True)
        looked = await second.run(
            "import os\nos.path.exists('/tmp/planted')", fresh=True
        )

    for result in seen:
        assert isinstance(result.value, list)
        # The supervisor, the process that forks for it, and the program.
        assert len(result.value) == 3
    assert (planted.value, looked.value) == (1, False)
