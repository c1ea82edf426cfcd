"""pydantic-ai: `Agent(model, toolsets=[ToolcellToolset()])`."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic_ai import ApprovalRequired, BinaryContent, RunContext
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import (
    GuardDeniedError,
    GuardError,
    ImagePart,
    InvalidInputError,
    ToolcellError,
)
from toolcell.guard import ActionGuard, ApprovalRequest, Approvals, Approve
from toolcell.sandbox import ExecutionResult, SandboxConfig
from toolcell.tools import Records, ToolExecutor, to_openai
from toolcell.tools import RunContext as ToolcellRun

from .cells.code_mode import NO_RUN, CodeMode, pictures_of
from .cells.guarded_session import exit_code
from .cells.shown_outputs import texts_and_pictures
from .cells.thread_session import ThreadSession

_APPROVER = "user-of-pydantic-ai"
_WAIT_SECONDS = 0.05
_OPEN = ("approval_required", "approval_unavailable")
_ANY_ARGUMENTS = SchemaValidator(core_schema.any_schema())
"""Arguments are checked once, by the executor that makes the call."""

_approved: ContextVar[str | None] = ContextVar("approved", default=None)
"""The tool whose call was approved in pydantic-ai, while that call is made."""


def deferred_approvals() -> Approvals:
    """Return approvals for a guard whose questions pydantic-ai asks.

    A call that a rule wants asked becomes an ApprovalRequired, with the agent's
    `DeferredToolRequests`; once it is approved there, it runs. What a program asks for
    inside an approved call is not approved by it.
    """
    return Approvals(handler=_answer, wait_seconds=_WAIT_SECONDS)


async def _answer(request: ApprovalRequest) -> Approve | None:
    call = request.call
    is_approved = call.parent_id is None and call.name == _approved.get()
    return Approve(approver=_APPROVER) if is_approved else None


@contextmanager
def _call_of(
    name: str, ctx: RunContext[Any], *reported: type[ToolcellError]
) -> Iterator[None]:
    """Make a call of the agent; what is `reported` becomes what its model reads."""
    token = _approved.set(name if ctx.tool_call_approved else None)
    try:
        yield
    except GuardDeniedError as error:
        if error.details.get("reason") in _OPEN and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata=error.details) from error
        raise ToolFailed(str(error)) from error
    except reported as error:
        raise ToolFailed(str(error)) from error
    finally:
        _approved.reset(token)


class ToolcellToolset(FunctionToolset[Any]):
    """The tools `exec`, `run_python`, `read_file` and `write_file` of one session.

    What the guard denies is a ToolFailed, which the model reads; with
    `deferred_approvals` what it asks is an ApprovalRequired.

    Args:
        config, guard, agent_id, records: As in `ThreadSession`.

    Raises:
        SandboxUnavailableError: No cell is available.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "pydantic-ai",
        records: Records | None = None,
    ) -> None:
        self._thread = ThreadSession(
            config, guard=guard, agent_id=agent_id, records=records
        )
        run = [self.exec, self.run_python, self.read_file, self.write_file]
        super().__init__(run, id="toolcell")

    def close(self) -> None:
        """End the session with all that runs in it; again: nothing."""
        self._thread.close()

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        """Run a tool.

        Raises:
            ApprovalRequired: A rule wants it asked, and nobody has approved it yet.
            ToolFailed: It is denied, or cannot be run.
            CellLostError: The cell is gone.
        """
        with _call_of(name, ctx, GuardError, InvalidInputError):
            return await super().call_tool(name, tool_args, ctx, tool)

    async def exec(self, command: str, cwd: str = "") -> dict[str, Any]:
        """Run a script of bash in the sandbox; return its output and exit code."""
        guarded = self._thread.guarded
        result = await self._thread.acall(guarded.exec, command, cwd=cwd)
        return {**_printed(result), "exit_code": exit_code(result)}

    async def run_python(self, code: str) -> Any:
        """Run Python where the last program left off; variables stay.

        What it displays is shown, pictures too.
        """
        result = await self._thread.acall(self._thread.guarded.run_python, code)
        failed = None if result.exception is None else result.exception.traceback
        value = result.model_dump(mode="json")["value"]
        facts = {**_printed(result), "value": value, "error": failed}
        texts, pictures = texts_and_pictures(result)
        if texts:
            facts["outputs"] = texts
        return [facts, *_binary(pictures)] if pictures else facts

    async def read_file(self, path: str) -> str:
        """Return the text of a file of the sandbox."""
        data = await self._thread.acall(self._thread.guarded.read_file, path)
        return data.decode(errors="backslashreplace")

    async def write_file(self, path: str, text: str) -> str:
        """Write a text to a file of the sandbox, with its folders."""
        await self._thread.acall(self._thread.guarded.write_file, path, text)
        return f"{path} is written"


def _printed(result: ExecutionResult) -> dict[str, Any]:
    return {
        "status": result.status,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }


class CodeModeToolset(AbstractToolset[Any]):
    """The tools of code mode, for agents that run in the executor's event loop.

    What the guard denies, and what fails, is a ToolFailed, which the model reads; with
    `deferred_approvals` a call of the three that it asks is an ApprovalRequired. A call
    that a program makes and nobody else approves is a ToolError in the program. What
    is no JSON is given back to the model as often as the agent's own `retries` say.

    Args:
        executor, agent_id, run: As in `CodeMode`.

    Raises:
        ConfigError: The executor's registry has not the tools of `code_mode_tools`.
    """

    def __init__(
        self,
        executor: ToolExecutor,
        *,
        agent_id: str = "pydantic-ai",
        run: ToolcellRun = NO_RUN,
    ) -> None:
        self._code_mode = CodeMode(executor, agent_id, run)

    @property
    def id(self) -> str:
        return "toolcell-code-mode"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        shown = [to_openai(tool)["function"] for tool in self._code_mode.tools()]
        return {
            tool["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=tool["name"],
                    description=tool["description"],
                    parameters_json_schema=tool["parameters"],
                ),
                max_retries=ctx.max_retries,
                args_validator=_ANY_ARGUMENTS,
            )
            for tool in shown
        }

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        """Make a call.

        Raises:
            ApprovalRequired: A rule wants it asked, and nobody has approved it yet.
            ToolFailed: It is denied, or failed.
        """
        with _call_of(name, ctx, ToolcellError):
            result = await self._code_mode.call(name, tool_args, raise_on_error=True)
        pictures = pictures_of(result)
        return [result.content, *_binary(pictures)] if pictures else result.content


def _binary(pictures: Sequence[ImagePart]) -> list[BinaryContent]:
    return [
        BinaryContent(base64.b64decode(picture.data), media_type=picture.mime)
        for picture in pictures
    ]
