"""Runs programs that a model wrote, in cells."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from toolcell.sandbox import Described, ExecutionResult, SandboxManager, Session

from ..running import account
from ..tool import Tool, tool

_EXTRA_SECONDS = 10.0


def code_tools(place: SandboxManager | Session) -> list[Tool]:
    """Return `run_python` and `run_shell`.

    A program that fails is no failed call: the model reads how it ended, and what it
    printed. Limits are those of the sandbox.

    Args:
        place: A manager runs each program in a cell of its own; in a session
            programs see the files of those before them.
    """
    limits = place.limits if isinstance(place, Session) else place.config.limits
    wall_ms = round(limits.wall_seconds * 1000)
    most = {
        "cpu_ms": round(wall_ms * max(1.0, limits.cpus)),
        "bytes": 2 * limits.output_bytes,
    }
    # The cell's deadline is the one that kills; waiting for a cell comes on top.
    seconds = limits.wall_seconds + _EXTRA_SECONDS

    @tool(tags={"code"}, cost=most, timeout=seconds)
    async def run_python(code: str) -> dict[str, JsonValue]:
        """Run a Python program in a sandbox without network.

        Args:
            code: The whole program. Print what you want to see; the value of its last
                expression is returned too.
        """
        return _told(await _run(place, code, "python"))

    @tool(tags={"code"}, cost=most, timeout=seconds)
    async def run_shell(command: str) -> dict[str, JsonValue]:
        """Run a bash script in a sandbox without network.

        Args:
            command: The whole script.
        """
        return _told(await _run(place, command, "bash"))

    return [run_python, run_shell]


async def _run(
    place: SandboxManager | Session, code: str, language: Literal["python", "bash"]
) -> ExecutionResult:
    if isinstance(place, Session):
        result = await place.run(code, language=language, fresh=True)
    else:
        result = await place.run(code, language=language)
    account(result)
    return result


def _told(result: ExecutionResult) -> dict[str, JsonValue]:
    """Return what a model needs to know of a run."""
    told: dict[str, JsonValue] = {
        "status": result.status,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "exit_code": result.exit_code,
    }
    if isinstance(result.value, Described):
        told["value"] = result.value.repr
    elif result.value is not None:
        told["value"] = result.value
    if result.truncated:
        told["truncated"] = result.truncated.model_dump()
    if result.exception is not None:
        told["traceback"] = result.exception.traceback
    if result.reasons:
        told["reasons"] = list(result.reasons)
    return told
