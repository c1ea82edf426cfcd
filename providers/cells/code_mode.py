"""The three tools of code mode, for an agent of another framework."""

from __future__ import annotations

import uuid
from typing import Any

from toolcell.core import ConfigError, ImagePart, ToolResult
from toolcell.guard.spi import PRESETS
from toolcell.tools import RunContext, Tool, ToolExecutor

_NAMES = PRESETS["code_mode"]
NO_RUN = RunContext()


class CodeMode:
    """Calls `search_tools`, `describe_tools` and `run_code` as one agent.

    Args:
        executor: Makes these calls and those of programs. The tools of
            `code_mode_tools` are in its registry.
        agent_id: The agent that the guard knows.
        run: The agent's run; its `session` lets variables of programs stay.

    Raises:
        ConfigError: The registry lacks one of the three.
    """

    def __init__(
        self, executor: ToolExecutor, agent_id: str, run: RunContext = NO_RUN
    ) -> None:
        registered = executor.registry.snapshot()
        lacking = [name for name in _NAMES if registered.get(name) is None]
        if lacking:
            raise ConfigError(
                f"the executor's registry has no {' and no '.join(lacking)}",
                hint="registry.register_many(code_mode_tools(sandbox, executor=...))",
            )
        self._executor = executor
        self._agent_id = agent_id
        self._run = run

    def tools(self) -> list[Tool]:
        """Return those of the three that the agent's policy does not always deny."""
        seen = self._executor.tools(self._agent_id)
        return [tool for tool in seen if tool.name in _NAMES]

    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | str,
        *,
        raise_on_error: bool = False,
    ) -> ToolResult:
        """Make a call.

        Args:
            name: One of the three.
            arguments: As the model gave them; a text is JSON.
            raise_on_error: Whether a failed call raises its error.

        Raises:
            ToolcellError: It failed, and errors are to be raised.
        """
        call = {
            "id": uuid.uuid4().hex,
            "name": name,
            "agent_id": self._agent_id,
            "arguments": arguments,
        }
        return await self._executor.call(
            call, run=self._run, raise_on_error=raise_on_error
        )


def pictures_of(result: ToolResult) -> list[ImagePart]:
    """Return the pictures that a model sees besides the content of a result."""
    return [part for part in result.parts if isinstance(part, ImagePart)]
