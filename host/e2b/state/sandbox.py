"""One sandbox: a session with an owner and an end, and what runs in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import anyio
import anyio.abc

from toolcell.sandbox import SandboxSession
from toolcell.sandbox.spi import SandboxProcess, SandboxWatch
from toolcell.tools import Operation
from toolcell.tools.spi import SessionEnd

from ...http.tokens import Token
from ..protocol.errors import gone

ENVD_VERSION = "0.6.4"
"""The version of E2B's daemon whose calls are served; clients choose theirs by it."""


@dataclass(slots=True, eq=False)
class StartedCommand:
    """A command that a client started."""

    process: SandboxProcess
    config: Mapping[str, Any]
    has_terminal: bool
    has_limit: bool
    """False if it runs until its sandbox ends."""

    tag: str | None = None
    attached: anyio.Event = field(default_factory=anyio.Event)
    """Set when the client that started it has stopped reading."""

    ended: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True, eq=False)
class Watcher:
    """A folder whose changes a client asks for again and again."""

    watch: SandboxWatch
    folder: str | None
    """The folder, if events tell how what has changed is now."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(slots=True, eq=False, kw_only=True)
class CodeContext:
    """A place to run code in; of Python it has its own interpreter."""

    id: str
    language: str
    cwd: str
    session: SandboxSession
    is_default: bool = False
    runs: int = 0
    is_in_place: bool = False
    """True once its interpreter is in its folder."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The length of a sandbox's life, and its end."""

    seconds: int
    """Seconds from its start, and from each time that a request wakes it up."""

    pauses: bool = False
    """True: it is paused then. False: it ends."""

    wakes_up: bool = False
    """True: a request to a paused sandbox lets it go on."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sandbox:
    """One sandbox. Times are seconds since 1970 (UTC)."""

    id: str
    token: Token
    template: str
    lifecycle: Lifecycle
    end_at: float
    env: dict[str, str]
    metadata: dict[str, str]
    home: str
    started_at: float = field(default_factory=lambda: round(time.time(), 6))
    """To the microsecond, as clients see it."""

    commands: dict[int, StartedCommand] = field(default_factory=dict)
    contexts: dict[str, CodeContext] = field(default_factory=dict)
    watchers: dict[str, Watcher] = field(default_factory=dict)
    state: Literal["running", "paused", "ended"] = "running"
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while it is paused or resumed."""

    end_reason: SessionEnd | None = None
    """The reason of its end; None until it ends."""

    closed: anyio.Event = field(default_factory=anyio.Event)
    tasks: anyio.abc.TaskGroup | None = None
    """The tasks that end with it: its commands."""

    has_metadata: bool = False
    """True once a file was written with metadata; later writes then replace it."""

    measured_at: float = 0.0
    cpu_ms: float = 0.0
    """Of all that ran in it until it was measured last."""

    accounted_ms: float = 0.0
    """CPU time of all that ran in it, as far as its agent was charged."""

    programs: set[Operation] = field(default_factory=set)
    """Commands and code that are open now."""

    opened: SandboxSession | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def agent_id(self) -> str:
        """The agent that its calls are made as."""
        return self.token.agent_id

    @property
    def base_env(self) -> dict[str, str]:
        """The environment variables of all that runs in it."""
        own = {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": self.id, "HOME": self.home}
        return {**own, **self.env}

    @property
    def session(self) -> SandboxSession:
        """Its session. Raises APIError if it has ended."""
        if self.opened is None or self.state == "ended":
            raise gone(self.id)
        return self.opened

    @property
    def is_busy(self) -> bool:
        """True while something is held for a program, which covers all in the cell."""
        return not all(program.is_settled for program in self.programs)

    @property
    def is_alive(self) -> bool:
        """True unless its cell is known to be gone."""
        return self.opened is not None and self.opened.alive

    @property
    def work(self) -> anyio.abc.TaskGroup:
        """The tasks that end with it. Raises APIError if it has ended."""
        if self.tasks is None or self.state == "ended":
            raise gone(self.id)
        return self.tasks

    @property
    def is_asleep(self) -> bool:
        """True if it is paused, and the next request wakes it up."""
        return self.state == "paused" and self.lifecycle.wakes_up

    async def metrics(self) -> dict[str, Any]:
        """Measure it; the CPU time is that since the last measurement.

        Raises:
            APIError: It has ended.
            CellLostError: Its cell is gone.
        """
        usage, limits = await self.session.usage(), self.session.limits
        now, before = time.time(), self.measured_at or self.started_at
        spent_ms = max(usage.cpu_ms - self.cpu_ms, 0.0)
        self.measured_at, self.cpu_ms = now, usage.cpu_ms
        cpus = max(1, round(limits.cpus))
        share = spent_ms / 1000 / max(now - before, 0.001) / cpus
        return {
            "timestamp": _date(now),
            "timestampUnix": int(now),
            "cpuCount": cpus,
            "cpuUsedPct": round(min(100 * share, 100.0), 2),
            "memUsed": usage.memory_bytes,
            "memTotal": limits.memory_mib << 20,
            "memCache": usage.disk_bytes,
            "diskUsed": usage.disk_bytes,
            "diskTotal": limits.disk_mib << 20,
        }

    def end(self, reason: SessionEnd) -> None:
        """Let it end, for this reason if it has none."""
        self.state = "ended"
        self.end_reason = self.end_reason or reason
        self._wake()

    def set_end(self, end_at: float) -> None:
        """Let it end at another time."""
        self.end_at = end_at
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_for_end(self) -> None:
        """Wait until its time is over, or `end` is called."""
        while self.state != "ended" and (left := self.end_at - time.time()) > 0:
            with anyio.move_on_after(left):
                await self.changed.wait()

    def to_json(self) -> dict[str, Any]:
        """Return what its owner sees of it, without its access token."""
        limits = self.session.limits
        return {
            "sandboxID": self.id,
            "templateID": self.template,
            "alias": self.template,
            "clientID": "toolcell",
            "startedAt": _date(self.started_at),
            "endAt": _date(self.end_at),
            "envdVersion": ENVD_VERSION,
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory_mib,
            "diskSizeMB": limits.disk_mib,
            "metadata": self.metadata,
            "state": self.state,
            "lifecycle": {
                "autoResume": self.lifecycle.wakes_up,
                "onTimeout": "pause" if self.lifecycle.pauses else "kill",
            },
        }


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
