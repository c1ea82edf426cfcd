"""The requests of a host, served by the first process of a cell."""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import select
import sys
import time

from ..accounting import disk
from ..accounting.processes import ProcessWatch
from ..accounting.usage import ResourceAccounting
from ..kernel import confine, signals
from ..kernel.descriptors import put_aside
from ..processes.pause import Pause
from ..processes.relay import ProcessRelay
from ..program import main as runner
from ..wire import aliases, trust
from ..wire.channel import HostGone, SupervisorChannel
from ..wire.contract import (
    ARTIFACTS,
    BESIDE,
    RENEWAL_SECONDS,
    SESSION_BASH_NAME,
)
from ..wire.frames import (
    PROTOCOL_VERSION,
    RUN_DEFAULTS,
    Frame,
    FrameError,
    encode,
)
from ..wire.output_page import OutputPage
from ..workdir import artifacts, files
from ..workdir.path_steps import acting_as
from .branches import Branches
from .child import Child, open_pipes
from .idle_limits import IdleLimits
from .reaper import Reaper
from .run import Run
from .warm_up import warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..relays.egress_relay import EgressRelay
    from .clean_slate import CleanSlate
    from .run import Watch
    from .zygote import Zygote


# A cell that is not used at once has time to warm up.
_IDLE_SECONDS = 0.01
# Where many programs follow each other a warm-up would take CPU time from them.
_RENEWED_IDLE_SECONDS = 0.05


def _compiled() -> bytes:
    """Return the modules of this bundle for the next cell of the same interpreter.

    No program has run here yet.
    """
    loader: Any = sys.modules[__name__].__spec__.loader  # type: ignore[union-attr]
    return marshal.dumps({**loader.modules, **loader.compiled}, 2)


