"""Threads that may go on without being asked for: which ones to look at."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from ..execution.components import FlowComponents
from ..execution.thread_requests import thread_of


async def threads_to_look_at(parts: FlowComponents, now: datetime) -> list[str]:
    """Return the threads whose owner may have died, or that may wait no longer.

    Those with answers come from the store's index of them. Of the other paused ones the
    head says whether time or a request for approval can end the waiting, so that none
    is read as a whole in vain.
    """
    store, graph = parts.checkpointer, parts.graph.name
    running = await store.every_head(graph=graph, status="running")
    found = [head.thread_id for head in running]
    found += await store.answered(graph)
    pending = await _pending_requests(parts)
    for head in await store.every_head(graph=graph, status="interrupted"):
        expired = head.expires is not None and head.expires <= now
        if expired or pending[head.thread_id] < head.requests:
            found.append(head.thread_id)
    return list(dict.fromkeys(found))


async def _pending_requests(parts: FlowComponents) -> Counter[str]:
    """Return the number of requests that wait for people, by thread."""
    if parts.approvals is None:
        return Counter()
    return Counter(map(thread_of, await parts.approvals.pending()))
