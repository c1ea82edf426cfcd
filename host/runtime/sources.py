"""The state that pages read and change: that of a host, or that of its files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from toolcell.guard import ActionGuard, Approvals, AuditLog, Redactor
from toolcell.tools import Records, ToolRegistry

from ..config.host_config import HostConfig
from ..operator.event_bus import EventBus
from ..operator.pictures import Pictures
from .assembly import list_registry, open_guard, open_pictures, open_records
from .host import Host
from .policy_reload import PolicyReloader


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The parts of a host that pages show, all of them open."""

    config: HostConfig
    guard: ActionGuard
    approvals: Approvals
    audit: AuditLog | None
    redactor: Redactor
    registry: ToolRegistry
    """The tools; in its own process the console cannot call them."""

    records: Records
    pictures: Pictures | None
    """The pictures that calls drew. None: there is no folder to keep them in."""

    event_bus: EventBus
    """Publishes what happens in this process."""

    host: Host | None
    """The host that serves in this process. None: another process does, and what runs
    now is not known here."""


def sources_of(host: Host) -> Sources:
    """Return the sources of an open host."""
    return Sources(
        config=host.config,
        guard=host.guard,
        approvals=host.approvals,
        audit=host.audit,
        redactor=host.redactor,
        registry=host.registry,
        records=host.executor.records,
        pictures=host.live_calls.pictures,
        event_bus=host.event_bus,
        host=host,
    )


@asynccontextmanager
async def open_sources(
    config: HostConfig, path: Path, environ: Mapping[str, str]
) -> AsyncIterator[Sources]:
    """Open what the processes of a configuration share, and start no host.

    Policies follow their files.

    Args:
        config: The configuration, with a folder for state.
        path: Its file.
        environ: The environment, from which `env:` secrets are read.

    Raises:
        ToolcellError: A part cannot be opened.
    """
    async with AsyncExitStack() as stack:
        event_bus = EventBus()
        guarding = open_guard(config, environ, stack)
        event_bus.follow_guard(guarding.guard)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(PolicyReloader(guarding.guard, config, path).watch)
        stack.callback(tasks.cancel_scope.cancel)
        yield Sources(
            config=config,
            guard=guarding.guard,
            approvals=guarding.approvals,
            audit=guarding.audit,
            redactor=guarding.redactor,
            registry=list_registry(config, guarding.guard),
            records=open_records(config, stack),
            pictures=open_pictures(config, stack),
            event_bus=event_bus,
            host=None,
        )
