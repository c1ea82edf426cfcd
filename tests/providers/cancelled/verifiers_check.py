"""Gives up waiting for a program of verifiers."""

from __future__ import annotations

import asyncio

from toolcell.providers.verifiers import ToolcellRuntime

from .giving_up import CONFIG, SCRIPT, give_up


async def main() -> None:
    runtime = ToolcellRuntime(CONFIG)
    await runtime.start()
    thread = runtime._live
    waiting = runtime.run(["bash", "-c", SCRIPT], {})
    await give_up("verifiers", thread.guarded, waiting, thread.acall)
    await runtime.stop()


asyncio.run(main())
