"""The confinement of a Docker cell: the arguments of one `create` call."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from typing import Any

from ..cell.kernel.bpf import Test
from ..cell.kernel.calls import allowed_calls
from ..cell.kernel.seccomp import RULES
from ..cell.wire import aliases, terminals, trust
from ..cell.wire.contract import CELL_UID
from ..config.mount_rules import Bind
from ..config.settings import Limits
from ..machine import process_identity
from .cell_bundle import ENVIRONMENT, command

OWNER_LABEL = "dev.toolcell.owner"
MACHINE_LABEL = "dev.toolcell.place"
CAPABILITIES = ("SETUID", "SETGID", "SETPCAP", "KILL")
"""The supervisor needs these to become, and to kill, the program's user. With SETPCAP
it empties the bounding set, so that no program can have a capability."""

_OWN_KERNEL = ("runsc", "gvisor", "kata")
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH")
_FILES_PER_MB = 256
# The supervisor makes names of the image's interpreter here; programs cannot write.
_ALIASES = os.path.dirname(aliases.FOLDER)
_MOUNT_FLAGS = "nosuid,nodev,exec"


@functools.cache
def seccomp_profile() -> str:
    """Return the cell's system call list as the engine's JSON profile.

    An engine can allow a call for some values of one argument, of several rules by the
    last. The others are only in the filter that the cell itself installs.
    """
    names = {*allowed_calls("x86_64"), *allowed_calls("aarch64")}
    tests = {
        rule.call: rule.tests[0]
        for rule in RULES
        if len(rule.tests) == 1 and _can_be_stated(rule.tests[0])
    }
    rules: list[dict[str, Any]] = [
        {"names": sorted(names - tests.keys()), "action": "SCMP_ACT_ALLOW"},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
        *(
            _allow_if(call, test, value)
            for call, test in tests.items()
            for value in test.values
        ),
    ]
    return json.dumps(
        {
            "defaultAction": "SCMP_ACT_ERRNO",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
            "syscalls": rules,
        }
    )


def _can_be_stated(test: Test) -> bool:
    return not test.inside and all(isinstance(value, int) for value in test.values)


def _allow_if(name: str, test: Test, value: int) -> dict[str, Any]:
    argument = {"index": test.argument, "value": value, "op": "SCMP_CMP_EQ"}
    if test.mask:
        argument |= {"value": test.mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument]}


def has_own_kernel(runtime: str | None) -> bool:
    """Return True if a runtime of this name gives containers their own kernel."""
    return (runtime or "").lower().startswith(_OWN_KERNEL)


def writable(work_dir: str) -> tuple[str, ...]:
    """Return the folders that programs can write to, but for mounts of the host.

    The engine mounts the one of POSIX queues.
    """
    return (work_dir, "/tmp", "/dev/shm", "/dev/mqueue")  # noqa: S108 - the cell's own


def in_memory(work_dir: str) -> tuple[str, ...]:
    """Return the paths of a cell's own file systems in memory."""
    return (_ALIASES, work_dir, "/tmp", "/dev/shm")  # noqa: S108 - the cell's own


def trusted(inspect: Sequence[str]) -> dict[str, str]:
    """Return the file system for the certificates of inspected hosts, if any are."""
    options = f"size=2m,nr_inodes=16,mode=0755,{_MOUNT_FLAGS}"
    return {trust.FOLDER: options} if inspect else {}


def labels() -> dict[str, str]:
    """Return the labels that name a container's owner and its machine."""
    return {
        OWNER_LABEL: process_identity.this_process(),
        MACHINE_LABEL: process_identity.machine_id(),
    }


def container_arguments(
    image: str,
    image_env: list[str],
    runtime: str | None,
    limits: Limits,
    binds: list[Bind],
    covers: dict[str, str],
    work_dir: str,
    volumes: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return the body of the engine's create call for one cell.

    Args:
        image: Its id.
        image_env: Its environment, as NAME=value.
        runtime: The engine's runtime; None for the engine's default.
        limits: The limits of the cell.
        binds: Paths of the host that the cell is shown.
        covers: Tmpfs mounts over the image's volumes; see `docker_volumes`.
        work_dir: The path of the work dir.
        volumes: Mounts of the engine's own volumes.
    """
    return {
        "Image": image,
        "Entrypoint": [*command("python3", "supervisor.main", 0, 1)],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "cell",
        "Env": _environment(image_env),
        "Labels": labels(),
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_host_config(runtime, limits, covers, work_dir),
            "Mounts": [
                *(_mount(bind) for bind in binds),
                *volumes,
                *([] if has_own_kernel(runtime) else [_terminals()]),
            ],
        },
    }


def path_of(image_env: list[str]) -> str:
    """Return the PATH of an image that has these variables; empty if it has none."""
    pairs = (entry.partition("=") for entry in image_env)
    return next((value for name, _, value in pairs if name == "PATH"), "")


def _environment(image_env: list[str]) -> list[str]:
    names = (entry.partition("=")[0] for entry in image_env)
    # A name without "=" removes the image's variable.
    removed = [name for name in names if name not in _KEPT_VARIABLES]
    return removed + [f"{name}={value}" for name, value in ENVIRONMENT.items()]


def _mount(bind: Bind) -> dict[str, Any]:
    # Older engines leave what is mounted below a read-only folder writable.
    return {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


def _terminals() -> dict[str, Any]:
    """Return a mount of pseudo-terminals, few enough to leave others theirs."""
    options = {"type": "devpts", "device": "devpts"}
    # The engine's own mount has as many as the kernel has left.
    options["o"] = f"nosuid,noexec,{terminals.OPTIONS},{terminals.MOST}"
    return {
        "Type": "volume",
        "Target": terminals.FOLDER,
        "VolumeOptions": {
            "NoCopy": True,
            "DriverConfig": {"Name": "local", "Options": options},
        },
    }


def _host_config(
    runtime: str | None, limits: Limits, covers: dict[str, str], work_dir: str
) -> dict[str, Any]:
    memory = limits.memory_mib << 20
    size = f"size={limits.disk_mib}m,nr_inodes={limits.disk_mib * _FILES_PER_MB}"
    config: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "ReadonlyRootfs": True,
        "Privileged": False,
        "Init": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp_profile()}"],
        "Tmpfs": {
            **covers,
            _ALIASES: f"size=64k,nr_inodes=16,mode=0755,{_MOUNT_FLAGS}",
            work_dir: f"{size},mode=0700,uid={CELL_UID},gid={CELL_UID},{_MOUNT_FLAGS}",
            "/tmp": f"{size},mode=1777,{_MOUNT_FLAGS}",  # noqa: S108 - the cell's own
            "/dev/shm": f"{size},mode=1777,{_MOUNT_FLAGS}",  # noqa: S108 - the same
        },
        "Memory": memory,
        "MemorySwap": memory,
        "NanoCpus": int(limits.cpus * 1_000_000_000),
        "PidsLimit": limits.pids,
        "OomScoreAdj": 500,
        # Only a limit of 1 byte also keeps the kernel from starting a core handler.
        "Ulimits": [{"Name": "core", "Soft": 1, "Hard": 1}],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
    }
    if runtime is not None:
        config["Runtime"] = runtime
    return config
