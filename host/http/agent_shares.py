"""Shares a server fairly among agents: requests at once, and bytes per second."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from toolcell.core.event_loop import large_values_of

_REQUEST_BYTES = 16_384
_AGENTS = 1_024
_TURNS = 16
"""About as many turns of the event loop as a small call takes."""


class TooManyError(Exception):
    """The limit of requests at once is reached, by all agents together or by one."""


_Kind = tuple[str, bool]
"""An agent, and True for its requests that end what it has begun."""


@dataclass(slots=True)
class _Account:
    """The bytes that an agent may still send, as of a moment."""

    left: float
    moment: float


class AgentShares:
    """The requests in flight, and the bytes received lately, by agent.

    Requests that end what their agent has begun count as those of one agent more: an
    agent that has filled its places, and its line, can still cancel its calls.

    Args:
        max_requests: Requests at once. One agent has at most as many as are left to
            the others, so that a new agent finds a place. When it is reached further
            requests raise TooManyError.
        bytes_per_second: Bytes that one agent may send on average; a request counts
            16,384 beside its body. When it is reached its further requests have to
            wait.
        clock: Returns seconds.
    """

    def __init__(
        self, max_requests: int, bytes_per_second: int, clock: Callable[[], float]
    ) -> None:
        self._max_requests = max_requests
        self._rate = bytes_per_second
        self._clock = clock
        self._requests: Counter[_Kind] = Counter()
        self._accounts: dict[str, _Account] = {}
        self._lines: dict[_Kind, deque[anyio.Event]] = {}

    def seconds_to_wait(self, agent_id: str) -> float:
        """Return the seconds until an agent may send its next request; 0: now."""
        return max(0.0, -self._account(agent_id).left / self._rate)

    def charge(self, agent_id: str, size: int) -> None:
        """Count a request with a body of `size` bytes."""
        self._account(agent_id).left -= size + _REQUEST_BYTES

    def _account(self, agent_id: str) -> _Account:
        """Return an agent's account up to date; drop accounts that owe nothing."""
        now = self._clock()
        account = self._accounts.get(agent_id)
        if account is None:
            if len(self._accounts) >= _AGENTS:
                self._accounts = {
                    name: each
                    for name, each in self._accounts.items()
                    if each.left + (now - each.moment) * self._rate < self._rate
                }
            account = self._accounts[agent_id] = _Account(self._rate, now)
        earned = (now - account.moment) * self._rate
        account.left = min(account.left + earned, self._rate)
        account.moment = now
        return account

    @contextmanager
    def request(self, agent_id: str, *, ends: bool = False) -> Iterator[None]:
        """Hold a place for a request, in which large values are read for its agent.

        Args:
            agent_id: The agent.
            ends: True for a request that ends what the agent has begun; default false.

        Raises:
            TooManyError: No place is free.
        """
        kind = agent_id, ends
        in_flight = self._requests.total()
        if in_flight >= self._max_requests:
            raise TooManyError(f"{self._max_requests} requests are in flight")
        if self._requests[kind] >= self._max_requests - in_flight:
            mine = self._requests[kind]
            raise TooManyError(f"{mine} requests of this agent are in flight")
        self._requests[kind] += 1
        try:
            with large_values_of(agent_id):
                yield
        finally:
            self._requests -= Counter([kind])

    async def turn(self, agent_id: str, *, ends: bool = False) -> bool:
        """Wait until a request of an agent may begin; a lone one begins at once.

        Of each agent one begins, and then none for as many turns of the event loop as
        a small call takes. So such a call waits for a request of each other agent, not
        for the hundred that one of them has sent together.

        Args:
            agent_id: The agent.
            ends: True for a request that ends what the agent has begun; default false.

        Returns:
            True if it waited; its token may have been revoked meanwhile.
        """
        kind = agent_id, ends
        line = self._lines.get(kind)
        if line is None:
            line = self._lines[kind] = deque()
            self._count(kind, line, _TURNS)
            return False
        begun = anyio.Event()
        line.append(begun)
        try:
            await begun.wait()
        finally:
            if not begun.is_set():
                line.remove(begun)
        return True

    def _count(self, kind: _Kind, line: deque[anyio.Event], turns: int) -> None:
        """Let the next request of a kind begin after some turns of the loop."""
        if turns == 0:
            if not line:
                del self._lines[kind]
                return
            line.popleft().set()
            turns = _TURNS
        call_soon = asyncio.get_running_loop().call_soon
        call_soon(self._count, kind, line, turns - 1)

    def __len__(self) -> int:
        return self._requests.total()
