"""DSPy: `dspy.configure(interpreter_factory=ToolcellInterpreter)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dspy.primitives.code_interpreter import (
    CodeExecutionError,
    CodeInterpreterError,
    FinalOutput,
)

from toolcell.core import GuardError, InvalidInputError, SandboxError
from toolcell.guard import ActionGuard
from toolcell.sandbox import ExecutionResult, SandboxConfig
from toolcell.tools import Records

from .cells.host_tools import run_with_tools
from .cells.shown_outputs import printed_and_displayed
from .cells.thread_session import ThreadSession

_SUBMIT = "SUBMIT"
# A BaseException: `except Exception` of a program does not catch it.
_STOP = f"""
class _Submitted(BaseException):
    pass
def {_SUBMIT}(*args, **kwargs):
    tools.{_SUBMIT}(*args, **kwargs)
    raise _Submitted
"""


class ToolcellInterpreter:
    """An interpreter of DSPy in one session; variables stay until `shutdown`.

    Tools stay on the host: a program's call of one goes over the bridge, by value, and
    through the guard under the tool's name with `args` and `kwargs`, SUBMIT included. A
    refusal is a CodeExecutionError, which the model reads.

    Args:
        tools: Functions of the host that programs may call.
        config, guard, agent_id, records: As in `ThreadSession`.
        output_fields: The names, as `{"name": ...}`, that SUBMIT takes. None: one
            value, submitted as `output`.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        config: SandboxConfig | None = None,
        *,
        output_fields: list[dict[str, Any]] | None = None,
        guard: ActionGuard | None = None,
        agent_id: str = "dspy",
        records: Records | None = None,
    ) -> None:
        self._open = partial(
            ThreadSession, config, guard=guard, agent_id=agent_id, records=records
        )
        self._tools = dict(tools or {})
        self._thread: ThreadSession | None = None
        self._submitted: list[Any] = []
        self.output_fields = output_fields

    @property
    def tools(self) -> dict[str, Callable[..., Any]]:
        """The functions that programs may call; it can be changed between programs."""
        return self._tools

    def start(self) -> None:
        """Open the session, unless it is open.

        Raises:
            CodeInterpreterError: No cell is available.
        """
        if self._thread is None:
            try:
                self._thread = self._open()
            except SandboxError as error:
                raise CodeInterpreterError(str(error)) from error

    def execute(self, code: str, variables: dict[str, Any] | None = None) -> Any:
        """Run a program; return a FinalOutput, what it showed, or its last value.

        Raises:
            CodeExecutionError: It failed, or the guard refuses it.
            CodeInterpreterError: There is no cell, or it was lost.
            SyntaxError: It is no Python.
        """
        self.start()
        assert self._thread is not None
        self._submitted.clear()
        run = partial(run_with_tools, before=_STOP, inputs=variables)
        tools = {**self._tools, _SUBMIT: self._submit}
        try:
            result = self._thread.call(run, self._thread.guarded, code, tools)
        except (GuardError, InvalidInputError) as error:
            raise CodeExecutionError(str(error)) from error
        except SandboxError as error:
            raise CodeInterpreterError(str(error)) from error
        if self._submitted:
            return FinalOutput(self._submitted[0])
        _check(result)
        return printed_and_displayed(result) or result.value

    def shutdown(self) -> None:
        """End the session; again: nothing."""
        if self._thread is not None:
            self._thread.close()

    def _submit(self, *args: Any, **kwargs: Any) -> None:
        if self.output_fields is None:
            [output] = args
            self._submitted.append({"output": output})
            return
        names = [field["name"] for field in self.output_fields]
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        if set(values) != set(names) or len(args) + len(kwargs) != len(names):
            raise TypeError(f"SUBMIT takes {', '.join(names)}")
        self._submitted.append(values)


def _check(result: ExecutionResult) -> None:
    if result.status == "ok":
        return
    if result.exception is None:
        said = result.stderr[-2000:]
        raise CodeExecutionError(f"the program ended with {result.status}: {said}")
    if result.exception.type == "SyntaxError":
        raise SyntaxError(result.exception.message)
    raise CodeExecutionError(f"{result.exception.type}: {result.exception.message}")
