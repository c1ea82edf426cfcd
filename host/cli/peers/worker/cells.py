"""toolcell's cells, by its public interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from .commands import PYTHON
from .kind import AbsentError, Kind, Run

_SLEEPS = "import time; time.sleep(1)"
_POLL_SECONDS, _READY_SECONDS = 0.01, 30.0


async def _cells_ready(sandbox: Any, count: int) -> None:
    until = time.monotonic() + _READY_SECONDS
    while sandbox.pool_stats().ready < count and time.monotonic() < until:
        await asyncio.sleep(_POLL_SECONDS)


def _cells(image: str, backend: str, **options: Any) -> Any:
    """Return a new manager of toolcell."""
    sandbox = import_module("toolcell.sandbox")
    place = {"image": image} if backend == "docker" else {"python": PYTHON}
    config = sandbox.SandboxConfig(backend=backend, **place, **options)
    return sandbox.SandboxManager(config)


@asynccontextmanager
async def toolcell(
    image: str, backend: str = "subprocess", pool: int = 0, programs_per_cell: int = 1
) -> AsyncIterator[Kind]:
    """toolcell: a new cell for each program, or one that is made new for the next."""
    reused = {"programs_per_cell": programs_per_cell}

    async def run(sandbox: Any, code: str) -> str:
        return str((await sandbox.run(code, agent_id="bench")).stdout)

    @asynccontextmanager
    async def idle(count: int) -> AsyncIterator[None]:
        size = count if pool else 0
        async with _cells(image, backend, pool=size, **reused) as sandbox:
            await _cells_ready(sandbox, size)
            if programs_per_cell > 1:
                at_once = (run(sandbox, _SLEEPS) for _ in range(count))
                await asyncio.gather(*at_once)
            elif not pool:
                raise AbsentError("no cell waits between programs")
            yield

    async with _cells(image, backend, pool=pool, **reused) as sandbox:

        @asynccontextmanager
        async def single() -> AsyncIterator[Run]:
            yield partial(run, sandbox)

        yield Kind(
            version=version("toolcell"),
            open=single,
            idle=idle,
            prepared=pool,
            ready=partial(_cells_ready, sandbox, pool),
            containers=backend == "docker",
        )


@asynccontextmanager
async def toolcell_session(
    image: str, backend: str = "subprocess"
) -> AsyncIterator[Kind]:
    """toolcell: a session that keeps its interpreter."""
    async with _cells(image, backend) as sandbox:

        @asynccontextmanager
        async def session() -> AsyncIterator[Run]:
            async with sandbox.session(agent_id="bench") as opened:

                async def run(code: str) -> str:
                    return str((await opened.run(code)).stdout)

                yield run

        yield Kind(
            version=version("toolcell"),
            open=session,
            keeps_state=True,
            containers=backend == "docker",
        )
