"""Agents: their limits, and what they used hour by hour."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from time import time
from urllib.parse import quote

import anyio.to_thread
from starlette.responses import Response

from toolcell.tools.spi import UsageHour

from ...operator.limits import agent_limits
from ..web.visit import ActionRefusedError, Visit
from .charts import HOUR, HOURS, charts


async def show(visit: Visit) -> Response:
    """Show all agents, with the sums of their last day, and all of them together."""
    now = time()
    usage = await _usage(visit, now)
    sums: dict[str, list[UsageHour]] = {}
    for hour in usage:
        if hour.hour >= now - 24 * HOUR:
            sums.setdefault(hour.agent_id, []).append(hour)
    host = visit.sources.host
    live = [] if host is None else [call.agent_id for call in host.live_calls.all()]
    known = visit.sources.guard.agents
    rows = [
        {
            "id": agent_id,
            "has_policy": agent_id in known,
            "live": live.count(agent_id),
            "calls": sum(each.calls for each in sums.get(agent_id, ())),
            "denied": sum(each.denied for each in sums.get(agent_id, ())),
            "failed": sum(each.failed for each in sums.get(agent_id, ())),
            "usd": sum(each.usd for each in sums.get(agent_id, ())),
        }
        for agent_id in [*known, *sorted(sums.keys() - set(known) - {""})]
    ]
    return visit.render(
        "agents.html",
        rows=rows,
        here=host is not None,
        charts=charts(usage, now),
        hours=HOURS,
    )


async def show_one(visit: Visit) -> Response:
    """Show the limits of an agent, and its use by hour."""
    agent_id, now, sources = visit.part("agent"), time(), visit.sources
    hours = await _usage(visit, now, agent_id)
    if agent_id not in sources.guard.agents and not hours:
        raise ActionRefusedError(404, "there is no such agent")
    return visit.render(
        "agent.html",
        agent_id=agent_id,
        has_policy=agent_id in sources.guard.agents,
        limits=await agent_limits(sources.guard, sources.registry, agent_id),
        charts=charts(hours, now),
        hours=HOURS,
        now=now,
    )


async def reset(visit: Visit) -> Response:
    """Set the counters of an agent back to zero."""
    agent_id = visit.part("agent")
    await visit.sources.guard.reset(agent_id, by=visit.person.id)
    return visit.go(f"/agents/{quote(agent_id)}")


async def _usage(
    visit: Visit, now: float, agent_id: str | None = None
) -> list[UsageHour]:
    """Return the use of the hours that are drawn, by agent."""
    since = (now // HOUR - (HOURS - 1)) * HOUR
    search = partial(
        visit.sources.records.usage_hours,
        since=datetime.fromtimestamp(since, UTC),
        agent_id=agent_id,
    )
    return await anyio.to_thread.run_sync(search)
