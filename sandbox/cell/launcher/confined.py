"""Walls of cells where the kernel gives no namespaces: Landlock, filters, a user.

Theory of operation. A cell is a process tree: its first process adopts what its
programs leave, and the launcher what that leaves, so that both can end all of it. The
first process enters rules of Landlock with the cell's own folders, the supervisor and
then programs narrower ones. They all share the machine's network, its numbers of
processes and its paths; system calls that lead to others there are refused, or answered
by the notifier. As root each cell has its own user; else all have this process's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from ..kernel import confine, landlock, linux, notification, process_tree
from ..notifier import main as notifier
from ..wire import aliases, trust
from ..wire.contract import FOLDERS, OWN_USER, SHARED_USER
from ..workdir.emptying import remove_all_in
from . import reach
from .open_files import LEAST_OPEN_FILES, raise_open_files
from .refused import WallsRefusedError
from .root_filesystem import MountError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    Path = tuple[int, int]

_SETTINGS = (
    *("/etc/group", "/etc/host.conf", "/etc/hosts", "/etc/locale.alias"),
    *("/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/timezone"),
    *("/etc/debian_version", "/etc/ca-certificates", "/etc/gitconfig"),
    *("/etc/resolv.conf", "/etc/bash.bashrc", "/etc/inputrc", "/etc/profile"),
)
# What a machine says about itself, and nothing about its processes.
_MACHINE = (
    *("/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo"),
    *("/proc/stat", "/proc/uptime", "/proc/version"),
    *("/proc/sys/fs", "/proc/sys/kernel", "/proc/sys/vm", "/sys/devices/system/cpu"),
    # joblib, and so scikit-learn, reads its share of the CPUs where these files are.
    *("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us",
)
# The C library's path for semaphores is fixed. Names of others cannot be listed there.
_SHARED_MEMORY = "/dev/shm"
_IN_SHARED_MEMORY = reach.WRITTEN | landlock.MAKE_REG | landlock.REMOVE_FILE

# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID
_CHOWN, _OVERRIDE, _KILL, _SETGID, _SETUID = (1 << each for each in (0, 1, 5, 6, 7))
_FIRST_UID = 1_900_000_000
_SLOTS = 1024
_KILL_SECONDS = 5.0
_KILL_AGAIN_SECONDS = 0.002


class ConfinedWalls:
    """Puts cells behind rules that each process enters itself.

    Args:
        setup: `show`, the paths that programs may read; `hide`, folders below them
            whose files they may not; `mounts`, others, which keep their own paths;
            `folder`, the place of the cells' folders.

    Raises:
        WallsRefusedError: The kernel lacks a part of it; the message names that.
        MountError: Users of cells cannot reach a mount.
        OSError: The folder of the cells cannot be made.
    """

    level = "confined"
    has_network = True

    def __init__(self, setup: dict[str, Any]) -> None:
        try:
            self._version = landlock.version()
        except OSError as error:
            raise WallsRefusedError(error.errno, error.strerror) from None
        self._base: str = setup["folder"]
        # Users of cells may pass through it, and not list it.
        os.makedirs(self._base, exist_ok=True)
        os.chmod(self._base, 0o711)  # noqa: S103
        self._bin = os.path.join(self._base, "bin")
        if not os.path.exists(self._bin):
            aliases.make(self._bin)
        self._trust = os.path.join(self._base, "trust") if setup["authority"] else ""
        if self._trust and not os.path.exists(self._trust):
            trust.make(self._trust, trust.bundle(setup["authority"]))
        self._node: str = setup["node"]
        self._uids = _FIRST_UID + os.getpid() % 65_536 * _SLOTS
        self.separate = _may_give_users() and _reaches_python(self._uids)
        self.confined = OWN_USER if self.separate else SHARED_USER
        if self.separate:
            for source, _, _ in setup["mounts"]:
                _require_way_to(source, self._uids)
        self._served = self._what_to_serve()
        # Programs may change them, and what is in them.
        self._writable = [
            os.path.realpath(source)
            for source, _, read_only in setup["mounts"]
            if not read_only
        ]
        self._made = 0
        self._folder, self._uid = "", os.geteuid()
        # Folder and user by first process.
        self._cells: dict[int, tuple[str, int]] = {}
        self._paths = self._open_paths(setup)
        # A new cell has each twice, while they get their numbers.
        raise_open_files(2 * len(self._paths) + LEAST_OPEN_FILES)
        self._proc = os.open("/proc", os.O_PATH)
        self._shared_memory = landlock.opened(_SHARED_MEMORY, landlock.READ)
        # The launcher adopts what a cell leaves.
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)

    def _open_paths(self, setup: dict[str, Any]) -> list[Path]:
        parts = reach.without(setup["hide"], setup["show"])
        show = (*parts, self._bin, *filter(None, [self._trust]))
        mounts = [(source, read_only) for source, _, read_only in setup["mounts"]]
        wanted = reach.of_programs(show, mounts, devices=reach.WRITTEN)
        wanted += [(path, landlock.READ) for path in (*_SETTINGS, *_MACHINE)]
        split = set(setup["show"]) - set(parts)
        wanted += [(path, landlock.READ_DIR) for path in sorted(split)]
        wanted.append((_SHARED_MEMORY, _IN_SHARED_MEMORY))
        opened = (landlock.opened(path, rights) for path, rights in wanted)
        return [found for found in opened if found is not None]

    def clone(self) -> int:
        """Fork a cell; return its first process, and 0 in that. Raises OSError."""
        self._made += 1
        if self.separate:
            self._uid = self._uids + self._made % _SLOTS
        # Nobody else can guess it.
        self._folder = os.path.join(self._base, os.urandom(8).hex())
        os.mkdir(self._folder, 0o711)
        for name in ("work", "tmp"):
            path = os.path.join(self._folder, name)
            os.mkdir(path, 0o700)
            os.chown(path, self._uid, self._uid if self.separate else -1)
        pid = os.fork()
        if pid:
            self._cells[pid] = self._folder, self._uid
        return pid

    def admit(self, pid: int) -> None:
        """Do what a new cell cannot do for itself: there is nothing."""

    def enter(self) -> None:
        """Begin the walls, in the first process."""
        # A group of signals of its own.
        os.setsid()

    def finish(self, kind: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Finish the walls; return the supervisor's settings, and its descriptors.

        Raises:
            OSError: The kernel refused.
        """
        settings = self._settings(kind)
        folders = [settings["workdir"], settings["tmp"]]
        own = [(os.open(path, os.O_PATH), landlock.OWN) for path in folders]
        paths = [*self._paths, *own]
        everybody, supervisor = self._rules(paths)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        # What the notifier reads of programs is open to those who share its rules.
        landlock.enter(everybody.fd)
        uid = self._uid if self.separate else None
        # The notifier gets no more CPUs than the cell has.
        confine.narrow_affinity(settings["affinity"])
        changeable = [*folders, *self._writable]
        channel = notifier.start(frozenset(self._served), changeable, uid)
        # This is the supervisor now, a child of the notifier. Whoever of its parents is
        # killed, it ends what nobody else would.
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, _end)
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
        oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR)
        if self.separate:
            # To look into each folder, and to become the programs' user.
            linux.drop_capabilities(_CHOWN | _KILL | _OVERRIDE | _SETGID | _SETUID)
        else:
            linux.drop_capabilities()
        settings["rights"] = [rights for _, rights in paths]
        return settings, {
            "oom_score": oom_score,
            "notifier": channel,
            "rules": supervisor.fd,
            **{f"path {at}": path for at, (path, _) in enumerate(paths)},
        }

    def _rules(self, paths: list[Path]) -> tuple[landlock.Rules, landlock.Rules]:
        """Return the rules of all processes of a cell, and its supervisor's."""
        everybody = landlock.Rules(self._version, scoped=True)
        supervisor = landlock.Rules(self._version)
        everybody.allow(self._proc, landlock.READ | landlock.WRITE_FILE)
        supervisor.allow(self._proc, landlock.READ)
        for rules in (everybody, supervisor):
            for path, rights in paths:
                rules.allow(path, rights)
            if self._shared_memory is not None:
                rules.allow(*self._shared_memory)
        return everybody, supervisor

    def _settings(self, kind: dict[str, Any]) -> dict[str, Any]:
        """Return a cell's settings, with its own paths in place of those of mounts."""
        settings = kind["settings"]
        work, tmp = (os.path.join(self._folder, name) for name in ("work", "tmp"))
        moved = {
            settings["workdir"]: work,
            "/tmp": tmp,
            f"{settings['workdir']}/.local/bin": f"{work}/.local/bin",
            aliases.FOLDER: self._bin,
            os.path.dirname(settings["node"]): os.path.dirname(self._node),
        }
        env = dict(settings["env"])
        for name in ("HOME", "TMPDIR", "PATH"):
            parts = [moved.get(part, part) for part in env[name].split(os.pathsep)]
            env[name] = os.pathsep.join(filter(None, parts))
        rlimits = {**settings["rlimits"], "file_bytes": settings["disk_mib"] << 20}
        own = ["landlock", "own_uid" if self.separate else "notifier"]
        return {
            **settings,
            "workdir": work,
            "tmp": tmp,
            "memory_watch": _only_of_processes(settings["memory_watch"]),
            "env": env,
            "node": self._node,
            "trust": self._trust,
            "uid": self._uid,
            "confined": self.confined,
            "renews": FOLDERS if settings["renews"] else "",
            "served": self._served,
            "require": [*settings["require"], *own],
            # Others of a shared user are counted when a program begins.
            "more_processes": 0 if self.separate else rlimits.pop("processes", 0),
            "rlimits": rlimits,
        }

    def _what_to_serve(self) -> list[str]:
        """Return what the notifier has to answer, as no other layer bounds it.

        Raises:
            WallsRefusedError: The kernel cannot, and users are shared.
        """
        try:
            notification.check()
        except OSError as error:
            if self.separate:
                # Programs then have no sockets, and need nothing else of it.
                return []
            raise WallsRefusedError(error.errno, error.strerror) from None
        served = [notification.SOCKETS]
        if not self.separate:
            served.append(notification.ATTRIBUTES)
            if self._version < landlock.SCOPES_SINCE:
                served.append(notification.SIGNALS)
            if self._version < landlock.TRUNCATE_SINCE:
                served.append(notification.TRUNCATE)
        return served

    def clear(self, pid: int) -> None:
        """End and remove what is left of a cell whose first process has ended."""
        folder, uid = self._cells.pop(pid)
        self._end_orphans()
        _remove(folder)
        if self.separate:
            _remove_shared_memory(uid)

    def _end_orphans(self) -> None:
        """Kill the processes that this one has adopted, until none is left."""
        give_up = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < give_up:
            left = set(process_tree.children(os.getpid())).difference(self._cells)
            if not left:
                return
            for pid in left:
                for process in (pid, *process_tree.descendants(pid)):
                    _kill(process)
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_KILL_AGAIN_SECONDS)

    def close(self) -> None:
        """Remove what is left when all cells have ended."""
        self._end_orphans()
        _remove(self._base)


