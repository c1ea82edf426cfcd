"""What one agent may take of a server that others use, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_REQUEST_BYTES = 16_384
_AGENTS = 1_024


class TooManyError(Exception):
    """As many requests are in flight as may be, of all agents or of one."""


@dataclass(slots=True)
class _Account:
    """What an agent may still send, as of a moment."""

    left: float
    moment: float


class AgentShares:
    """The requests in flight, and the bytes that came lately, by agent.

    Args:
        most: Requests at once. One agent has at most as many as are left to the
            others, so there is a place for who comes first.
        bytes_per_second: That one agent may send on average; a request counts 16,384
            beside its body. When it is reached its further requests are refused.
        clock: Returns seconds.
    """

    def __init__(
        self, most: int, bytes_per_second: int, clock: Callable[[], float]
    ) -> None:
        self._most = most
        self._rate = bytes_per_second
        self._clock = clock
        self._requests: Counter[str] = Counter()
        self._accounts: dict[str, _Account] = {}

    def seconds_to_wait(self, agent_id: str) -> float:
        """Return how long an agent has to wait before its next request; 0: not."""
        return max(0.0, -self._account(agent_id).left / self._rate)

    def charge(self, agent_id: str, size: int) -> None:
        """Count a request with a body of so many bytes."""
        self._account(agent_id).left -= size + _REQUEST_BYTES

    def _account(self, agent_id: str) -> _Account:
        """Return an account up to date; those that owe nothing need not be kept."""
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
    def request(self, agent_id: str) -> Iterator[None]:
        """Hold a place for a request. Raises TooManyError if there is none."""
        in_flight = self._requests.total()
        if in_flight >= self._most:
            raise TooManyError(f"{self._most} requests are in flight")
        if self._requests[agent_id] >= self._most - in_flight:
            mine = self._requests[agent_id]
            raise TooManyError(f"{mine} requests of this agent are in flight")
        self._requests[agent_id] += 1
        try:
            yield
        finally:
            self._requests -= Counter([agent_id])

    def __len__(self) -> int:
        return self._requests.total()
