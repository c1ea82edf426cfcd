"""pydantic-ai: `Agent(model, toolsets=[ToolcellToolset()])`."""

from __future__ import annotations

import base64
from contextvars import ContextVar
from typing import Any

from pydantic_ai import ApprovalRequired, BinaryContent, RunContext
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.toolsets import FunctionToolset, ToolsetTool

from toolcell.core import GuardDeniedError, GuardError, InvalidInputError
from toolcell.guard import ActionGuard, ApprovalRequest, Approvals, Approve
from toolcell.sandbox import ExecutionResult, SandboxConfig
from toolcell.tools import Records

from .cells.guarded_session import exit_code
from .cells.shown_outputs import texts_and_pictures
from .cells.thread_session import ThreadSession

_APPROVER = "user-of-pydantic-ai"
_WAIT_SECONDS = 0.05
_OPEN = ("approval_required", "approval_unavailable")
_approved: ContextVar[bool] = ContextVar("approved", default=False)
"""True while a call is made that somebody approved in pydantic-ai."""


def deferred_approvals() -> Approvals:
    """Return approvals for a guard whose questions pydantic-ai asks.

    A call that a rule wants asked becomes an ApprovalRequired, with the agent's
    `DeferredToolRequests`; once it is approved there, it runs.
    """
    return Approvals(handler=_answer, wait_seconds=_WAIT_SECONDS)


async def _answer(request: ApprovalRequest) -> Approve | None:
    return Approve(approver=_APPROVER) if _approved.get() else None


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
        token = _approved.set(ctx.tool_call_approved)
        try:
            return await super().call_tool(name, tool_args, ctx, tool)
        except GuardDeniedError as error:
            if error.details.get("reason") in _OPEN and not ctx.tool_call_approved:
                raise ApprovalRequired(metadata=error.details) from error
            raise ToolFailed(str(error)) from error
        except (GuardError, InvalidInputError) as error:
            raise ToolFailed(str(error)) from error
        finally:
            _approved.reset(token)

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
        shown = [
            BinaryContent(base64.b64decode(each.data), media_type=each.mime)
            for each in pictures
        ]
        return [facts, *shown] if shown else facts

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
