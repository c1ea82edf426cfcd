"""One synchronous convenience, for scripts and notebooks."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel

from .config.settings import SandboxConfig
from .manager import SandboxManager
from .results.result import ExecutionResult


def run(
    code: str, *, config: SandboxConfig | None = None, **options: Any
) -> ExecutionResult:
    """Run one program and return its result.

    Where an event loop runs in this thread already, as in a notebook, it stands still
    meanwhile: the program is waited for in a loop of another thread.

    Args:
        code: The program's text.
        config: How and where to run; the defaults are closed.
        **options: As in `SandboxManager.run`.

    Raises:
        InvalidInputError: The arguments cannot be used.
        SandboxUnavailableError: There is no cell to be had.
        CellLostError: The cell went away during the run.
    """

    async def once() -> ExecutionResult:
        async with SandboxManager(config) as sandbox:
            return await sandbox.run(code, **options)

    if not _loop_runs():
        return anyio.run(once)
    with anyio.from_thread.start_blocking_portal() as portal:
        return portal.call(once)


def _loop_runs() -> bool:
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return False
    return True
