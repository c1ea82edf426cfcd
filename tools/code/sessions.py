"""Sessions of code, held open between the calls of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.abc

from toolcell.core import (
    CellLostError,
    ConfigError,
    SandboxUnavailableError,
    ToolcellError,
)
from toolcell.guard import ActionGuard
from toolcell.sandbox import Sandbox, SandboxSession

from .session_costs import LOOK_SECONDS, SessionCosts
from .session_ends import SessionEnds

if TYPE_CHECKING:
    from toolcell.sandbox.spi import CellUsage

SessionEnd = Literal[
    "closed", "idle", "lifetime", "budget", "reclaimed", "lost", "shutdown"
]
"""The reason of a session's end: it was closed; not used for long; open for long; its
place went to another agent; its cell was lost; all sessions end."""


@dataclass(slots=True, eq=False, kw_only=True)
class CodeSession:
    """One session of code, while it is open."""

    number: int
    """Grows from session to session, from 1."""

    agent_id: str | None
    key: str
    costs: SessionCosts
    session: SandboxSession | None = None
    error: ToolcellError | None = None
    users: int = 0
    opened: float = field(default_factory=anyio.current_time)
    """The time at which it was first asked for, by the clock of the event loop."""

    opened_at: float = field(default_factory=time)
    """The same time, in seconds since 1970 (UTC)."""

    used: float = field(default_factory=anyio.current_time)
    closing: bool = False
    """True if the session ends as soon as it has no users."""

    waiting: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """The scope in which it waits for a place."""

    ready: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)
    programs: int = 0
    """The number of Python programs that were begun in it."""

    end: SessionEnd | None = None
    """The reason of its end; None while it is open."""

    fault: str = ""
    """The reason why its cell was lost, where more is known than that."""

    lost_before: str = ""
    """The reason why its key lost an earlier session, until a result has said it."""

    usage: CellUsage | None = None
    """The usage of its cell when it was measured last; None: it could not be."""

    measured: anyio.Event | None = None
    """Set once the measurement under way has ended; None: there is none."""

    artifacts: frozenset[tuple[str, str]] = frozenset()
    """The name and hash of each artifact of the last run."""


_MOMENT_SECONDS = 0.05
# Containers' engines are asked for at most five, and Docker answers after one or two.
_ASK_SECONDS = 6.0


class CodeSessions:
    """Cells that keep variables and files, one for each agent and session key.

    A session is opened when it is first used, and closed when it was not used for
    `SandboxConfig.session_idle_seconds`, or open for `session_lifetime_seconds`; the
    next use opens a new one. Use this as an async context manager; leaving it closes
    all of them.

    Args:
        sandbox: The sandbox with the cells; open, and closed by its owner after this.
        max_sessions: Sessions open at once; default 8. When it is reached the agent
            with most sessions loses the one that has been idle longest. If all of those
            are in use, it loses one as soon as that has no users, to an agent that has
            none or two fewer; such a wait ends with a refusal after the sandbox's
            `wall_seconds`. Other agents are refused at once.
        guard: Is charged with what sessions use between programs; None: no one is. A
            session whose agent has used a budget up ends.
        ends: Keeps why sessions ended; default in memory.

    Raises:
        ConfigError: The sandbox would have no cell left for anything else.
    """

    _tasks: anyio.abc.TaskGroup
    _places: anyio.CapacityLimiter

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        max_sessions: int = 8,
        guard: ActionGuard | None = None,
        ends: SessionEnds | None = None,
    ) -> None:
        if not 1 <= max_sessions < sandbox.config.max_concurrency:
            raise ConfigError(
                "max_sessions is at least 1, and below the sandbox's max_concurrency",
                hint="lower max_sessions, or raise max_concurrency of the sandbox",
            )
        self._sandbox = sandbox
        self._guard = guard
        self._max_sessions = max_sessions
        self._wait_seconds = sandbox.config.limits.wall_seconds
        self._idle_seconds = sandbox.config.session_idle_seconds
        self._lifetime_seconds = sandbox.config.session_lifetime_seconds
        self._open: dict[tuple[str | None, str], CodeSession] = {}
        self._opened = 0
        self._ends = ends or SessionEnds()
        self.listeners: list[Callable[[CodeSession], None]] = []
        """Called with each session that was opened, and of each that has ended."""

    async def __aenter__(self) -> CodeSessions:
        self._places = anyio.CapacityLimiter(self._max_sessions)
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        # The caller's error is not the group's: it goes on as it is.
        await self._tasks.__aexit__(None, None, None)

    @asynccontextmanager
    async def use(self, agent_id: str | None, key: str) -> AsyncIterator[CodeSession]:
        """Hold the session of an agent and a key; it is opened if there is none.

        Several callers may hold one session; its runs follow each other.

        Args:
            agent_id: The owner; no other agent gets the session.
            key: The client's session.

        Raises:
            SandboxUnavailableError: There is no cell, or all sessions are in use and
                none becomes free in time (`details["reason"]` is "sessions_full").
            StoreUnavailableError: Why the key's last session ended cannot be read.
        """
        found = self._open.get((agent_id, key))
        if found is not None and _is_gone(found):
            await ask_fault(found)
            found = self._open.get((agent_id, key))
        if found is None or _is_gone(found):
            found = self._begin(agent_id, key, found)
        found.users += 1
        try:
            await found.ready.wait()
            if found.error is not None:
                raise found.error
            async with found.costs.of_call(found):
                yield found
        finally:
            found.users -= 1
            found.used = anyio.current_time()
            if found.closing and not found.users:
                found.over.set()
            elif _is_gone(found):
                await ask_fault(found)
                self._forget(found, self._end_of_gone(found))

    async def aclose(self, agent_id: str | None, key: str) -> bool:
        """Close a session; its variables and files are lost.

        Returns:
            True if it was open.
        """
        found = self._open.get((agent_id, key))
        if found is None:
            return False
        self._forget(found, "closed")
        await found.closed.wait()
        return True

    async def interrupt(self, agent_id: str | None, key: str) -> bool:
        """Interrupt the run of a session, as Ctrl-C does; return True if it is open.

        The run ends as `cancelled`; a session without a run stays as it is.
        """
        found = self._open.get((agent_id, key))
        if found is None or found.session is None:
            return False
        await found.session.interrupt()
        return True

    async def usage(self, session: CodeSession) -> CellUsage | None:
        """Return what a session uses now, also while a program runs.

        A cell that does not answer is given up after 30 seconds. Whoever asks meanwhile
        gets the same measurement, and may stop waiting. None: nothing was measured.
        """
        if session.measured is None:
            session.measured = anyio.Event()
            # It goes on when nobody waits: a cell with half a question is lost.
            self._tasks.start_soon(self._measure, session, session.measured)
        await session.measured.wait()
        return session.usage

    async def _measure(self, session: CodeSession, measured: anyio.Event) -> None:
        try:
            if session.session is not None:
                session.usage = await session.session.usage()
        except ToolcellError:
            # If it is lost, the result of its next user says so.
            session.usage = None
        finally:
            session.measured = None
            measured.set()

    def all(self) -> list[CodeSession]:
        """Return the open sessions, the oldest first."""
        return sorted(self._open.values(), key=lambda each: each.opened)

    def __len__(self) -> int:
        return len(self._open)

    def _begin(
        self, agent_id: str | None, key: str, before: CodeSession | None
    ) -> CodeSession:
        if before is not None:
            self._forget(before, self._end_of_gone(before))
        why = self._ends.why((agent_id, key))
        while len(self._open) >= self._max_sessions:
            self._reclaim(self._least_needed(agent_id))
        self._opened += 1
        made = CodeSession(
            number=self._opened,
            agent_id=agent_id,
            key=key,
            costs=SessionCosts(self._guard),
            lost_before=why and _loss(why),
        )
        self._open[agent_id, key] = made
        self._tasks.start_soon(self._hold_open, made)
        return made

    def _least_needed(self, agent_id: str | None) -> CodeSession:
        """Return the session to close in favour of a new one of an agent."""
        owned = Counter(owner for owner, _ in self._open)
        mine, highest = owned[agent_id], max(owned.values())
        if highest >= (mine + 2 if mine else 1):
            # Of the agents with most: an idle session, or one in use once it is idle.
            able = [
                each for each in self._open.values() if owned[each.agent_id] == highest
            ]
        else:
            able = [each for each in self._open.values() if not each.users]
        if not able:
            raise self._full()
        return min(
            able, key=lambda each: (each.users > 0, -owned[each.agent_id], each.used)
        )

    def _full(self) -> SandboxUnavailableError:
        return SandboxUnavailableError(
            f"{self._max_sessions} sessions of code are in use already",
            hint="try again later, or raise max_sessions",
            details={"reason": "sessions_full", "retry_after": 1.0},
        )

    def _reclaim(self, held: CodeSession) -> None:
        """Let a session end as soon as it has no users, and take no new ones."""
        del self._open[held.agent_id, held.key]
        held.closing, held.end = True, "reclaimed"
        self._note_end(held)
        if not held.users:
            held.over.set()
        # If it still waits for its own place, it waits no longer.
        held.waiting.cancel()

    @asynccontextmanager
    async def _place(self, held: CodeSession) -> AsyncIterator[None]:
        """Hold one of the places for open sessions, once this session gets it."""
        with held.waiting:
            held.waiting.deadline = anyio.current_time() + self._wait_seconds
            await self._places.acquire_on_behalf_of(held)
        if held.waiting.cancelled_caught:
            raise self._full()
        try:
            yield
        finally:
            self._places.release_on_behalf_of(held)

    def _end_of_gone(self, gone: CodeSession) -> SessionEnd:
        # Its cell was used, and ended, a moment earlier.
        now = anyio.current_time() + _MOMENT_SECONDS
        if now - gone.opened >= self._lifetime_seconds:
            return "lifetime"
        # The sandbox ends sessions that are not used, too.
        return "idle" if now - gone.used >= self._idle_seconds else "lost"

    def _forget(self, gone: CodeSession, end: SessionEnd) -> None:
        if gone.end is None:
            gone.end = end
            self._note_end(gone)
        gone.over.set()
        if self._open.get((gone.agent_id, gone.key)) is gone:
            del self._open[gone.agent_id, gone.key]

    async def _hold_open(self, held: CodeSession) -> None:
        """Own the cell of a session from its first use to its end."""
        try:
            async with (
                self._place(held),
                self._sandbox.session(agent_id=held.agent_id) as session,
            ):
                held.session = session
                await held.costs.begin(held)
                # If it has ended already, the next one of its key says why.
                if held.end is None:
                    self._ends.note_open((held.agent_id, held.key))
                held.ready.set()
                self._tell(held)
                try:
                    end = await self._until_idle(held)
                    # A caller that comes now gets a new session.
                    self._forget(held, end)
                finally:
                    await held.costs.charge(held)
        except ToolcellError as error:
            held.error = error
        finally:
            self._forget(held, "shutdown")
            held.ready.set()
            held.closed.set()
            if held.session is not None:
                self._tell(held)

    def _note_end(self, ended: CodeSession) -> None:
        """Keep why a session ended, for the next result of its key."""
        if ended.session is None:
            return
        why = {
            "closed": "",
            "idle": f"it was not used for {self._idle_seconds:g} seconds"
            " (sandbox.session_idle_seconds)",
            "lifetime": f"it was open for {self._lifetime_seconds:g} seconds"
            " (sandbox.session_lifetime_seconds)",
            "reclaimed": "its place went to another one, as only"
            f" {self._max_sessions} are open at once (tools.max_sessions)",
            "budget": "a budget of its agent is used up",
            "lost": ended.fault or "its cell was lost",
        }.get(ended.end or "")
        if why is not None:
            self._ends.note_end((ended.agent_id, ended.key), why)

    def _tell(self, changed: CodeSession) -> None:
        for listener in self.listeners:
            listener(changed)

    async def _until_idle(self, held: CodeSession) -> SessionEnd:
        until = held.used + self._idle_seconds
        while held.users or anyio.current_time() < until:
            left = max(until - anyio.current_time(), 0.1)
            with anyio.move_on_after(min(left, LOOK_SECONDS)):
                await held.over.wait()
                return "idle"
            if not await held.costs.charge(held):
                return "budget"
            until = held.used + self._idle_seconds
        return "idle"


def _is_gone(held: CodeSession) -> bool:
    """Tell whether the cell of a session without users has ended."""
    session = held.session
    return not held.users and session is not None and not session.alive


def _loss(why: str) -> str:
    return (
        f"variables and files of this session are lost: {why}; upload files and set"
        " variables again"
    )


async def ask_fault(gone: CodeSession) -> None:
    """Ask a session whose cell has ended why."""
    assert gone.session is not None
    with anyio.move_on_after(_ASK_SECONDS, shield=True):
        try:
            await gone.session.usage()
        except CellLostError as error:
            gone.fault = error.message
        except ToolcellError:
            # That it was lost is known without an answer.
            return
