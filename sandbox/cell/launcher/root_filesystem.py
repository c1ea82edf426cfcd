"""Builds the root file system of cells made of namespaces: private and read-only."""

from __future__ import annotations

import os
import re

from ..kernel import linux
from ..wire import aliases, terminals, trust
from ..wire.contract import USER_NAME
from ..workdir import scratch

_STAGE = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_MASKED = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kallsyms",
    "/proc/sched_debug",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
)

_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\n"
    f"{USER_NAME}:x:{{uid}}:{{uid}}:{USER_NAME}:{{work}}:/bin/sh\n",
    "group": f"root:x:0:\n{USER_NAME}:x:{{uid}}:\n",
    "hosts": "{hosts}",
    "host.conf": "multi on\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# mountinfo writes spaces and backslashes as \\040 and \\134.
_ESCAPE = re.compile(r"\\([0-7]{3})")
_workdir = ""


class MountError(Exception):
    """A path of the host cannot be mounted, or is not the one that was checked."""


def build(
    show: list[str],
    hide: list[str],
    mounts: list[tuple[str, str, bool]],
    workdir: str,
    uid: int,
    hosts: str,
    trusted: str,
) -> None:
    """Make the root that all cells share and move the caller into it.

    Args:
        show: Host paths to show read-only at the same place.
        hide: Folders below these that are empty in cells.
        mounts: Host path without links, path in cells, and read-only flag of each.
        workdir: The folder that programs run in; a mount point for scratch space.
        uid: The uid that programs have, for /etc/passwd.
        hosts: The text of /etc/hosts.
        trusted: The certificates that programs trust; empty for the system's alone.

    Raises:
        MountError: One of `mounts` cannot be made.
        OSError: The kernel refused another part of it.
    """
    global _workdir
    _workdir = workdir
    linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("tmpfs", _STAGE, "tmpfs", flags, "mode=0755,size=4m")
    os.mkdir(f"{_STAGE}/old")
    os.mkdir(f"{_STAGE}/new")
    linux.pivot_root(_STAGE, f"{_STAGE}/old")
    os.chdir("/")
    _make_dirs(workdir)
    _make_dev()
    _make_etc({"uid": str(uid), "work": workdir, "hosts": hosts})
    _show(show)
    for path in hide:
        linux.mount("tmpfs", "/new" + path, "tmpfs", flags | linux.MS_RDONLY, "size=4k")
    aliases.make("/new" + aliases.FOLDER)
    if trusted:
        trust.make(trust.FOLDER, trusted, root="/new")
    for source, target, read_only in mounts:
        _mount(source, target, read_only)
    _bind("/old/proc", "/new/proc")
    linux.mount("/new", "/new", "", linux.MS_BIND | linux.MS_REC)
    linux.umount("/old")
    os.chdir("/new")
    linux.pivot_root(".", ".")
    linux.umount(".")
    os.chdir("/")
    _remount("/", linux.MS_RDONLY)


def _make_dirs(workdir: str) -> None:
    for path in ("/proc", "/dev/shm", "/etc", "/tmp", "/var/tmp", "/root", workdir):
        os.makedirs("/new" + path, mode=0o755, exist_ok=True)


def _make_dev() -> None:
    for name in _DEVICES:
        _bind(f"/old/dev/{name}", f"/new/dev/{name}")
    os.symlink("/proc/self/fd", "/new/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"/new/dev/{name}")
    os.mkdir(f"/new{terminals.FOLDER}")
    os.symlink("pts/ptmx", "/new/dev/ptmx")


def _make_etc(values: dict[str, str]) -> None:
    for name, text in _ETC.items():
        with open(f"/new/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text.format(**values))


def _show(paths: list[str]) -> None:
    shown = []
    for path in paths:
        source, target = "/old" + path, "/new" + path
        if os.path.lexists(target) or not os.path.lexists(source):
            continue
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
            continue
        _bind(source, target)
        shown.append(target)
    for point in _mount_points(shown):
        _remount(point, linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV)


def _mount(source: str, target: str, read_only: bool) -> None:
    source_path, path = "/old" + source, "/new" + target
    flags = linux.MS_NOSUID | linux.MS_NODEV | (linux.MS_RDONLY if read_only else 0)
    try:
        held = os.open(source_path, os.O_PATH)
        # The open descriptor cannot change any more; what the path leads to can.
        this = f"/old/proc/self/fd/{held}"
        if os.readlink(this) != source_path:
            raise MountError(f"mount {target}: {source} has become a link")
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        _bind(this, path)
        os.close(held)
        for point in _mount_points([path]):
            _remount(point, flags)
    except OSError as error:
        raise MountError(f"mount {target}: {error.strerror}") from None


def _bind(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
    linux.mount(source, target, "", linux.MS_BIND | linux.MS_REC)


def _mount_points(below: list[str]) -> list[str]:
    """Return these and every mount under them: a remount covers one mount only."""
    folders = tuple(path + "/" for path in below)
    points = []
    with open("/old/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            point = _ESCAPE.sub(lambda m: chr(int(m[1], 8)), line.split()[4])
            if f"{point}/".startswith(folders):
                points.append(point)
    return points


def _remount(path: str, flags: int) -> None:
    # The kernel refuses to clear flags that an outer namespace has locked.
    held = os.statvfs(path).f_flag
    keep = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_RDONLY
    keep |= os.ST_NOATIME | os.ST_NODIRATIME | os.ST_RELATIME
    linux.mount(
        "none", path, "", linux.MS_BIND | linux.MS_REMOUNT | flags | (held & keep)
    )


def masks() -> list[str]:
    """Return the existing files of /proc that a cell must not see."""
    return [path for path in _MASKED if os.path.exists(path)]


def finish(
    masked: list[str], disk_mib: int, uid: int, *, renews: bool
) -> dict[str, int]:
    """Mount /proc, terminals and scratch space in the namespaces of one cell.

    Args:
        masked: Files of /proc that are hidden.
        disk_mib: The size of each scratch space.
        uid: The programs' user.
        renews: True if several programs use the cell.

    Returns:
        Descriptors of what only the caller can write to, as /proc is read-only from
        then on: its own `oom_score_adj`, settings of the network, and, where several
        programs use the cell, the last process number.
    """
    flags = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", "/proc", "proc", flags | linux.MS_NOEXEC)
    own = {"oom_score": os.open("/proc/self/oom_score_adj", os.O_RDWR)}
    own["network"] = os.open("/proc/sys/net/ipv4", os.O_PATH)
    if renews:
        own["last_pid"] = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)
    readonly = flags | linux.MS_NOEXEC | linux.MS_RDONLY
    linux.mount("proc", "/proc", "proc", readonly)
    for path in masked:
        linux.mount("/dev/null", path, "", linux.MS_BIND)
    scratch.mount(_workdir, disk_mib, uid)
    return own


def hide_first_process() -> None:
    """Hide from all processes of a cell what /proc shows of the caller, its first one.

    Raises:
        OSError: The kernel refused.
    """
    linux.mount("none", "/proc/1", "tmpfs", linux.MS_RDONLY)
