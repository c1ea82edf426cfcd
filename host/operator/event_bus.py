"""The events of a host: what publishes them, and how an agent's are read."""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel

from toolcell.core import StoreUnavailableError
from toolcell.guard import ActionGuard, ApprovalRequest, Approvals
from toolcell.sandbox import SandboxManager
from toolcell.tools.spi import CodeSession, CodeSessions

from .events import (
    EVENTS,
    ApprovalAsked,
    ApprovalEnded,
    ApprovalVoted,
    Event,
    PolicyChanged,
    SessionClosed,
    SessionOpened,
    StoreAvailable,
    StoreUnavailable,
)

Listener = Callable[[Event], None]
"""Receives events, in the event loop of the host."""

LOOK_SECONDS = 1.0
"""Seconds between two looks at the requests that wait: they are answered anywhere."""

_log = logging.getLogger("toolcell.host")
MAX_EVENTS = 1_000
"""Events of one agent that are kept. When it is reached the oldest one is dropped, and
a client that has not read it learns so."""

OPERATORS = "*"
"""The name under which operators read the events of all agents; no agent has it."""

_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,15})")


class EventBus:
    """Brings events of one host to listeners. It is made in the host's event loop."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._thread = threading.get_ident()
        self._loop = anyio.lowlevel.current_token()

    @contextmanager
    def subscribed(self, listener: Listener) -> Iterator[None]:
        """Call a listener with all events inside the block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def has_listeners(self) -> bool:
        """True if there is a listener."""
        return bool(self._listeners)

    def publish(self, event: Event) -> None:
        """Call the listeners with an event; a thread waits until they are done."""
        if threading.get_ident() == self._thread:
            self._publish(event)
        else:
            anyio.from_thread.run_sync(self._publish, event, token=self._loop)

    def _publish(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def follow_guard(self, guard: ActionGuard) -> None:
        """Publish changes of the policies and the store of a guard."""

        def publish(event: str, fields: Mapping[str, str]) -> None:
            match event:
                case "policies":
                    self.publish(PolicyChanged(agent=None, version=fields["version"]))
                case "store_unavailable":
                    self.publish(StoreUnavailable(agent=None, store="guard"))
                case "store_available":
                    self.publish(StoreAvailable(agent=None, store="guard"))

        guard.listeners.append(publish)

    def follow_cells(self, sandbox: SandboxManager) -> None:
        """Publish that cells are lost, discarded, or cannot be made."""

        def publish(event: str, facts: Mapping[str, str | None]) -> None:
            # Programs run far more often than anybody listens.
            if self.has_listeners:
                self.publish(EVENTS[f"cell.{event}"].model_validate(facts))

        sandbox.cell_listeners.append(publish)

    def follow_sessions(self, sessions: CodeSessions) -> None:
        """Publish the beginnings and ends of sessions of code."""

        def publish(session: CodeSession) -> None:
            agent, number, key = session.agent_id, session.number, session.key
            if session.end is None:
                self.publish(SessionOpened(agent=agent, number=number, session=key))
            else:
                event = SessionClosed(
                    agent=agent, number=number, session=key, reason=session.end
                )
                self.publish(event)

        sessions.listeners.append(publish)


async def watch_approvals(
    approvals: Approvals,
    report: Callable[[Event], None],
    *,
    look_seconds: float = LOOK_SECONDS,
) -> None:
    """Report requests that come and go, and the state of their store.

    Args:
        approvals: The approvals; they are read until the task is cancelled.
        report: Receives the events.
        look_seconds: Seconds between two looks.
    """
    known: dict[str, tuple[dict[str, Any], int]] = {}
    away = False
    while True:
        try:
            now = await approvals.waiting()
            for request_id in known.keys() - now.keys():
                report(await _end_event(approvals, known[request_id][0]))
                del known[request_id]
            for request_id, votes in now.items():
                if request_id not in known:
                    found = await approvals.find(request_id)
                    if found is None:
                        continue
                    known[request_id] = _facts(found.request), votes
                    report(ApprovalAsked(**known[request_id][0]))
                elif votes != known[request_id][1]:
                    known[request_id] = known[request_id][0], votes
                    report(ApprovalVoted(**known[request_id][0]))
            if away:
                away = False
                report(StoreAvailable(agent=None, store="approvals"))
        except StoreUnavailableError as error:
            if not away:
                away = True
                _log.warning("requests for approval cannot be read: %s", error)
                report(StoreUnavailable(agent=None, store="approvals"))
        await anyio.sleep(look_seconds)


async def _end_event(approvals: Approvals, facts: dict[str, Any]) -> Event:
    found = await approvals.find(facts["id"])
    status = "expired"
    if found is not None and found.ended_because is not None:
        status = "ended"
    elif found is not None and found.status != "pending":
        status = "rejected" if found.status == "rejected" else "approved"
    return ApprovalEnded(**facts, status=status)


def _facts(request: ApprovalRequest) -> dict[str, Any]:
    call = request.call
    return {"agent": call.agent_id, "id": request.id, "tool": call.name}


@dataclass(slots=True)
class _Agent:
    """The events of one agent; the last one has the number `last`."""

    kept: deque[tuple[int, str, str]] = field(
        default_factory=lambda: deque(maxlen=MAX_EVENTS)
    )
    last: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)


