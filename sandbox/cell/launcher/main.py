"""The launcher: makes cells on this machine, without any daemon.

Theory of operation. The host starts one launcher with a clean environment and
talks to it over a SEQPACKET socket; each request carries the socket of a new
cell. The launcher prepares, once, the walls that cells have here: those of namespaces,
or where the kernel refuses these, of Landlock. For each cell it forks a child, puts it
into its own cgroup where possible, and lets it continue. The child finishes its
walls and becomes the cell's supervisor. Cells end with the launcher. The launcher ends
when the host ends or closes its end of the socket. It never reads a byte that untrusted
code wrote.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys

from ..kernel import gvisor, linux, signals
from ..kernel.confine import refuse_cores
from ..kernel.descriptors import move_fds, receive_fds, send_fds
from ..program import main as runner
from ..program import values
from ..supervisor import main as supervisor
from ..supervisor.supervisor import Supervisor
from ..supervisor.warm_up import rehearse
from ..wire.channel import SupervisorChannel
from ..wire.frames import encode
from . import users
from .cgroups import CellGroup, GroupMaker
from .handles import Handles
from .namespaces import NamespaceWalls
from .open_files import TooFewFilesError, raise_open_files
from .refused import WallsRefusedError, refusal
from .root_filesystem import MountError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, Union

    from .confined import ConfinedWalls

    Walls = Union[NamespaceWalls, ConfinedWalls]


# OOM kills of ended cells that are remembered, at most.
_MAX_ENDED = 512
_MAX_REQUEST = 64 * 1024
_MAX_SETUP = 256 * 1024
_IDLE_MS = 20
_HOST_MS = 1000
"""Time until this process looks for its host, where the kernel has no pidfd."""

_NEXT_MS = 2
"""Time for the host to ask for another cell, or to close, once a cell has ended."""

_GO, _GO_AND_TELL = b"!", b"?"
"""The byte by which a cell begins; one of them asks if it could finish its walls."""

_ENDED = '[false, "it ended before its walls were finished"]'


def main(control_fd: int) -> NoReturn:
    """Serve requests until the host closes the control socket."""
    signals.inherit_nothing()
    if gvisor.is_this_kernel():
        with contextlib.suppress(OSError):
            # Who is refused this is refused the walls as well.
            users.unshare_mounts()
            gvisor.execute_read_only(0)
    control = socket.socket(fileno=control_fd)
    try:
        message, fds = receive_fds(control, _MAX_SETUP, 1)
        if not message:
            os._exit(70)
        try:
            raise_open_files()
            launcher = Launcher(control, json.loads(message), fds)
        except (MountError, TooFewFilesError) as error:
            control.send(json.dumps({"refused": str(error)}).encode())
            os._exit(70)
        except Exception as error:
            refused_level = getattr(error, "level", "")
            answer = {"error": str(error), "refused_level": refused_level}
            control.send(json.dumps(answer).encode())
            os._exit(70)
        control.send(json.dumps({"ready": True, **launcher.found}).encode())
        launcher.serve()
    finally:
        os._exit(0)


class PreparedCell:
    """A cell that is complete but for its channel and its warm-up run.

    Args:
        key: Identifies the kind of the cell.
        pid: Its first process, as this process sees it.
        handle: The same process, for the host.
        start: Takes the channel; without one the cell ends when this closes.
    """

    __slots__ = ("handle", "key", "pid", "start")

    def __init__(self, key: str, pid: int, handle: int, start: socket.socket) -> None:
        self.key = key
        self.pid = pid
        self.handle = handle
        self.start = start


class Launcher:
    """Serves one host: makes cells, and prepares the next one ahead of need.

    A prepared cell has never run a program and is handed over only if it is of the
    requested kind; otherwise it is killed and another is made. No cell can have another
    cell's channel: each is closed here before the next clone. Requests are served one
    by one, so a cell that is slow to make delays the next request.

    Args:
        control: The control socket.
        setup: The levels to try, the strongest first; what their walls need; cgroups,
            and the kind of the first cell.
        host: A pidfd of the host process; empty where the kernel has none.

    Raises:
        MountError: A path of the host cannot be mounted.
        WallsRefusedError: This machine cannot make cells.
        OSError: It could not make one now.
    """

    def __init__(
        self, control: socket.socket, setup: dict[str, Any], host: list[int]
    ) -> None:
        self._control = control
        self._host, self._host_pid = host, setup["host"]
        self._poller = select.poll()
        self._handles = Handles(self._poller)
        self._groups: dict[int, CellGroup | None] = {}
        self._maker = GroupMaker(setup["cgroups"]) if setup["cgroups"] else None
        # Of ended cells, by their first process; the host asks at once if at all.
        self._oom_kills: dict[int, int] = {}
        self._prepared: PreparedCell | None = None
        self._kind: dict[str, Any] = setup["cell"]
        refuse_cores()
        self._walls, why = _put_up(setup)
        self.found = {
            "level": self._walls.level,
            "why": why,
            "has_network": self._walls.has_network,
        }
        """The level of the cells, why it is not a stronger one, and if programs can be
        given a network."""

        # Imports and memory that cells share are loaded before the first clone.
        _warm_up(self._kind["settings"]["renews"], self._walls.confined)
        runner.get_ready(self._kind["settings"])
        gc.collect()
        gc.freeze()
        # A machine that cannot make cells is found now, not at the first run.
        try:
            self._prepared = self._first_cell()
        except OSError as error:
            raise _of_level(self._walls.level, error, why) from None

    def serve(self) -> None:
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signals.wake_by(wake_w)
        for fd in (self._control.fileno(), wake_r, *self._host):
            self._poller.register(fd, select.POLLIN)
        look = None if self._host else _HOST_MS
        # Children may have ended before the signal handler was set.
        self._reap()
        idle = _IDLE_MS
        while True:
            waits = idle if self._prepared is None else look
            ready = [fd for fd, _ in self._poller.poll(waits)]
            idle = _IDLE_MS
            # A process forked by the host may hold the socket open.
            if self._host_is_gone(ready):
                break
            self._handles.serve(ready)
            if self._control.fileno() in ready:
                if not self._handle_request():
                    break
                continue
            if wake_r in ready:
                os.read(wake_r, 4096)
                self._reap()
                idle = _NEXT_MS
                continue
            # Only when idle: a new cell may need this CPU.
            if self._prepared is None:
                with contextlib.suppress(OSError):
                    self._prepared = self._prepare_cell(self._kind)
        self._shut_down()

    def _host_is_gone(self, ready: list[int]) -> bool:
        if self._host:
            return self._host[0] in ready
        return bool(os.getppid() != self._host_pid)

    def _handle_request(self) -> bool:
        message, channels = receive_fds(self._control, _MAX_REQUEST, 1)
        if not message:
            return False
        request = json.loads(message)
        answer = {"id": request["id"]}
        if "cell" not in request:
            # The host asks how a cell ended, or checks that this process answers.
            self._reap()
            answer["oom_kills"] = self._oom_kills_of(request.get("ended"))
            self._send(answer, [])
            return True
        [channel] = channels
        try:
            prepared = self._hand_over(channel, request["cell"])
            self._send({**answer, "pid": prepared.pid}, [prepared.handle])
            prepared.start.close()
            os.close(prepared.handle)
        except OSError as error:
            self._send({**answer, "error": str(error)}, [])
            return True
        finally:
            # Before the next clone: no cell may hold another cell's channel.
            os.close(channel)
        self._kind = request["cell"]
        return True

    def _send(self, answer: dict[str, Any], fds: list[int]) -> None:
        send_fds(self._control, json.dumps(answer).encode(), fds)

    def _hand_over(self, channel: int, kind: dict[str, Any]) -> PreparedCell:
        """Return a cell that has received its channel. Raises OSError."""
        prepared = self._take_prepared(kind)
        try:
            send_fds(prepared.start, b"!", [channel])
        except BrokenPipeError:
            # It has died since it was prepared.
            self._discard(prepared)
            prepared = self._prepare_cell(kind)
            send_fds(prepared.start, b"!", [channel])
        return prepared

    def _take_prepared(self, kind: dict[str, Any]) -> PreparedCell:
        # Another process of a cell that has died may keep its socket a while.
        self._reap()
        prepared, self._prepared = self._prepared, None
        if (
            prepared is not None
            and prepared.pid in self._groups
            and prepared.key == _key(kind)
        ):
            return prepared
        if prepared is not None:
            self._discard(prepared)
        return self._prepare_cell(kind)

    def _discard(self, prepared: PreparedCell) -> None:
        # Once it is collected its pid may be another process's.
        if prepared.pid in self._groups:
            os.kill(prepared.pid, signal.SIGKILL)
        prepared.start.close()
        os.close(prepared.handle)

    def _prepare_cell(self, kind: dict[str, Any], begin: bytes = _GO) -> PreparedCell:
        """Make a cell ahead of need.

        Args:
            kind: Its `limits`, and the `settings` of its supervisor.
            begin: What tells it to begin.
        """
        group = self._maker.make(kind["limits"]) if self._maker else None
        ours, theirs = socket.socketpair()
        try:
            pid = self._walls.clone()
        except OSError:
            if group is not None:
                group.remove()
            raise
        if pid == 0:
            ours.close()
            self._become_cell(kind, theirs, group)
        theirs.close()
        self._groups[pid] = group
        self._oom_kills.pop(pid, None)
        try:
            if group is not None:
                group.add(pid)
                group.close()
            self._walls.admit(pid)
            ours.send(begin)
            return PreparedCell(_key(kind), pid, self._handles.open(pid), ours)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise

    def _first_cell(self) -> PreparedCell:
        """Return a cell that has finished its walls. Raises OSError."""
        cell = self._prepare_cell(self._kind, _GO_AND_TELL)
        refused, why = json.loads(cell.start.recv(_MAX_REQUEST) or _ENDED)
        if not why:
            return cell
        self._discard(cell)
        self._remove_group(os.waitpid(cell.pid, 0)[0])
        raise WallsRefusedError(why) if refused else OSError(why)

    def _become_cell(
        self, kind: dict[str, Any], start: socket.socket, group: CellGroup | None
    ) -> NoReturn:
        """In the clone: finish the cell, wait for a channel, supervise it."""
        try:
            begin = start.recv(1)
            if not begin:
                os._exit(70)
            files = group.files if group else {}
            why, refused = "", False
            settings = kind["settings"]
            try:
                self._walls.enter()
                linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
                settings, own = self._walls.finish(kind)
                files.update(own)
            except OSError as error:
                why = f"its walls were not finished: {_cause(error)}"
                refused = isinstance(refusal(error), WallsRefusedError)
            if begin == _GO_AND_TELL:
                start.send(json.dumps([refused, why]).encode())
            start, counters = _keep_only(start, files)
            process = Supervisor(counters, ready=True, adopts=True)
            if not why:
                why = _prepared(process, settings)
            message, channels = receive_fds(start, 1, 1)
            if not message:
                os._exit(70)
            [channel] = channels
            start.close()
            move_fds([channel, channel], inherited=2)
            os.close(channel)
            if why:
                os.write(1, encode({"type": "failed", "why": why}))
                os._exit(70)
            supervisor.serve(process, SupervisorChannel(0, 1))
        finally:
            os._exit(70)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._remove_group(pid)

    def _remove_group(self, pid: int) -> None:
        if pid not in self._groups:
            # Some walls have this process adopt what cells leave.
            return
        group = self._groups.pop(pid)
        self._handles.collected(pid)
        self._walls.clear(pid)
        if self._maker is not None and group is not None:
            if kills := group.oom_kills():
                self._oom_kills[pid] = kills
            if len(self._oom_kills) > _MAX_ENDED:
                del self._oom_kills[next(iter(self._oom_kills))]
            self._maker.remove(group)

    def _oom_kills_of(self, pid: int | None) -> int:
        """Return the number of OOM kills in a cell that has ended."""
        group = self._groups.get(pid) if pid else None
        if group is not None:
            return group.oom_kills()
        return self._oom_kills.pop(pid, 0) if pid else 0

    def _shut_down(self) -> None:
        """Kill all cells, wait for them, and remove their cgroups.

        This may be cut short: a host that closes kills the launcher after a while.
        """
        for pid in self._groups:
            os.kill(pid, signal.SIGKILL)
        while self._groups:
            self._remove_group(os.waitpid(-1, 0)[0])
        self._walls.close()
        if self._maker is not None:
            self._maker.remove_parents()


def _prepared(process: Supervisor, settings: dict[str, Any]) -> str:
    """Prepare a supervisor; return why that failed, or nothing."""
    try:
        process.prepare(settings)
    except Exception as error:
        return f"no process for its program was made: {type(error).__name__}: {error}"
    return ""


def _keep_only(
    start: socket.socket, counters: dict[str, int]
) -> tuple[socket.socket, dict[str, int]]:
    """Close all descriptors but these, and return them with their new numbers."""
    null = os.open("/dev/null", os.O_RDWR)
    move_fds([null, null, null, start.fileno(), *counters.values()], inherited=3)
    os.closerange(4 + len(counters), 1024)
    start.detach()
    return socket.socket(fileno=3), {name: 4 + i for i, name in enumerate(counters)}


def _key(kind: dict[str, Any]) -> str:
    return json.dumps(kind, sort_keys=True)


def _put_up(setup: dict[str, Any]) -> tuple[Walls, str]:
    """Return the strongest walls that the kernel gives, and why not stronger ones.

    Raises:
        MountError: A path of the host cannot be mounted.
        WallsRefusedError: This machine gives none of those that were asked for.
        OSError: It could not make one of them now.
    """
    why = ""
    for level in setup["levels"]:
        try:
            return _walls(level, setup), why
        except OSError as error:
            failure = _of_level(level, error, why)
            if not isinstance(error, WallsRefusedError):
                # It stopped midway, and this process cannot go back.
                raise failure from None
            why = str(failure)
    raise failure


def _of_level(level: str, error: OSError, before: str) -> OSError:
    """Return an error that names its level, after the reasons against others.

    Args:
        level: The level whose walls failed.
        error: The reason.
        before: Why there is no stronger level; empty if it is the strongest.
    """
    why = "; ".join(filter(None, (before, f"{level}: {_cause(error)}")))
    if not isinstance(refusal(error), WallsRefusedError):
        return OSError(why)
    refused = WallsRefusedError(why)
    refused.level = level
    return refused


def _cause(error: OSError) -> str:
    """Return the words of an error, without its number."""
    named = f"{error.filename}: " if error.filename else ""
    return f"{named}{error.strerror or error}"


def _walls(level: str, setup: dict[str, Any]) -> Walls:
    if level == NamespaceWalls.level:
        return NamespaceWalls(setup)
    # What it needs is in no memory of a cell of namespaces.
    from .confined import ConfinedWalls

    return ConfinedWalls(setup)


def _warm_up(renews: str, confined: str) -> None:
    """Import and touch all that every program's process will use."""
    import site

    from ..kernel import seccomp

    # Programs get this from `site`; .pth files must not run in the launcher.
    sys.path += [path for path in site.getsitepackages() if os.path.isdir(path)]
    site.setquit()
    site.setcopyright()
    site.sethelper()
    seccomp.prepared(not confined, renews, confined)
    if renews:
        seccomp.prepared_closing(False)
    if confined:
        seccomp.prepared_own()
    values.report([1])
    # Cells are slower without it, and no worse.
    with contextlib.suppress(OSError):
        rehearse()
