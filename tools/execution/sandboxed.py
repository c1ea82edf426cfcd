"""Runs a tool that is declared `sandboxed` in a cell of its own."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue

from toolcell.core import (
    CallFailedError,
    ConfigError,
    ToolExecutionError,
    ToolTimeoutError,
)
from toolcell.sandbox import ExecutionResult, Limits, OpaqueValue, Sandbox

from ..definition.function_tool import FunctionTool
from ..definition.tool import Tool
from ..definition.transfer import build_cell_call
from ..definition.validation import Arguments

_OUT_OF_TIME = ("timeout", "cpu_limit")

TRY_OTHERS = "try other arguments or another tool; the host's record has the cause"
"""The hint for a tool that failed by a fault of its own."""


async def run_in_cell(
    sandbox: Sandbox, tool: Tool, arguments: Arguments, seconds: float
) -> tuple[ExecutionResult, float]:
    """Return the run of a tool's function in a new cell, and the seconds it had.

    A program and JSON go in, JSON comes out: the host loads nothing that a cell sends.

    Raises:
        ConfigError: The function cannot be sent into a cell.
        SandboxError: It could not be run.
    """
    if not isinstance(tool, FunctionTool):
        raise ConfigError(
            f"{tool.name} is no function and cannot run in a cell",
            hint="leave out `sandboxed`, or make a tool of a function",
        )
    program = build_cell_call(tool.name, tool.function, arguments.json)
    wall = min(seconds, sandbox.config.limits.wall_seconds)
    limits = Limits(wall_seconds=wall)
    result = await sandbox.run(program.code, inputs=program.inputs, limits=limits)
    return result, wall


def content_of(name: str, result: ExecutionResult, seconds: float) -> JsonValue:
    """Return the value of a run that ended well.

    Raises:
        ToolTimeoutError: The run was killed at its deadline.
        ToolExecutionError: The run ended in another way, or its value is not JSON.
    """
    if result.status in _OUT_OF_TIME:
        raise ToolTimeoutError(
            f"{name} was stopped after {seconds:g} s ({result.status})",
            hint="ask for less in one call, or give the tool more seconds",
            details={"run_status": result.status},
        ) from _program_error(name, result)
    if result.status != "ok":
        what = result.exception.type if result.exception else result.status
        raise ToolExecutionError(
            f"{name} failed ({what})",
            hint=TRY_OTHERS,
            details={"run_status": result.status},
        ) from _program_error(name, result)
    if isinstance(result.value, OpaqueValue):
        raise ToolExecutionError(
            f"{name} returned what is not JSON",
            hint="its function has to return None, bool, int, float, str, list or dict",
        )
    value: Any = result.value
    return value  # type: ignore[no-any-return]


def _program_error(name: str, result: ExecutionResult) -> CallFailedError:
    """Return the program's own text, for the record and not for the model."""
    text = result.exception.traceback if result.exception else result.stderr
    return CallFailedError(
        f"{name} in its cell:\n{text}", result=result, hint=TRY_OTHERS
    )
