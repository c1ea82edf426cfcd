"""One synchronous convenience, for scripts and notebooks."""

from __future__ import annotations

from typing import Any

import anyio

from .config import SandboxConfig
from .manager import SandboxManager
from .result import ExecutionResult


def run(
    code: str, *, config: SandboxConfig | None = None, **options: Any
) -> ExecutionResult:
    """Run one program and return its result.

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

    return anyio.run(once)
