"""The supervisor: first process of a cell, the only one that the host trusts.

Theory of operation. The supervisor is PID 1 of the cell. It speaks frames with
the host on its channel and keeps one child ready: a fork of its own warm
interpreter, already confined, that waits for a program. A run hands the program
to that child, reads its output and result pipes, keeps the deadline and the
caps, and reports what wait4 says. When the program ends, or must, every process
but PID 1 is killed and reaped before the result leaves, so nothing survives a
run. The child cannot reach the channel (its descriptors are closed before it runs
anything), cannot signal PID 1 (another uid, or the kernel's protection of a
namespace's first process) and cannot trace it (not dumpable).

In the `process` isolation of last resort there is no PID namespace: there the
supervisor kills the child's process group instead.
"""

from __future__ import annotations

import gc
import marshal
import math
import os
import select
import signal
import sys
import time

from ..kernel import confine, signals
from ..processes.relay import ProcessRelay
from ..program import main as runner
from ..wire import aliases
from ..wire.channel import HostGone, SupervisorChannel
from ..wire.contract import ARTIFACTS, RENEWAL_SECONDS, WARM_UP
from ..wire.frames import (
    PROTOCOL_VERSION,
    RUN_DEFAULTS,
    Frame,
    FrameDecoder,
    FrameError,
    encode,
)
from ..workdir import artifacts, files
from .accounting import ResourceAccounting
from .branches import Branches, open_pipes
from .run import Child, Run, drain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from .clean_slate import CleanSlate
    from .egress_relay import EgressRelay


_KILL_AGAIN_SECONDS = 0.01
# After this a program that outruns its killing costs the whole cell its processes.
_KILL_SECONDS = 1.0
# A cell that is not used at once has time to warm up.
_IDLE_SECONDS = 0.01
# What a program that prints 1 writes to stdout, stderr and its result pipe.
_DUMMY_OUTPUT = (b"1\n", b"", b'{"layers":[],"cpu":0.0}\n{"outcome":"ok"}\n')


