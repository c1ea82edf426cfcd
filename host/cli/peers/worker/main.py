"""Answers names of measures on standard input by lines of JSON on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TextIO

from . import cells, commands, libraries
from .kind import AbsentError, Kind
from .measures import MEASURES

KINDS: dict[str, Callable[..., AbstractAsyncContextManager[Kind]]] = {
    "toolcell": cells.toolcell,
    "toolcell_session": cells.toolcell_session,
    "bwrap": commands.bwrap,
    "docker_run": commands.docker_run,
    "docker_exec": commands.docker_exec,
    "llm_sandbox": libraries.llm_sandbox,
    "llm_sandbox_interactive": libraries.llm_sandbox_interactive,
    "smolagents": libraries.smolagents,
    "mcp_run_python": libraries.mcp_run_python,
    "jupyter_kernel": libraries.jupyter_kernel,
    "monty": libraries.monty,
}
"""The function that opens each kind."""


def main() -> None:
    """Measure the kind that the command line names, until standard input ends."""
    kind, image, options = sys.argv[1:]
    serve(KINDS[kind](image, **json.loads(options)))


def serve(opening: AbstractAsyncContextManager[Kind]) -> None:
    """Answer on standard output until standard input ends.

    What a kind prints itself goes to standard error.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        asyncio.run(_serve(opening, answers))


async def _serve(opening: AbstractAsyncContextManager[Kind], answers: TextIO) -> None:
    def answer(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    try:
        async with opening as kind:
            answer(version=kind.version)
            while name := await asyncio.to_thread(sys.stdin.readline):
                try:
                    answer(values=await MEASURES[name.strip()](kind))
                except AbsentError as error:
                    answer(absent=str(error))
                except Exception as error:  # noqa: BLE001 - of any library
                    answer(failed=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - of any library
        answer(failed=f"{type(error).__name__}: {error}")
