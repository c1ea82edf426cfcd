"""Code mode: three tools in place of a catalogue, for models that write programs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from toolcell.sandbox import Sandbox, SandboxSession

from ..code.catalogue import ToolCatalogue
from ..code.executor import CodeExecutor
from ..code.sessions import CodeSessions
from ..definition.context import ToolContext
from ..definition.tool import Tool, tool
from .code import STAYS, ProgramRunner, limits_of

_Limit = Annotated[int, Field(ge=1, le=50)]
_Names = Annotated[list[str], Field(min_length=1, max_length=50)]


def code_mode_tools(
    place: Sandbox | SandboxSession,
    *,
    executor: CodeExecutor,
    sessions: CodeSessions | None = None,
    approval_seconds: float = 30.0,
    asks_without_session: bool = False,
) -> list[Tool]:
    """Return `search_tools`, `describe_tools` and `run_code`.

    A model that has these three alone finds the tools that it needs, and calls them in
    one program. A search finds what the agent's programs may call, and nothing that
    its policy always denies. Only a model may call the three, no program.

    Args:
        place: The place of the programs; see `code_tools`.
        executor: Makes the calls of the programs.
        sessions: The sessions for calls that name one; see `code_tools`.
        approval_seconds: Seconds that the calls of one program of a session may wait
            for a person, in all; default 30. When it is reached a waiting call is
            denied, and the program goes on.
        asks_without_session: Whether calls of programs without a session wait as well.
    """
    catalogue = ToolCatalogue(executor)
    max_cost, seconds = limits_of(place)
    programs = ProgramRunner(
        place, executor, sessions, approval_seconds, asks_without_session
    )
    about = (
        "Run a Python program in a sandbox. `tools.<name>(...)` calls the tools that"
        " search_tools finds, and returns their results as data; a call that fails"
        " raises ToolError. Do in one program what belongs together."
    )
    about += STAYS if sessions else ""

    @tool(callers={"model"}, tags={"read_only"})
    def search_tools(query: str, context: ToolContext, limit: _Limit = 10) -> str:
        """Find tools for programs of run_code, as Python stubs; the best come first.

        Args:
            query: 2 to 4 keywords, such as `git commit history`; not a sentence.
            limit: Tools to return at most.
        """
        return catalogue.search(context.agent_id, query, limit)

    @tool(callers={"model"}, tags={"read_only"})
    def describe_tools(names: _Names, context: ToolContext) -> str:
        """Return the whole Python stubs of tools, with all their arguments.

        Args:
            names: Names of tools, as search_tools shows them.
        """
        return catalogue.describe(context.agent_id, names)

    @tool(
        callers={"model"},
        tags={"code"},
        cost=max_cost,
        timeout=seconds,
        description=about,
    )
    async def run_code(code: str, context: ToolContext) -> dict[str, JsonValue]:
        """Run a Python program in a sandbox.

        Args:
            code: The whole program. Print what you want to see; the value of its last
                expression is returned too, and files in ./artifacts are handed on.
        """
        return await programs.run(code, "python", context)

    return [search_tools, describe_tools, run_code]