def _closed_pipe_with(text: bytes) -> int:
    """Return the read end of a pipe that somebody wrote to and closed."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, text)
    os.close(write_fd)
    os.set_blocking(read_fd, False)
    return read_fd


def main(read_fd: int, write_fd: int) -> NoReturn:
    """Serve one cell until the host closes the channel."""
    signals.inherit_nothing()
    serve(Supervisor(), SupervisorChannel(read_fd, write_fd))


def serve(supervisor: Supervisor, channel: SupervisorChannel) -> NoReturn:
    """Serve one cell, prepared or not, until the host closes the channel."""
    try:
        supervisor.serve(channel)
    except (HostGone, BrokenPipeError, ConnectionResetError):
        pass
    except FrameError as error:
        print(f"toolcell supervisor: {error}", file=sys.stderr)
    finally:
        _end()


def _compiled() -> bytes:
    """Return the modules of this bundle for the next cell of the same interpreter.

    No program has run here yet.
    """
    loader: Any = sys.modules[__name__].__spec__.loader  # type: ignore[union-attr]
    return marshal.dumps({**loader.modules, **loader.compiled}, 2)


def _narrow_affinity(cpus: float) -> None:
    """Without a cgroup: stay on as few CPUs as hold `cpus`; 0 leaves all."""
    available = sorted(os.sched_getaffinity(0))
    wanted = math.ceil(cpus)
    if 0 < wanted < len(available):
        first = int.from_bytes(os.urandom(2), "big")
        chosen = [available[(first + i) % len(available)] for i in range(wanted)]
        os.sched_setaffinity(0, chosen)


def _end() -> NoReturn:
    if os.getpid() == 1:
        os.kill(-1, signal.SIGKILL)
    os._exit(0)


class Supervisor:
    """What the first process of a cell knows and does.

    Args:
        cgroup: Open descriptors of the cell's accounts, of this process's own
            `oom_score_adj`, if programs cannot write to theirs, and of the last process
            number, if several programs use the cell; None to look for the accounts.
        ready: Whether `runner.get_ready` was called in a process before this one.
    """

    _channel: SupervisorChannel
    _processes: ProcessRelay

    def __init__(
        self, cgroup: dict[str, int] | None = None, *, ready: bool = False
    ) -> None:
        self._ready = ready
        self._owns_namespace = os.getpid() == 1
        self._child: Child | None = None
        self._branches = Branches()
        self._wake_r, self._wake_w = os.pipe()
        self._settings: dict[str, Any] = {}
        self._held: list[str] = []
        self._strays_end = False
        self._oom_score = cgroup.pop("oom_score", None) if cgroup else None
        self._last_pid = cgroup.pop("last_pid", None) if cgroup else None
        self._slate: CleanSlate | None = None
        self._accounting = ResourceAccounting(cgroup)
        self._egress: EgressRelay | None = None
        self._artifacts = artifacts.Seen()

    def prepare(self, settings: dict[str, Any]) -> None:
        """Protect this process and fork the first program's, before any host is heard.

        Args:
            settings: What every program of this cell is confined by.
        """
        self._protect()
        # What is sealed can no longer choose its CPUs.
        _narrow_affinity(settings["affinity"])
        if settings["renews"]:
            from .clean_slate import CleanSlate

            assert self._last_pid is not None
            self._slate = CleanSlate(settings, self._last_pid)
        self._held += confine.seal(
            own_user=settings["uid"] is not None, renews=settings["renews"]
        )
        self._settings = {**settings, "held": self._held}
        if self._settings["aliases"]:
            aliases.make(self._settings["aliases"])
        if not self._ready:
            runner.get_ready(self._settings)
            gc.collect()
        gc.freeze()
        self._fork()

    def serve(self, channel: SupervisorChannel) -> None:
        """Greet the host and run what it asks for, until it closes the channel."""
        self._channel = channel
        self._processes = ProcessRelay(channel, self._fork_first_to_go)
        hello = channel.receive().header
        if hello.get("protocol") != PROTOCOL_VERSION:
            channel.send(encode({"type": "ready", "protocol": PROTOCOL_VERSION}))
            raise FrameError(f"host speaks protocol {hello.get('protocol')}")
        if self._child is None:
            self.prepare(hello["settings"])
        if not channel.has_more():
            self._warm_up()
        ready = {
            "type": "ready",
            "protocol": PROTOCOL_VERSION,
            "python": sys.version.split()[0],
        }
        channel.send(encode(ready, _compiled() if hello.get("code") else b""))
        while True:
            self._handle_frame(self._next_frame())

    def _next_frame(self) -> Frame:
        """Wait for a frame of the host; meanwhile pass on what commands say."""
        while self._processes.pid:
            frame = self._channel.take()
            if frame is not None:
                return frame
            poller = select.poll()
            poller.register(self._channel.read_fd, select.POLLIN)
            self._processes.watch(poller)
            for fd, _ in poller.poll():
                if self._processes.owns(fd):
                    self._processes.pump(poller)
                else:
                    self._channel.read_more()
        return self._channel.receive()

    def _exec(self, frame: Frame) -> None:
        """Hand a frame about a command to the process host."""
        header = frame.header
        if header["type"] == "exec_start":
            folder = self._branches.folder(header["branch"]) or self._workdir
            header = {**header, "cwd": os.path.join(folder, header["cwd"])}
        oom = self._accounting.oom_descriptor
        self._processes.forward(header, frame.payload, self._settings, oom)

    def _handle_frame(self, frame: Frame) -> None:
        """Do what a frame asks for; what came too late for its run is dropped."""
        kind = frame.header["type"]
        if kind == "run":
            frame.header = {**RUN_DEFAULTS, **frame.header}
            self._run(frame)
            # After a final one the host kills, or has the cell made new. A session that
            # keeps state may never want another.
            if not frame.header["final"] and frame.header["branch"] is None:
                self._keep_a_child_ready()
        elif kind == "renew":
            self._renew()
        elif kind == "fork":
            taken = self._known()
            answer = self._branches.fork(frame.header, self._accounting, taken)
            origin, branch = (
                self._branches.folder(frame.header[end]) for end in ("branch", "to")
            )
            uid = self._settings["uid"]
            if branch and files.holds(branch, ARTIFACTS, uid):
                self._artifacts.copy(branch, origin, uid)
            self._channel.send(encode({"type": "forked", **answer}))
            self._kill_strays(self._known())
        elif kind == "file":
            self._serve_files(frame)
        elif kind.startswith("exec_"):
            self._exec(frame)
        elif kind == "drop":
            folder = self._branches.folder(frame.header["branch"])
            if folder != self._workdir:
                self._artifacts.forget(folder)
            self._branches.drop(frame.header["branch"])
            # Large ones take long to end; only a run must not meet them.
            self._strays_end = not self._kill_once(self._known())

    def _renew(self) -> None:
        """Have the next program find the cell as the first one did, or end the cell."""
        began = time.monotonic()
        try:
            if self._slate is None or self._egress is not None:
                raise HostGone
            self._slate.renew()
        except OSError as error:
            raise HostGone from error
        self._artifacts = artifacts.Seen()
        self._accounting.mark_baseline()
        self._fork()
        if time.monotonic() - began > RENEWAL_SECONDS:
            raise HostGone
        self._channel.send(encode({"type": "renewed"}))
        if not self._channel.has_more(_IDLE_SECONDS):
            self._warm_up()

    def _serve_files(self, frame: Frame) -> None:
        folder = self._branches.folder(frame.header["branch"]) or self._workdir
        uid = self._settings["uid"]
        answer, data = files.serve(
            frame.header, frame.payload, folder, uid, owns_root=self._owns_namespace
        )
        self._channel.send(encode({"type": "file", **answer}, data))

    @property
    def _workdir(self) -> str:
        workdir: str = self._settings["workdir"]
        return workdir

    def _keep_a_child_ready(self) -> None:
        if self._child is None:
            self._fork()
            if not self._channel.has_more(_IDLE_SECONDS):
                self._warm_up()

    def _protect(self) -> None:
        """Keep everything else in the cell away from this process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        try:
            from ..kernel import linux

            linux.prctl(linux.PR_SET_DUMPABLE, 0)
            # What this process no longer can give, no child can get.
            linux.drop_bounding_set()
            self._held.append("no_bounding_set")
        except (ImportError, OSError):
            # Without ctypes the other uid of the child is the wall.
            pass

    def _fork(self) -> None:
        """Fork the process of the next run."""
        child, pipes = open_pipes()
        child.pid = self._fork_first_to_go()
        if child.pid == 0:
            runner.start(pipes, self._settings)
        pipes.close()
        self._child = child

    def _fork_first_to_go(self) -> int:
        """Fork what the kernel kills before this process when memory is short.

        A child that inherits that, and sees a /proc that is read-only, has to keep it.
        """
        if self._oom_score is None:
            return os.fork()
        own = os.pread(self._oom_score, 16, 0)
        os.pwrite(self._oom_score, confine.FIRST_TO_GO, 0)
        pid = os.fork()
        if pid:
            os.pwrite(self._oom_score, own, 0)
        return pid

    def _warm_up(self) -> None:
        """Make the memory that a run touches ours, here and in the child.

        Each fork shares this process's memory with a child again, so this comes
        after it, and forks nothing.
        """
        child = self._child
        assert child is not None
        try:
            os.write(child.request, WARM_UP)
        except BrokenPipeError:
            # It could not be confined; its run will say why.
            return
        for _ in range(2):
            self._run_dummy()
        # Until the child is done, or the host cannot wait.
        select.select([child.result, self._channel.read_fd], [], [])

    def _run_dummy(self) -> None:
        header = {"type": "run", "wall_seconds": 0, "output_bytes": 2}
        [frame] = FrameDecoder().feed(encode(header, b"print(1)"))
        frame.header = {**RUN_DEFAULTS, **frame.header}
        null = os.open(os.devnull, os.O_RDWR)
        # A channel of its own: what the host says meanwhile is not for this run.
        quiet_r, quiet_w = os.pipe()
        child = Child(
            0, os.dup(null), *(_closed_pipe_with(text) for text in _DUMMY_OUTPUT)
        )
        channel = SupervisorChannel(quiet_r, null)
        run = Run(channel, child, frame.header, self._accounting, self._wake_r)
        run.hand_over(frame)
        os.write(self._wake_w, b"!")
        run.watch()
        run.finish(None)
        for fd in (null, quiet_r, quiet_w):
            os.close(fd)

    def _run(self, frame: Frame) -> None:
        if self._strays_end:
            self._kill_strays(self._known())
        branch = frame.header["branch"]
        child, lost = self._branches.take(branch)
        if child is None:
            if self._child is None:
                self._fork()
            child, self._child = self._child, None
        assert child is not None
        egress = self._egress_for(frame.header)
        run = Run(
            self._channel, child, frame.header, self._accounting, self._wake_r, egress
        )
        run.commands = self._processes, self._exec
        run.hand_over(frame)
        try:
            run.watch()
            run.clean = run.ended and run.reap()
        finally:
            self._kill_all(child, run)
        folder, uid = child.folder or self._workdir, self._settings["uid"]
        left_some = files.holds(folder, ARTIFACTS, uid)
        run.finish(lost, left_some)
        if branch and run.kept:
            self._branches.keep(branch, child, self._workdir)
        self._kill_strays(self._known())
        if left_some:
            artifacts.send(folder, uid, self._channel, self._artifacts)
        self._accounting.mark_baseline()

    def _egress_for(self, request: dict[str, Any]) -> EgressRelay | None:
        """Return the way out of a run, and lead its program there, if it has one."""
        if request["network"] is None:
            return None
        if self._egress is None:
            from . import egress_relay

            self._egress = egress_relay.EgressRelay(self._channel)
        network = request["network"]
        self._egress.begin(network["connections"])
        if network["set_variables"]:
            request["variables"] = self._egress.variables(network["without_proxy"])
        return self._egress

    def _known(self) -> set[int]:
        """Return the processes that outlive a run."""
        known = self._branches.living()
        if self._child is not None:
            known.add(self._child.pid)
        if self._processes.pid:
            known.add(self._processes.pid)
        return known

    def _kill_all(self, child: Child, run: Run) -> None:
        """Kill every process of the run and wait until no program is left."""
        known = self._known()
        alone = not known and not run.kept
        give_up = time.monotonic() + _KILL_SECONDS
        while True:
            try:
                if not self._owns_namespace:
                    if not run.ended:
                        os.killpg(child.pid, signal.SIGKILL)
                elif alone or time.monotonic() > give_up:
                    os.kill(-1, signal.SIGKILL)
                else:
                    strays = run.strays(known)
                    if run.is_over and not strays:
                        return
                    for pid in strays:
                        os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            if run.reap() or (run.is_over and not run.strays(known)):
                return
            self._wait_for_an_end()

    def _kill_strays(self, living: set[int]) -> None:
        """Kill whatever is not known, and collect it."""
        while not self._kill_once(living):
            self._wait_for_an_end()
        self._strays_end = False

    def _kill_once(self, living: set[int]) -> bool:
        """Kill whatever is not known; tell whether nothing of it is left."""
        left = [pid for pid in self._accounting.children() if pid not in living]
        for pid in left:
            if self._owns_namespace:
                os.kill(pid, signal.SIGKILL)
        try:
            while left and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return not left

    def _wait_for_an_end(self) -> None:
        select.select([self._wake_r], [], [], _KILL_AGAIN_SECONDS)
        drain(self._wake_r)
