"""Background tasks of one request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from toolcell.core.event_loop import unwrapped_single_error


@asynccontextmanager
async def background_tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Yield a group whose tasks end with the body; one error is raised as it is."""
    with unwrapped_single_error():
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
