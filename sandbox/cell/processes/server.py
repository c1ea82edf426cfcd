"""The process server: runs commands of a session, and adopts what they leave behind.

Theory of operation. It is a fork of the supervisor, trusted like it, and not dumpable:
no command can trace it. It is the subreaper of its commands, so a daemon that a shell
left in the background becomes its child and lives until the session ends (gVisor has no
subreapers: there it lives until the next run ends). It speaks frames with the
supervisor, which passes them on. Output of a command is read only as far as the host
gave credit, so a command that nobody listens to waits in its own pipe. Connections of
the host to ports of the cell begin here, and folders are watched from here, so that
both pass beside runs as commands do.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback

from ..accounting.memory_watch import gave_up
from ..kernel import linux, process_tree
from ..kernel.cgroup_files import oom_kills_in
from ..kernel.descriptors import keep_only
from ..relays.command_calls import CommandCalls, close_all
from ..relays.command_networks import CommandNetworks
from ..relays.port_relay import PortRelay
from ..wire import search_paths
from ..wire.contract import CREDIT_BYTES, reason_of
from ..wire.frames import Frame, FrameDecoder, encode
from . import spawn
from .process import Process
from .watches import Watches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_READ_BYTES = 262_144
# More than a socket holds.
_READS_BEFORE_AN_END = 16
_MAX_ERROR = 200
MAX_PROCESSES = 64
"""Commands of one cell at once. When it is reached the next one is refused."""


def main(sock_fd: int, settings: dict[str, Any], oom: int) -> NoReturn:
    """Be the process server, in a fresh fork of the supervisor, until the cell ends."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # The channel is not for it.
        paths = {path for path, _ in settings["paths"]}
        keep_only({sock_fd, oom, settings["rules"], settings["notifier"], *paths})
        _adopt_orphans()
        sock = socket.socket(fileno=sock_fd)
        try:
            ProcessServer(sock, settings, oom).serve()
        except Exception as error:
            sock.sendall(encode({"type": "exec_lost", "why": _described(error)}))
    finally:
        os._exit(0)