def _only_of_processes(watch: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a watch of memory for cells whose folders are the machine's."""
    return watch and {**watch, "folders": []}


def _end(*_: object) -> NoReturn:
    """End a cell, and its supervisor, which calls this."""
    give_up = time.monotonic() + _KILL_SECONDS
    while process_tree.others() and time.monotonic() < give_up:
        process_tree.signal_others(signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(_KILL_AGAIN_SECONDS)
    os._exit(0)


def _may_give_users() -> bool:
    """Return True if this process has the capabilities for users of cells."""
    needed = _CHOWN | _OVERRIDE | _KILL | _SETGID | _SETUID
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        fields = dict(line.split(":", 1) for line in file)
    return os.geteuid() == 0 and int(fields["CapEff"], 16) & needed == needed


def _reaches_python(uid: int) -> bool:
    """Return True if another user may start this interpreter and read its library."""
    import sys

    library = os.path.dirname(os.__file__)
    return _may(uid, sys.executable, os.X_OK) and _may(uid, library, os.R_OK)


def _require_way_to(path: str, uid: int) -> None:
    """Raise MountError if another user may not pass through a folder above a path."""
    if _may(uid, path, os.F_OK):
        return
    ends = [at for at, letter in enumerate(path) if at and letter == "/"]
    shut = next((path[:end] for end in ends if not _may(uid, path[:end], os.X_OK)), "")
    raise MountError(
        f"mount {path}: users of cells may not pass through {shut}; allow it by "
        f"`chmod o+x {shut}`, or mount something elsewhere"
    )


def _may(uid: int, path: str, mode: int) -> bool:
    """Return what access(2) tells another user."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os._exit(0 if os.access(path, mode) else 1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _remove_shared_memory(uid: int) -> None:
    """Remove what a user, which no process has any more, left in shared memory."""
    with contextlib.suppress(OSError), os.scandir(_SHARED_MEMORY) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_uid == uid:
                os.unlink(entry.path)


def _remove(folder: str) -> None:
    """Remove a folder whose programs have ended; what cannot be removed stays."""
    try:
        remove_all_in(folder, time.monotonic() + _KILL_SECONDS)
        os.rmdir(folder)
    except OSError:
        return
