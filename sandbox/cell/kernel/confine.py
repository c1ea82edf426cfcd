"""What a process gives up, for good, before it runs untrusted code."""

from __future__ import annotations

import errno
import os
import resource
import sys

from . import seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


_RLIMITS = {
    "memory": resource.RLIMIT_AS,
    "processes": resource.RLIMIT_NPROC,
    "open_files": resource.RLIMIT_NOFILE,
    "cpu": resource.RLIMIT_CPU,
}


_NICE = 5
FIRST_TO_GO = b"1000"
"""The `oom_score_adj` of programs."""


# Reasons why layers could not be put up, by layer; a fork inherits them.
_failures: dict[str, str] = {}


class ConfineError(Exception):
    """A layer that this cell was asked to have does not hold."""


def seal(*, own_user: bool, renews: bool = False) -> list[str]:
    """Give up, in a cell's first process, what no process of the cell may ever have.

    What it forks inherits this. One filter of system calls serves all runs of a cell:
    what the kernel makes of a filter is in one account of the whole machine.

    Args:
        own_user: Whether programs run as `CELL_UID`, not as the host's user.
        renews: Whether this process makes namespaces and mounts for each program. Its
            filter allows that, and each program puts up the narrower one as well.

    Returns:
        The names of the layers that hold.
    """
    refuse_cores()
    held: list[str] = []
    _try(held, "no_new_privileges", _no_new_privileges)
    if renews:
        seccomp.install(own_user=own_user, renews=True)
    else:
        _try(held, "seccomp", lambda: seccomp.install(own_user=own_user))
    return held


def refuse_cores() -> None:
    """Have a crash leave no core, neither in a file nor with the machine's handler.

    With a limit of 1 byte Linux starts no handler, since that is how it marks handlers;
    with 0 it starts one, as root. Only root can raise a hard limit of 0 to 1.
    """
    wanted = 1 if sys.platform == "linux" else 0
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (wanted, wanted))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def confine(settings: dict[str, Any]) -> list[str]:
    """Confine a program's process and return the names of the layers that hold.

    Raises:
        ConfineError: A layer in `settings["require"]` could not be had.
    """
    _prefer_for_oom_kill()
    # The supervisor shares the cell's CPU time and must not starve.
    os.nice(_NICE)
    set_rlimits(settings["rlimits"])
    held = ["rlimits", *settings["held"]]
    if settings["renews"]:
        seccomp.close()
        held.append("seccomp")
    uid = settings["uid"]
    if uid is not None and os.getuid() != uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        held.append("own_uid")
    _try(held, "no_capabilities", _drop_capabilities)
    _allow_own_proc()
    # A container engine may have set a layer that this Python cannot.
    held += [name for name in settings["require"] if name not in held and _stands(name)]
    missing = [layer for layer in settings["require"] if layer not in held]
    if missing:
        raise ConfineError("missing layers: " + ", ".join(map(_with_reason, missing)))
    return held


def limit_memory(address_space: int) -> None:
    """Let the caller add so many bytes to its address space; 0 sets no limit."""
    if address_space:
        set_rlimits({"memory": _address_space() + address_space})


def set_rlimits(limits: dict[str, int]) -> None:
    """Set soft and hard limits; a CPU limit gets one second to die of SIGXCPU."""
    for name, value in limits.items():
        kind = _RLIMITS[name]
        hard = resource.getrlimit(kind)[1]
        top = value + 1 if name == "cpu" else value
        if hard != resource.RLIM_INFINITY:
            top = min(top, hard)
        resource.setrlimit(kind, (min(value, top), top))


def _with_reason(layer: str) -> str:
    reason = _failures.get(layer)
    return f"{layer} ({reason})" if reason else layer


def _stands(layer: str) -> bool:
    """Ask the kernel whether a layer holds that we could not put up ourselves."""
    try:
        with open("/proc/self/status", encoding="utf-8") as file:
            fields = [line.partition(":") for line in file]
    except OSError:
        return False
    status = {name: value.strip() for name, _, value in fields}
    if layer == "no_capabilities":
        return int(status.get("CapPrm", "1"), 16) == 0
    name, value = _STATUS_FIELDS.get(layer, ("", ""))
    return status.get(name) == value


def _address_space() -> int:
    """Return the bytes of address space that the interpreter itself takes."""
    try:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 64 * 1024 * 1024


def _try(held: list[str], layer: str, step: Callable[[], None]) -> None:
    try:
        step()
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "no errno")
        _failures[layer] = f"{name}: {error.strerror or error}"
    except ImportError as error:
        _failures[layer] = str(error)
    else:
        held.append(layer)


def _prefer_for_oom_kill() -> None:
    """Be the one that the kernel kills, never the supervisor.

    What a process with CAP_SYS_RESOURCE writes, none without it can lower.
    """
    _allow_own_proc()
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, FIRST_TO_GO)
        os.close(fd)
    except OSError:
        pass


def _drop_capabilities() -> None:
    from . import linux

    linux.drop_capabilities()


def _no_new_privileges() -> None:
    from . import linux

    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _allow_own_proc() -> None:
    """Let this process open its own files in /proc.

    The supervisor is not dumpable, nor is who has just changed its user; neither could.
    """
    try:
        from . import linux

        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    except (OSError, ImportError):
        pass


_STATUS_FIELDS = {"no_new_privileges": ("NoNewPrivs", "1"), "seccomp": ("Seccomp", "2")}
