"""`toolcell call`: one call of a tool, guarded and recorded like every call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core.text.printable import escaped

from ...terminal.output import print_json, print_notice
from ...terminal.signals import run_async
from ...terminal.streams import redirect_prints_to_stderr
from ..base.options import (
    DEFAULT_CONFIG,
    Agent,
    ArgumentsOption,
    AsJson,
    ConfigPath,
    RunId,
    ToolName,
)

if TYPE_CHECKING:
    from toolcell.core import ToolCall, ToolResult
    from toolcell.guard import Approvals
    from toolcell.tools import RunContext

_EXIT_BY_STATUS = {"ok": 0, "error": 1, "denied": 3, "timeout": 124, "cancelled": 130}
_LOOK_SECONDS = 0.5
_BAD_CALL = ("tool.validation", "tool.not_found")


def call(
    name: ToolName,
    agent: Agent,
    arguments: ArgumentsOption = "{}",
    config: ConfigPath = DEFAULT_CONFIG,
    run: RunId = None,
    wait: Annotated[
        float | None, typer.Option(help="Seconds to wait for a person; 0 asks no one.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(readable=False, help="A new folder for artifacts of the call."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool as an agent, through the guard. Exit codes are those of `run`."""
    tool_call = read_call(name, agent, arguments)
    with redirect_prints_to_stderr():
        result = run_async(_call, config, tool_call, run, wait, out, as_json)
    if as_json:
        print_json(result.model_dump(mode="json"))
    elif result.ok:
        print(escaped(result.to_text()))
    else:
        print(escaped(result.to_text()), file=sys.stderr)
    kind = result.error.kind if result.error else ""
    raise typer.Exit(2 if kind in _BAD_CALL else _EXIT_BY_STATUS[result.status])


def read_call(name: str, agent: str, arguments: str) -> ToolCall:
    """Return the call of a command line. Raises InvalidInputError."""
    import uuid

    from toolcell.core import ToolCall

    from ..base.json_options import read_object

    given = read_object(arguments, "--args", example="""--args '{"a": 1}'""")
    call_id = uuid.uuid4().hex
    return ToolCall(id=call_id, name=name, arguments=given, agent_id=agent)


async def _call(
    path: Path,
    tool_call: ToolCall,
    run_id: str | None,
    wait: float | None,
    out: Path | None,
    as_json: bool,
) -> ToolResult:
    from toolcell.tools import RunContext

    from ..base.artifact_folder import drop_if_empty, new_folder

    run = RunContext(run_id=run_id, approval_seconds=wait, artifacts=out)
    with new_folder(out):
        result = await _outcome(path, tool_call, run, as_json)
    if out is not None and not result.ok:
        drop_if_empty(out)
    return result


async def _outcome(
    path: Path, tool_call: ToolCall, run: RunContext, as_json: bool
) -> ToolResult:
    import anyio

    from toolcell.guard import called_by

    from ...runtime.host import Host
    from ...terminal.user_name import account_name

    async with Host.from_config(path) as host:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_announce_waiting, host.approvals, tool_call, as_json)
            with called_by(f"user {account_name()}"):
                result = await host.executor.call(
                    tool_call, run=run, raise_on_error=False
                )
            tasks.cancel_scope.cancel()
        return result


async def _announce_waiting(
    approvals: Approvals, tool_call: ToolCall, as_json: bool
) -> None:
    """Print once that the call waits for a person, and how to answer."""
    import anyio

    from toolcell.core import StoreUnavailableError

    while True:
        await anyio.sleep(_LOOK_SECONDS)
        try:
            waiting = await approvals.pending()
        except StoreUnavailableError:
            return
        for request in waiting:
            # Calls that ask the same share one request, whose id may be another's.
            same = (request.call.agent_id, request.call.name)
            inside = request.call.parent_id == tool_call.id
            if inside or same == (tool_call.agent_id, tool_call.name):
                answer = f"toolcell approvals show {request.id}"
                print_notice(f"waits for a person: {answer}", as_json=as_json)
                return
