"""Caches results of tools; the guard still admits each call."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable, Collection

from pydantic import JsonValue

from .hook import Hook, Invocation, Proceed


class CacheHook(Hook):
    """Caches the content of the named tools, for each agent on its own.

    Unlike idempotency a cache forgets, and a call that it answers is a call like
    others: admitted, counted and recorded. Failures are not cached.

    Args:
        tools: Names of tools whose answers may be some seconds old.
        ttl_seconds: The age of an answer, default 60. When it is reached the tool runs.
        max_entries: Cached answers; default 1,000. When it is reached the one that was
            not used for the longest time is dropped.
        clock: Returns seconds that do not go backwards.
    """

    def __init__(
        self,
        tools: Collection[str],
        *,
        ttl_seconds: float = 60.0,
        max_entries: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tools = frozenset(tools)
        self._ttl = ttl_seconds
        self._max_entries = max_entries
        self._clock = clock
        self._cached: OrderedDict[tuple[str | None, ...], tuple[float, JsonValue]]
        self._cached = OrderedDict()

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        tool, call = invocation.tool, invocation.call
        if tool.name not in self._tools:
            return await proceed()
        key = (
            call.agent_id,
            tool.name,
            tool.definition_hash,
            invocation.arguments.text,
        )
        fresh_until, content = self._cached.get(key, (float("-inf"), None))
        if self._clock() < fresh_until:
            self._cached.move_to_end(key)
            return copy.deepcopy(content)
        content = await proceed()
        self._cached[key] = (self._clock() + self._ttl, copy.deepcopy(content))
        self._cached.move_to_end(key)
        if len(self._cached) > self._max_entries:
            self._cached.popitem(last=False)
        return content
