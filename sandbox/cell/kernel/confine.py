"""Confinement of a process, for good, before it runs untrusted code."""

from __future__ import annotations

import errno
import functools
import math
import os
import resource
import sys

from . import seccomp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .bpf import SyscallRule


_RLIMITS = {
    "processes": resource.RLIMIT_NPROC,
    "open_files": resource.RLIMIT_NOFILE,
    "cpu": resource.RLIMIT_CPU,
    "file_bytes": resource.RLIMIT_FSIZE,
}


NICE = 5
FIRST_TO_GO = b"1000"
"""The `oom_score_adj` of programs, the first ones that the kernel kills."""


# Reasons why layers could not be put up, by layer; a fork inherits them.
_failures: dict[str, str] = {}


class ConfineError(Exception):
    """A required layer of isolation does not hold."""


def seal(
    *,
    own_user: bool,
    renews: str = "",
    confined: str = "",
    rules: int | None = None,
) -> list[str]:
    """Confine a cell's first process as every process of the cell will be.

    Its forks inherit this. One filter of system calls serves all runs of a cell, as the
    memory of compiled filters is one account of the whole machine.

    Args:
        own_user: True if programs run as `CELL_UID`, not as the host's user.
        renews: How this process makes the cell new for each program. Its filter allows
            that, and each program installs the narrower one as well.
        confined: The user of programs of a cell without namespaces; else empty.
        rules: Rules of Landlock for this process; None without them.

    Returns:
        The names of the layers that hold.
    """
    refuse_cores()
    held: list[str] = []
    _try(held, "no_new_privileges", _no_new_privileges)
    if rules is not None:
        _try(held, "landlock", lambda: _enter_rules(rules))
    install = functools.partial(
        seccomp.install, own_user=own_user, renews=renews, confined=confined
    )
    if renews:
        install()
    else:
        _try(held, "seccomp", install)
    return held


def narrow(settings: dict[str, Any]) -> None:
    """Enter the rules of programs, in a fork of a process that was sealed.

    It comes first in the fork, which then closes their descriptor with all others.

    Raises:
        OSError: The kernel refused.
    """
    if settings["paths"]:
        from . import landlock

        landlock.enter(landlock.of_program(settings["paths"]).fd)
    elif settings["rules"] >= 0:
        _enter_rules(settings["rules"])


def stand_apart() -> list[str]:
    """Make this process untraceable, and children unable to gain capabilities.

    Returns:
        The names of the layers that hold.
    """
    try:
        from . import linux

        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        # Children inherit the bounding set, so this drops it for all of them.
        linux.drop_bounding_set()
    except (ImportError, OSError):
        # Without ctypes the other uid of the child is the protection.
        return []
    return ["no_bounding_set"]