class Supervisor:
    """The first process of a cell: it serves the requests of one host, one at a time.

    When a run begins, the cell has no processes but this one, the ready child, and the
    branches and commands of a session. This process runs no code of programs; what it
    reads from them is checked, or passed on unread.

    Args:
        descriptors: Those of the cell's accounts, of this process's own
            `oom_score_adj`, if programs cannot write to theirs, of the last process
            number, if several programs use the cell, of rules for this process, and of
            the paths in rules of programs; None to look for the accounts.
        ready: True if `runner.get_ready` was called before this process was forked.
        adopts: True if all that programs leave becomes this process's child.
    """

    _branches: Branches
    _disk: disk.DiskWatch | None
    _idle: IdleLimits
    _channel: SupervisorChannel
    _processes: ProcessRelay

    def __init__(
        self,
        descriptors: dict[str, int] | None = None,
        *,
        ready: bool = False,
        adopts: bool = False,
    ) -> None:
        self._ready = ready
        self._adopts = adopts = adopts or os.getpid() == 1
        self._child: Child | None = None
        self._wake_r, self._wake_w = os.pipe()
        self._settings: dict[str, Any] = {}
        self._held: list[str] = []
        own = descriptors if descriptors is not None else {}
        self._oom_score = own.pop("oom_score", None)
        self._last_pid = own.pop("last_pid", None)
        self._network = own.pop("network", -1)
        self._rules = own.pop("rules", None)
        self._paths = [own.pop(each) for each in [*own] if each.startswith("path ")]
        self._notifier = put_aside(own.pop("notifier")) if "notifier" in own else -1
        self._slate: CleanSlate | None = None
        self._zygote: Zygote | None = None
        self._accounting = ResourceAccounting(descriptors, adopts)
        self._reaper = Reaper(self._accounting, self._wake_r, adopts)
        self._egress: EgressRelay | None = None
        self._pause = Pause()
        self._artifacts = artifacts.Seen()
        self._watches: dict[str, Watch] = {}
        self._page = OutputPage()

    def prepare(self, settings: dict[str, Any]) -> None:
        """Protect this process and fork the first child, before the host connects.

        Args:
            settings: The confinement of every program of this cell.
        """
        self._protect()
        self._accounting.watch_memory(
            settings["memory_watch"], settings["uid"] if settings["confined"] else None
        )
        # A sealed process can no longer choose its CPUs.
        confine.narrow_affinity(settings["affinity"])
        if settings["renews"]:
            from .clean_slate import CleanSlate

            self._slate = CleanSlate(settings, self._last_pid)
        self._held += confine.seal(
            own_user=settings["uid"] is not None and not settings["confined"],
            renews=settings["renews"],
            confined=settings["confined"],
            rules=self._rules,
        )
        reach = settings.get("reach", [])
        self._held += ["landlock"] if reach else []
        self._settings = {
            **settings,
            "held": self._held,
            "first_to_go": self._oom_score is not None,
            "rules": -1,
            "paths": [(p, settings["rights"][at]) for at, p in enumerate(self._paths)],
            "reach": reach,
            "notifier": self._notifier,
            "network": self._network,
            "keepers": [os.getpid(), os.getppid()],
            "page": self._page,
        }
        confine.get_ready(self._settings)
        self._disk = disk.watch(self._settings)
        self._branches = Branches(settings["tmp"], settings["uid"], self._disk)
        if self._disk is not None:
            self._watches["disk_limit"] = self._disk
            self._accounting.notifier = os.getppid()
        if settings["confined"] and settings["more_processes"]:
            self._watches["killed"] = ProcessWatch(settings["more_processes"])
        if self._settings["aliases"]:
            aliases.make(self._settings["aliases"])
            if self._settings["authority"]:
                text = trust.bundle(self._settings["authority"])
                trust.make(self._settings["trust"], text)
        if not self._ready:
            runner.get_ready(self._settings)
            gc.collect()
        elif settings["confined"]:
            runner.move(self._settings)
        gc.freeze()
        if settings["renews"]:
            self._make_zygote()
        self._fork()

    def _make_zygote(self) -> None:
        """Have programs forked from a process that never held one, from now on."""
        if self._zygote is None and self._adopts:
            from .zygote import Zygote

            self._zygote = Zygote(self._settings, self._oom_score)

    def serve(self, channel: SupervisorChannel) -> None:
        """Greet the host and serve its requests until it closes the channel.

        Raises:
            HostGone: The host has closed the channel.
            FrameError: The host speaks another protocol.
        """
        self._channel = channel
        self._processes = ProcessRelay(
            channel,
            lambda: confine.fork_first_to_go(self._oom_score),
            self._accounting.take_kill,
        )
        self._accounting.commands = lambda: self._processes.pid
        self._accounting.ours = self._ours
        hello = channel.receive_only().header
        ready = {"type": "ready", "protocol": PROTOCOL_VERSION}
        if hello.get("protocol") != PROTOCOL_VERSION:
            channel.send(encode(ready))
            raise FrameError(f"host speaks protocol {hello.get('protocol')}")
        if self._child is None:
            self.prepare(hello["settings"])
        self._idle = IdleLimits(
            self._accounting, self._disk, self._branches, self._processes, self._pause
        )
        if not channel.has_more():
            self._warm_up()
        ready["python"] = sys.version.split()[0]
        channel.send(encode(ready, _compiled() if hello.get("code") else b""))
        # What is for programs comes after the word that this cell is a session's.
        self._handle_frame(channel.receive_only())
        while True:
            self._handle_frame(self._next_frame())

    def _next_frame(self) -> Frame:
        """Wait for a frame of the host; meanwhile pass on what commands say."""
        while self._processes.pid or self._idle.watches:
            frame = self._channel.take()
            if frame is not None:
                return frame
            poller = select.poll()
            poller.register(self._channel.read_fd, select.POLLIN)
            self._processes.watch(poller)
            for fd, _ in poller.poll(self._idle.keep()):
                if self._processes.owns(fd):
                    self._processes.pump(poller)
                else:
                    self._channel.read_more()
        return self._channel.receive()

    def _exec(self, frame: Frame) -> None:
        """Hand a frame about a command, a port or a watch to the process server.

        What the cell uses is known here, and files are served here.
        """
        header = frame.header
        if header["type"] == "usage_ask":
            return self._tell_usage(header["id"])
        if header["type"] == "file_ask":
            return self._serve_files(frame)
        if "branch" in header:
            folder = self._branches.folder(header["branch"]) or self._workdir
            header = {**header, "folder": folder}
        oom = self._accounting.oom_descriptor
        self._processes.forward(header, frame.payload, self._settings, oom)

    def _tell_usage(self, number: int) -> None:
        used = self._disk.used() if self._disk else disk.used(self._workdir)
        usage = {**self._accounting.totals(), "disk_bytes": used}
        self._channel.send(encode({"type": "usage_told", "id": number, **usage}))

    def _handle_frame(self, frame: Frame) -> None:
        """Serve a request; frames that came too late for their run are dropped."""
        kind = frame.header["type"]
        if kind == "run":
            frame.header = {**RUN_DEFAULTS, **frame.header}
            self._run(frame)
            # After a final one the host kills, or has the cell made new. A session that
            # keeps state may never want another.
            if not frame.header["final"] and frame.header["branch"] is None:
                self._keep_a_child_ready()
        elif kind == "keep":
            self._make_zygote()
        elif kind == "fork":
            self._fork_branch(frame.header)
        elif kind == "file":
            self._serve_files(frame)
        elif kind.startswith(BESIDE):
            self._exec(frame)
        elif kind == "pause":
            held = self._pause.begin()
            self._channel.send(encode({"type": "paused", "held": held}))
        elif kind == "resume":
            self._resume()
        elif kind == "drop":
            self._drop_branch(frame.header["branch"])

    def _fork_branch(self, header: dict[str, Any]) -> None:
        taken = self._lasting_pids()
        answer = self._branches.fork(header, self._accounting, taken)
        origin, branch = (
            self._branches.folder(header[end]) for end in ("branch", "to")
        )
        uid = self._settings["uid"]
        if branch and files.holds(branch, ARTIFACTS, uid):
            self._artifacts.copy(branch, origin, uid)
        self._channel.send(encode({"type": "forked", **answer}))
        self._reaper.kill_strays(self._lasting_pids())

    def _resume(self) -> None:
        # It reads that before it looks at deadlines again.
        header = {"type": "exec_resumed", "seconds": self._pause.seconds}
        self._exec(Frame(header, b"", b""))
        self._pause.end()
        self._channel.send(encode({"type": "resumed"}))

    def _drop_branch(self, name: str) -> None:
        folder = self._branches.folder(name)
        if folder != self._workdir:
            self._artifacts.forget(folder)
        self._branches.drop(name)
        # A large process takes long to end, but only the next run must not meet it.
        self._reaper.kill_once(self._lasting_pids())

    def _renew(self, slate: CleanSlate) -> None:
        """Have the next program find the cell as the first one did, or end the cell.

        The host has not asked: it destroys a cell that it does not want to use again.
        """
        until = time.monotonic() + RENEWAL_SECONDS
        try:
            slate.renew(until)
            if time.monotonic() > until:
                raise HostGone
            self._page.clear()
            self._artifacts = artifacts.Seen()
            self._fork(anew=True)
        except OSError as error:
            raise HostGone from error
        self._channel.send(encode({"type": "renewed"}))
        if not self._channel.has_more(_RENEWED_IDLE_SECONDS):
            self._warm_up()

    def _serve_files(self, frame: Frame) -> None:
        folder = self._branches.folder(frame.header["branch"]) or self._workdir
        uid, owns_root = self._settings["uid"], os.getpid() == 1
        size = len(frame.payload)
        full = size and self._disk is not None and not self._disk.has_room(size)
        answer = files.refuse(frame) if full else None
        answer = answer or files.answer(frame, folder, uid, owns_root=owns_root)
        self._channel.send(*answer)

    @property
    def _workdir(self) -> str:
        return str(self._settings["workdir"])

    def _keep_a_child_ready(self) -> None:
        if self._child is None:
            self._fork()
            if not self._channel.has_more(_IDLE_SECONDS):
                self._warm_up()

    def _protect(self) -> None:
        """Learn of children's ends, and be out of their reach."""
        for fd in (self._wake_r, self._wake_w):
            os.set_blocking(fd, False)
        signals.wake_by(self._wake_w)
        self._held += confine.stand_apart()

    def _fork(self, *, anew: bool = False) -> None:
        """Fork the process of the next run; `anew` as in `Zygote.fork`."""
        child, pipes = open_pipes(self._settings["uid"])
        if self._zygote is not None:
            child.pid = self._zygote.fork(pipes, anew=anew)
        else:
            child.pid = confine.fork_first_to_go(self._oom_score)
            if child.pid == 0:
                runner.start(pipes, self._settings)
        if self._paths:
            from ..kernel import landlock

            child.shown = landlock.files_of(child.pid)
        pipes.close()
        self._child = child

    def _warm_up(self) -> None:
        assert self._child is not None
        wake = self._wake_r, self._wake_w
        warm_up(self._child, self._channel, self._accounting, wake)

    def _run(self, frame: Frame) -> None:
        if self._reaper.pending:
            self._reaper.kill_strays(self._lasting_pids())
        if not frame.header["again"]:
            # Its program may leave what cannot be made new.
            self._slate = None
        branch = frame.header["branch"]
        child, lost = self._branches.take(branch)
        if child is None:
            if self._child is None:
                self._fork()
            child, self._child = self._child, None
        assert child is not None
        egress = self._egress_for(frame.header)
        run = Run(
            self._channel,
            child,
            frame.header,
            self._accounting,
            self._wake_r,
            egress,
            self._watches,
            self._page if frame.header["language"] == "python" else None,
        )
        run.commands = self._processes, self._exec
        run.hand_over(frame)
        try:
            run.watch()
            run.clean = run.ended and self._is_alone(run)
        finally:
            if not run.clean:
                self._kill_run(child, run)
        folder, uid = child.folder or self._workdir, self._settings["uid"]
        if frame.header["language"] == "bash" and not frame.header["final"]:
            with contextlib.suppress(OSError), acting_as(uid):
                os.unlink(os.path.join(folder, SESSION_BASH_NAME))
        left_some = files.holds(folder, ARTIFACTS, uid)
        run.finish(lost, left_some)
        self._tell_commands(run)
        if not run.is_final:
            self._page.clear()
        self._branches.give_back(branch, child, self._workdir, kept=run.kept)
        self._reaper.kill_strays(self._lasting_pids())
        if left_some:
            artifacts.send(folder, uid, self._channel, self._artifacts)
        self._accounting.rest()
        self._idle.begin()
        if run.clean and self._slate is not None:
            self._renew(self._slate)

    def _tell_commands(self, run: Run) -> None:
        """Have no command's end be put down to the kill that ended a run."""
        if self._processes.pid and run.killed_for_memory:
            self._processes.forward({"type": "exec_memory"}, b"", {}, -1)

    def _is_alone(self, run: Run) -> bool:
        """Return True if no process is left in the cell but those of ours."""
        if run.reap():
            return True
        zygote = self._zygote
        return zygote is not None and self._accounting.children() == [zygote.pid]

    def _kill_run(self, child: Child, run: Run) -> None:
        if run.is_final and self._zygote is not None:
            # All processes can be killed at once: this cell is not made new.
            self._zygote = None
        self._reaper.kill_run(child, run, self._lasting_pids())

    def _egress_for(self, request: dict[str, Any]) -> EgressRelay | None:
        """Return the relay of a run with a network, and set its proxy variables."""
        if request["network"] is None:
            return None
        if self._egress is None:
            from ..relays import egress_relay

            self._egress = egress_relay.EgressRelay(self._channel.send, self._notifier)
        network = request["network"]
        self._egress.begin(network)
        if network["set_variables"]:
            request["variables"] = self._egress.variables(
                network, self._settings["trust"]
            )
        return self._egress

    def _lasting_pids(self) -> set[int]:
        """Return the pids of processes that outlive a run."""
        known = self._branches.living() | self._ours()
        if self._child is not None:
            known.add(self._child.pid)
        return known

    def _ours(self) -> set[int]:
        """Return the pids of processes below this one that run no program."""
        ours = {self._processes.pid} if self._processes.pid else set()
        if self._zygote is not None:
            if self._zygote.is_gone():
                # Its number may be a program's now.
                raise HostGone
            ours.add(self._zygote.pid)
        return ours
