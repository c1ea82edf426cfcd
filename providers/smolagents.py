"""smolagents: `CodeAgent(..., executor=ToolcellExecutor())`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from smolagents import Tool
from smolagents.local_python_executor import CodeOutput, PythonExecutor

from toolcell.core import GuardError
from toolcell.guard import ActionGuard
from toolcell.sandbox import ExecutionResult, SandboxConfig
from toolcell.tools import Records

from .cells.host_tools import run_with_tools
from .cells.shown_outputs import printed_and_displayed
from .cells.thread_session import ThreadSession

_FINAL = "final_answer"
# A BaseException: `except Exception` of a program does not catch it.
_STOP = f"""
class _FinalAnswer(BaseException):
    pass
def {_FINAL}(*args, **kwargs):
    tools.{_FINAL}(*args, **kwargs)
    raise _FinalAnswer
"""


class ToolcellExecutor(PythonExecutor):
    """Runs the programs of a CodeAgent in one session.

    Tools stay on the host: a program's call of one goes over the bridge, by value, and
    through the guard under the tool's name with `args` and `kwargs`. No source of a
    tool is sent. An error, a refusal too, is what the agent reads next.

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
        agent_id: str = "smolagents",
        records: Records | None = None,
    ) -> None:
        self._thread = ThreadSession(
            config, guard=guard, agent_id=agent_id, records=records
        )
        self._tools: dict[str, Callable[..., Any]] = {}
        self._variables: dict[str, Any] = {}
        self._final: list[Any] = []
        self.state: dict[str, Any] = {}
        """The output of the last program, where the agent looks for it."""

    def send_tools(self, tools: Mapping[str, Tool]) -> None:
        """Let programs call these tools; `final_answer` ends a program."""
        self._tools = {**tools, _FINAL: self._answer_with(tools.get(_FINAL))}

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Give the next program variables of plain data."""
        self._variables.update(variables)

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a program where the last one left off.

        Raises:
            RuntimeError: It failed, or the guard refuses it; the agent reads why.
            CellLostError: The cell is gone.
        """
        self._final.clear()
        run = partial(run_with_tools, before=_STOP, inputs=self._variables)
        try:
            result: ExecutionResult = self._thread.call(
                run, self._thread.guarded, code_action, self._tools
            )
        except GuardError as error:
            raise RuntimeError(str(error)) from error
        self._variables = {}
        printed = printed_and_displayed(result)
        self.state["_print_outputs"] = printed
        if self._final:
            return CodeOutput(self._final[0], printed, is_final_answer=True)
        if result.status != "ok":
            raise RuntimeError(_why(result))
        return CodeOutput(result.value, printed, is_final_answer=False)

    def cleanup(self) -> None:
        """End the session; again: nothing."""
        self._thread.close()

    def _answer_with(self, tool: Callable[..., Any] | None) -> Callable[..., None]:
        def final_answer(*args: Any, **kwargs: Any) -> None:
            values = [*args, *kwargs.values()]
            answer = tool(*args, **kwargs) if tool else values[0]
            self._final.append(answer)

        return final_answer


def _why(result: ExecutionResult) -> str:
    if result.exception is None:
        return f"the program ended with {result.status}: {result.stderr[-2000:]}"
    return f"{result.exception.type}: {result.exception.message}"