def refuse_cores() -> None:
    """Prevent cores of crashes, both in files and with the machine's handler.

    With a limit of 1 byte Linux starts no handler, as this marks handlers themselves;
    with 0 it starts one, as root. Only root can raise a hard limit of 0 to 1.
    """
    wanted = 1 if sys.platform == "linux" else 0
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (wanted, wanted))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def confine(settings: dict[str, Any], *, closes_later: bool = False) -> list[str]:
    """Confine a program's process and return the names of the layers that hold.

    Args:
        settings: The confinement of every program of the cell.
        closes_later: True if the caller installs the narrower filter of a cell that is
            made new, once it knows which one its program gets.

    Raises:
        ConfineError: A layer in `settings["require"]` does not hold.
    """
    if not settings["first_to_go"]:
        _prefer_for_oom_kill()
    # The supervisor shares the cell's CPU time, and must not starve.
    os.nice(NICE)
    set_rlimits(settings["rlimits"])
    held = ["rlimits", *settings["held"]]
    if settings["renews"]:
        if not closes_later and not settings["confined"]:
            seccomp.close()
        held.append("seccomp")
    uid = settings["uid"]
    if uid is not None and os.getuid() != uid:
        _give_streams(uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        held.append("own_uid")
    _try(held, "no_capabilities", _drop_capabilities)
    if settings["confined"]:
        _await_notifier(settings)
        held += ["notifier"] if settings["served"] else []
    _allow_own_proc()
    # A container engine may have set up a layer that this Python cannot.
    held += [name for name in settings["require"] if name not in held and _stands(name)]
    missing = [layer for layer in settings["require"] if layer not in held]
    if missing:
        raise ConfineError("missing layers: " + ", ".join(map(_with_reason, missing)))
    return held


def _give_streams(uid: int) -> None:
    """Let a user open its own standard streams anew, by `/dev/stderr`."""
    for fd in (1, 2):
        try:
            os.fchown(fd, uid, uid)
        except OSError:
            # A container need not let its supervisor do that.
            return


def set_rlimits(limits: dict[str, int]) -> None:
    """Set soft and hard limits; SIGXCPU comes one second before a CPU limit kills."""
    for name, value in limits.items():
        kind = _RLIMITS[name]
        hard = resource.getrlimit(kind)[1]
        top = value + 1 if name == "cpu" else value
        if hard != resource.RLIM_INFINITY:
            top = min(top, hard)
        resource.setrlimit(kind, (min(value, top), top))


def limit_processes(more: int) -> None:
    """Limit the processes of this one's user on the whole machine, which it shares.

    Args:
        more: Those that a program may have, itself included, besides all that there
            are now; 0 changes nothing.
    """
    if not more:
        return
    from . import linux

    try:
        others = linux.other_processes()
    except OSError:
        others = 0
    set_rlimits({"processes": others + more})


def _with_reason(layer: str) -> str:
    reason = _failures.get(layer)
    return f"{layer} ({reason})" if reason else layer


def _stands(layer: str) -> bool:
    """Return True if the kernel reports a layer that this process did not set up."""
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
    """Make the kernel kill this process before the supervisor.

    A score written with CAP_SYS_RESOURCE cannot be lowered without it.
    """
    _allow_own_proc()
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, FIRST_TO_GO)
        os.close(fd)
    except OSError:
        pass


def fork_first_to_go(oom_score: int | None) -> int:
    """Fork a child that the kernel kills before this process when memory is short.

    The child inherits its score, and cannot change it in a read-only /proc.

    Args:
        oom_score: This process's own, opened for writing; None leaves it alone.

    Returns:
        As `os.fork`.
    """
    if oom_score is None:
        return os.fork()
    own = os.pread(oom_score, 16, 0)
    os.pwrite(oom_score, FIRST_TO_GO, 0)
    pid = os.fork()
    if pid:
        os.pwrite(oom_score, own, 0)
    return pid


def narrow_affinity(cpus: float) -> None:
    """Confine this process to as few CPUs as give `cpus`; 0 changes nothing.

    This replaces the CPU limit of a cgroup where there is none.
    """
    available = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    if 0 < wanted < len(available):
        first = int.from_bytes(os.urandom(2), "big")
        chosen = [available[(first + i) % len(available)] for i in range(wanted)]
        os.sched_setaffinity(0, chosen)


def _drop_capabilities() -> None:
    from . import linux

    linux.drop_capabilities()


def get_ready(settings: dict[str, Any]) -> None:
    """Assemble, before any fork, the filter that programs put up."""
    if settings["confined"]:
        from . import notification

        notification.prepared(*_notified(settings))


def _await_notifier(settings: dict[str, Any]) -> None:
    """Have some calls of this process and its forks wait for the notifier's answer."""
    from . import notification

    notification.install(settings["notifier"], *_notified(settings))


def _notified(
    settings: dict[str, Any],
) -> tuple[frozenset[str], tuple[SyscallRule, ...]]:
    """Return what the notifier serves, and rules that protect it."""
    from .confined_calls import protecting

    return frozenset(settings["served"]), protecting(*settings["keepers"])


def _enter_rules(rules: int) -> None:
    from . import landlock

    landlock.enter(rules)


def _no_new_privileges() -> None:
    from . import linux

    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def _allow_own_proc() -> None:
    """Let this process open its own files in /proc.

    A process that is not dumpable could not: one forked by the supervisor, or one that
    has just changed its user.
    """
    try:
        from . import linux

        linux.prctl(linux.PR_SET_DUMPABLE, 1)
    except (OSError, ImportError):
        pass


_STATUS_FIELDS = {"no_new_privileges": ("NoNewPrivs", "1"), "seccomp": ("Seccomp", "2")}