def _described(error: Exception) -> str:
    """Return an error as text of one line, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{ascii(error)[:_MAX_ERROR]} in {place.filename}:{place.lineno}"


def _adopt_orphans() -> None:
    try:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    except OSError:
        # gVisor has no subreapers: the supervisor kills orphans after the next run.
        return


class ProcessServer:
    """Runs commands, each known by the number that the host gave it.

    Args:
        sock: Leads to the supervisor.
        settings: The confinement of every command.
        oom: The descriptor of the cgroup's count of kills for memory; -1 if none.
    """

    def __init__(self, sock: socket.socket, settings: dict[str, Any], oom: int) -> None:
        self._sock = sock
        self._settings = settings
        self._oom = oom
        self._decoder = FrameDecoder()
        self._processes: dict[int, Process] = {}
        self._by_pid: dict[int, Process] = {}
        self._by_fd: dict[int, Process] = {}
        # Pipes of commands that have ended, held open by what they left behind.
        self._abandoned: set[int] = set()
        self._wake_r, wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        self._epoll = select.epoll()
        self._ports = PortRelay(sock.sendall, settings["notifier"])
        self._networks = CommandNetworks(
            sock.sendall, settings["notifier"], settings["trust"]
        )
        self._calls = CommandCalls(sock.sendall)
        self._watches = Watches(sock.sendall, settings["uid"])
        self._relays = {each.fd: each for each in (self._networks, self._calls)}
        for fd in (sock.fileno(), self._wake_r, self._ports.fd, *self._relays):
            self._epoll.register(fd, select.EPOLLIN)

    def serve(self) -> None:
        """Do what the host asks for until the supervisor is gone."""
        while True:
            for fd, events in self._epoll.poll(self._seconds_to_wait()):
                if fd == self._sock.fileno():
                    if not self._take_in():
                        return
                elif fd == self._wake_r:
                    os.read(fd, 4096)
                elif fd == self._ports.fd:
                    self._ports.pump()
                elif fd in self._relays:
                    self._relays[fd].pump()
                elif fd in self._abandoned:
                    self._discard(fd)
                elif fd in self._by_fd:
                    self._serve_descriptor(self._by_fd[fd], fd, events)
            self._reap()
            self._end_overdue()
            self._watches.go_on()

    def _seconds_to_wait(self) -> float | None:
        """Return the seconds until there is something to do; None if nothing is."""
        times = [self._seconds_left(), self._watches.seconds_left()]
        return min((each for each in times if each is not None), default=None)

    def _seconds_left(self) -> float | None:
        """Return the seconds until the first deadline; None if there is none."""
        deadlines = [
            process.deadline
            for process in self._processes.values()
            if process.deadline is not None and process.status is None
        ]
        if not deadlines:
            return None
        return max(min(deadlines) - time.monotonic(), 0.0)

    def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self._sock.sendall(encode(header, payload))

    def _take_in(self) -> bool:
        """Take the frames that have come; False at the end of the socket."""
        data = self._sock.recv(_READ_BYTES)
        for frame in self._decoder.feed(data):
            self._handle_frame(frame)
        return bool(data)

    def _handle_frame(self, frame: Frame) -> None:
        kind = frame.header["type"]
        if kind.startswith("port_"):
            self._ports.handle_frame(frame)
        elif kind.startswith("reach_"):
            self._networks.handle_frame(frame)
        elif kind == "exec_answer":
            self._calls.handle_frame(frame)
        elif kind.startswith("watch_"):
            self._watches.handle_frame(frame.header)
        elif kind == "exec_resumed":
            self._extend_deadlines(frame.header["seconds"])
        elif kind == "exec_full":
            self._end_all("disk_limit")
        elif kind == "exec_memory":
            self._take_kill()
        elif kind == "exec_start":
            self._start(frame.header, frame.payload)
        elif frame.header["id"] in self._processes:
            self._control(self._processes[frame.header["id"]], frame)

    def _control(self, process: Process, frame: Frame) -> None:
        """Do to a command what the host asks for."""
        header = frame.header
        kind = header["type"]
        if kind == "exec_input":
            process.unsent += frame.payload
        elif kind == "exec_eof":
            process.input_ended = True
        elif kind == "exec_credit":
            process.credit += header["bytes"]
        elif kind == "exec_resize":
            process.resize(header["rows"], header["cols"])
        elif kind == "exec_extend":
            if process.deadline is not None:
                process.deadline += header["seconds"]
        elif kind == "exec_signal":
            process.signal(header["signal"])
        elif kind == "exec_kill":
            process.kill("cancelled")
        self._write_input(process)
        self._settle(process)

    def _start(self, header: dict[str, Any], words: bytes) -> None:
        number = header["id"]
        door: list[int] = []
        try:
            if len(self._processes) >= MAX_PROCESSES:
                raise OSError(f"{MAX_PROCESSES} commands run at once already")
            request = {**header, **json.loads(words)}
            variables = self._networks.open(number, header["network"])
            if request["packages"]:
                own = self._settings["env"]
                variables.update(search_paths.of_packages(request["packages"], own))
            request["env"] = {**variables, **request["env"]}
            door = self._calls.open(number, header["tools"])
            process = spawn.spawn(request, self._settings, door)
        except OSError as error:
            self._networks.close(number)
            self._calls.close(number)
            why, reason = error.strerror or str(error), reason_of(error)
            failed = {"type": "exec_failed", "id": number, "why": why, "reason": reason}
            self._send(failed)
            return
        finally:
            close_all(door)
        process.oom_before = self._oom_total()
        self._processes[number] = self._by_pid[process.pid] = process
        self._send({"type": "exec_started", "id": number, "pid": process.pid})
        self._settle(process)

    def _oom_total(self) -> int:
        if self._oom < 0:
            return 0
        return oom_kills_in(os.pread(self._oom, 4096, 0).decode())

    def _serve_descriptor(self, process: Process, fd: int, events: int) -> None:
        if fd == process.stdin:
            self._write_input(process)
        elif events:
            self._read_output(process, fd)
        self._settle(process)

    def _write_input(self, process: Process) -> None:
        process.taken += process.write_input()
        if process.taken >= CREDIT_BYTES:
            room = {"type": "exec_room", "id": process.number, "bytes": process.taken}
            process.taken = 0
            self._send(room)

    def _read_output(self, process: Process, fd: int) -> bool:
        """Pass on what a pipe holds, within the credit; False if it was empty."""
        data = process.read_output(fd)
        if data:
            stream = process.outputs[fd]
            header = {"type": "exec_output", "id": process.number, "stream": stream}
            self._send(header, data)
        elif data is not None:
            self._watch(process, fd, 0)
            del process.outputs[fd]
            os.close(fd)
        return bool(data)

    def _settle(self, process: Process) -> None:
        """Watch what can go on now, and end what is over."""
        if process.status is not None and self._finish(process):
            return
        reads = select.EPOLLIN if process.credit > 0 else 0
        for fd in process.outputs:
            self._watch(process, fd, reads)
        if process.stdin is not None:
            self._watch(process, process.stdin, process.input_events)
        elif process.closed_stdin is not None:
            self._watch(process, process.closed_stdin, 0)
            os.close(process.closed_stdin)
            process.closed_stdin = None

    def _watch(self, process: Process, fd: int, events: int) -> None:
        """Have epoll report these events of a descriptor, and of no other."""
        before = process.watched.get(fd, 0)
        if events == before:
            return
        # Without a mask epoll would still report the end, over and over.
        if not events:
            self._epoll.unregister(fd)
            del self._by_fd[fd]
        elif before:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._by_fd[fd] = process
        process.watched[fd] = events

    def _finish(self, process: Process) -> bool:
        """Report a command that has ended; False while output waits for credit."""
        for fd in list(process.outputs):
            while process.credit > 0 and self._read_output(process, fd):
                pass
        if process.credit <= 0 and process.holds_output():
            return False
        del self._processes[process.number]
        for fd in [fd for fd, events in process.watched.items() if events]:
            self._watch(process, fd, 0)
        self._abandon(process)
        self._networks.close(process.number)
        self._send(process.report())
        return True

    def _count_kills(self, process: Process) -> None:
        """Note if a command that has just ended was ended for its memory."""
        process.oom_total = self._oom_total()
        process.oom_kills = process.oom_total - process.oom_before
        ended_otherwise = process.reason is not None or process.is_killed
        if not ended_otherwise and self._took_too_much(process):
            process.reason = "out_of_memory"
            if process.status == signal.SIGKILL:
                self._take_kill()
                # Its report waits for whoever reads its output.
                self._send({"type": "exec_memory"})

    def _take_kill(self) -> None:
        """Leave one kill for memory out of each command's count: it ended no other."""
        total = self._oom_total()
        for process in self._processes.values():
            process.oom_before = min(process.oom_before + 1, total)

    def _took_too_much(self, process: Process) -> bool:
        """Return True if a command was ended for its memory.

        Where no cgroup holds that it may pass the limit and die between two looks.
        """
        assert process.status is not None
        if process.status == signal.SIGKILL and process.oom_kills:
            return True
        watch = self._settings["memory_watch"]
        limit = watch["bytes"] if watch is not None else 0
        return gave_up(process.status, process.peak_bytes, limit)

    def _abandon(self, process: Process) -> None:
        """Close a command's descriptors, but for output that others still write to."""
        for fd in process.outputs:
            if process.is_terminal:
                # The end of a terminal hangs up on who still has it.
                os.close(fd)
            else:
                self._abandoned.add(fd)
                self._epoll.register(fd, select.EPOLLIN)
        process.close()

    def _discard(self, fd: int) -> None:
        try:
            if os.read(fd, _READ_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._abandoned.discard(fd)
        self._epoll.unregister(fd)
        os.close(fd)

    def _reap(self) -> None:
        """Collect what has ended: commands, and what they left behind."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            process = self._by_pid.pop(pid, None)
            if process is not None:
                process.end(status, usage)
                self._count_kills(process)
                self._calls.close(process.number)
                self._settle(process)

    def _end_all(self, reason: str) -> None:
        """End all commands, and what they left behind."""
        for process in self._processes.values():
            process.kill(reason)
        for pid in process_tree.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _extend_deadlines(self, seconds: float) -> None:
        for process in self._processes.values():
            if process.deadline is not None:
                process.deadline += seconds

    def _end_overdue(self) -> None:
        if self._seconds_left() != 0:
            return
        # After a pause deadlines may only seem to be over: a frame says so.
        for _ in range(_READS_BEFORE_AN_END):
            if not select.select([self._sock], [], [], 0)[0] or not self._take_in():
                break
        now = time.monotonic()
        for process in self._processes.values():
            overdue = process.deadline is not None and now >= process.deadline
            if overdue and process.status is None:
                process.kill("timeout")
