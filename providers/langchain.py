"""LangChain: `create_agent(model, tools=code_mode_toolset(executor))`."""

from __future__ import annotations

from functools import partial
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from toolcell.tools import RunContext, ToolExecutor, to_openai

from .cells.code_mode import NO_RUN, CodeMode, pictures_of


def code_mode_toolset(
    executor: ToolExecutor, *, agent_id: str = "langchain", run: RunContext = NO_RUN
) -> list[BaseTool]:
    """Return the tools of code mode, for agents that run in the executor's event loop.

    A call that is refused or fails is a ToolMessage whose status is `error`.

    Args:
        executor, agent_id, run: As in `CodeMode`.

    Raises:
        ConfigError: The executor's registry has not the tools of `code_mode_tools`.
    """
    code_mode = CodeMode(executor, agent_id, run)
    return [
        StructuredTool(
            name=tool.name,
            description=tool.description,
            args_schema=to_openai(tool)["function"]["parameters"],
            coroutine=partial(_call, code_mode, tool.name),
            handle_tool_error=True,
        )
        for tool in code_mode.tools()
    ]


async def _call(
    code_mode: CodeMode, name: str, /, **arguments: Any
) -> str | list[dict[str, Any]]:
    result = await code_mode.call(name, arguments)
    if not result.ok:
        raise ToolException(result.to_text())
    pictures = [
        {"type": "image", "base64": picture.data, "mime_type": picture.mime}
        for picture in pictures_of(result)
    ]
    text = result.to_text()
    return [{"type": "text", "text": text}, *pictures] if pictures else text
