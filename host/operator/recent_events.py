"""Events of each agent, numbered, so that a client can go on where it stopped."""

from __future__ import annotations

import json
import re
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from toolcell.guard import Approvals

from .approval_events import LOOK_SECONDS, watch_approvals
from .events import Event
from .notices import Notices

MAX_EVENTS = 1_000
"""Events of one agent that are kept. When it is reached the oldest one is dropped, and
a client that has not read it is told so."""

OPERATORS = "*"
"""The name under which operators read the events of all agents; no agent has it."""

_ID = re.compile(r"([0-9a-f]{16})-([0-9]{1,15})")


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
        """Tell the readers of an event: those of its agent, and operators."""
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
        for each in self._agents.values():
            each.changed.set()

    async def read(
        self,
        agent_id: str,
        last_id: str | None,
        *,
        seconds: float,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of an agent in the form of server-sent events.

        The first one is `stream.opened`. Its `complete` is false if events since
        `last_id` are not kept any more: the client then has to read everything anew.

        Args:
            agent_id: The agent; `OPERATORS` reads the events of all.
            last_id: The id of the last event that the client has; None: only what
                happens from now on.
            seconds: Seconds after which the stream ends.
        """
        agent = self._agents.setdefault(agent_id, _Agent())
        number, complete = self._start(agent, last_id)
        yield self._text(number, "stream.opened", json.dumps({"complete": complete}))
        end = anyio.current_time() + seconds
        while not self._closed:
            changed = agent.changed
            for each, kind, facts in [row for row in agent.kept if row[0] > number]:
                if each != number + 1:
                    # The reader lagged; a new stream tells it.
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
    notices: Notices, approvals: Approvals, *, look_seconds: float = LOOK_SECONDS
) -> AsyncIterator[Events]:
    """Keep the events of a host while the block runs.

    Args:
        notices: Where they are reported.
        approvals: The approvals, whose requests may be answered by another process.
        look_seconds: Seconds between two looks at the requests that wait.
    """
    events = Events()
    watch = partial(watch_approvals, look_seconds=look_seconds)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, approvals, events.put)
        with notices.heard(events.put):
            try:
                yield events
            finally:
                events.close()
                tasks.cancel_scope.cancel()