class Events:
    """The latest events of each agent, and readers that follow them.

    A reader holds no queue: it has a number, and reads what is kept after it. So one
    that never reads costs nothing but its connection.
    """

    def __init__(self) -> None:
        self._boot = secrets.token_hex(8)
        self._agents: dict[str, _Agent] = {}
        self._closed = False

    def put(self, event: Event) -> None:
        """Keep an event for the readers of its agent, and for operators."""
        facts = event.model_dump_json()
        if event.agent is not None:
            self._append(event.agent, event.kind, facts)
        self._append(OPERATORS, event.kind, facts)

    def _append(self, name: str, kind: str, facts: str) -> None:
        agent = self._agents.setdefault(name, _Agent())
        agent.last += 1
        agent.kept.append((agent.last, kind, facts))
        agent.changed.set()
        agent.changed = anyio.Event()

    def latest(self, agent_id: str) -> str:
        """Return the id of an agent's latest event, to read from there on later."""
        return f"{self._boot}-{self._agents.setdefault(agent_id, _Agent()).last}"

    def close(self) -> None:
        """End all readers."""
        self._closed = True
        for agent in self._agents.values():
            agent.changed.set()

    async def read(
        self,
        agent_id: str,
        last_id: str | None,
        *,
        seconds: float,
        turn: Callable[[], Awaitable[object]] = anyio.lowlevel.checkpoint,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of an agent in the form of server-sent events.

        The first one is `stream.opened`. Its `complete` is false if events since
        `last_id` are not kept any more: the client then has to read everything anew.

        Args:
            agent_id: The agent; `OPERATORS` reads the events of all.
            last_id: The id of the last event that the client has; None: only what
                happens from now on.
            seconds: Seconds after which the stream ends.
            turn: Called before what an event, or the end, brings about: all readers of
                an agent wake at once.
        """
        agent = self._agents.setdefault(agent_id, _Agent())
        number, complete = self._start(agent, last_id)
        yield self._text(number, "stream.opened", json.dumps({"complete": complete}))
        end = anyio.current_time() + seconds
        while not self._closed:
            changed = agent.changed
            for each, kind, facts in [row for row in agent.kept if row[0] > number]:
                if each != number + 1:
                    # The reader lagged; a new stream says so.
                    return
                number = each
                yield self._text(each, kind, facts)
            if agent.last > number:
                continue
            left = end - anyio.current_time()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await changed.wait()
            await turn()

    def _start(self, agent: _Agent, last_id: str | None) -> tuple[int, bool]:
        """Return the number to read after, and True if nothing before it is missing."""
        if last_id is None:
            return agent.last, True
        found = _ID.fullmatch(last_id)
        oldest = agent.last - len(agent.kept)
        if found is None or found[1] != self._boot:
            return oldest, False
        number = int(found[2])
        if not oldest <= number <= agent.last:
            return oldest, False
        return number, True

    def _text(self, number: int, kind: str, facts: str) -> bytes:
        return f"id: {self._boot}-{number}\nevent: {kind}\ndata: {facts}\n\n".encode()


@asynccontextmanager
async def open_events(
    bus: EventBus, approvals: Approvals, *, look_seconds: float = LOOK_SECONDS
) -> AsyncIterator[Events]:
    """Keep the events of a host while the block runs.

    Args:
        bus: Where they are published.
        approvals: The approvals, whose requests may be answered by another process.
        look_seconds: Seconds between two looks at the requests that wait.
    """
    events = Events()
    watch = partial(watch_approvals, look_seconds=look_seconds)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, approvals, events.put)
        with bus.subscribed(events.put):
            try:
                yield events
            finally:
                events.close()
                tasks.cancel_scope.cancel()
