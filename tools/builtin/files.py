"""Files of a workspace: the work dir of a session's cell.

The programs below run in the cell, so the cell is the wall. A path that leads out of
the work dir is refused only to spare the model confusion: it would find nothing of the
host's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue

from toolcell.core import ToolError, ToolExecutionError
from toolcell.sandbox import SandboxSession

from ..code.program_calls import is_nested_call
from ..code.sessions import CodeSession, CodeSessions
from ..definition.context import ToolContext
from ..definition.tool import Tool, tool
from ..execution.attempt import record_usage

MAX_LINES = 2_000
"""Lines that `read_file` returns. When it is reached the rest is counted only."""

MAX_ENTRIES = 1_000
"""Files or matches that are listed. When it is reached the rest is left out."""

_SOURCE = (Path(__file__).parent / "workspace_program.py").read_text()
_PROGRAM = f"{_SOURCE}\nanswer(action, inputs)\n"
_Line = Annotated[int, Field(ge=1)]
_LineCount = Annotated[int, Field(ge=1, le=MAX_LINES)]


def workspace_tools(place: SandboxSession | CodeSessions) -> list[Tool]:
    """Return `read_file`, `write_file`, `edit_file`, `list_files`, `search_files`.

    Args:
        place: The session whose work dir is the workspace, which its programs and
            these tools share. Of several sessions, the one of the agent and session of
            the call (`RunContext.session`).
    """
    files = _Workspace(place)
    return [
        files.read_file,
        files.write_file,
        files.edit_file,
        files.list_files,
        files.search_files,
    ]


class _Workspace:
    """The tools on the work dir of a session."""

    def __init__(self, place: SandboxSession | CodeSessions) -> None:
        self._place = place

    @asynccontextmanager
    async def _session(
        self, context: ToolContext
    ) -> AsyncIterator[tuple[SandboxSession, CodeSession | None]]:
        if not isinstance(self._place, CodeSessions):
            yield self._place, None
            return
        if context.session is None:
            raise ToolError(
                "this call is of no session, and files are in one",
                hint="name a session in the call's RunContext",
            )
        if is_nested_call():
            raise ToolError(
                "a program opens the files of its session by itself",
                hint="use open() in the program",
            )
        async with self._place.use(context.agent_id, context.session) as held:
            assert held.session is not None
            yield held.session, held

    async def _ask(self, context: ToolContext, action: str, **inputs: JsonValue) -> Any:
        asked: dict[str, JsonValue] = {"action": action, "inputs": inputs}
        async with self._session(context) as (session, held):
            result = await session.run(_PROGRAM, inputs=asked, fresh=True)
            record_usage(result)
            lost = ""
            if held is not None:
                await held.costs.after(held, result)
                lost, held.lost_before = held.lost_before, ""
        also = f"; {lost}" if lost else ""
        if result.status != "ok" or not isinstance(result.value, dict):
            raise ToolExecutionError(
                f"{action} did not end well ({result.status}){also}",
                hint="try again with less",
            )
        if "error" in result.value:
            raise ToolError(
                f"{result.value['error']}{also}",
                hint="change the arguments as it says; `list_files` tells "
                "what is there",
            )
        content: Any = result.value["content"]
        return {**content, "lost": lost} if lost else content

    @tool(tags={"files"})
    async def read_file(
        self,
        path: str,
        context: ToolContext,
        first_line: _Line = 1,
        lines: _LineCount = MAX_LINES,
    ) -> dict[str, JsonValue]:
        """Return lines of a text file of the workspace.

        Args:
            path: Relative to the workspace.
            first_line: The first line wanted; 1 is the file's first.
            lines: The maximum number of lines.
        """
        return dict(
            await self._ask(
                context, "read_file", path=path, first_line=first_line, lines=lines
            )
        )

    @tool(tags={"files"})
    async def write_file(
        self, path: str, text: str, context: ToolContext
    ) -> dict[str, JsonValue]:
        """Write a text file of the workspace, new or in place of an old one.

        Args:
            path: Relative to the workspace; missing folders are made.
            text: The whole content.
        """
        return dict(await self._ask(context, "write_file", path=path, text=text))

    @tool(tags={"files"})
    async def edit_file(
        self, path: str, old: str, new: str, context: ToolContext
    ) -> dict[str, JsonValue]:
        """Replace a piece of a text file of the workspace.

        Args:
            path: Relative to the workspace.
            old: The text to replace; it must occur exactly once.
            new: The text that takes its place.
        """
        return dict(await self._ask(context, "edit_file", path=path, old=old, new=new))

    @tool(tags={"files"})
    async def list_files(
        self, context: ToolContext, path: str = "."
    ) -> dict[str, JsonValue]:
        """List the files of the workspace beneath a folder, with their sizes in bytes.

        Args:
            path: A folder, relative to the workspace.
        """
        return dict(
            await self._ask(context, "list_files", path=path, max_entries=MAX_ENTRIES)
        )

    @tool(tags={"files"})
    async def search_files(
        self, pattern: str, context: ToolContext, path: str = "."
    ) -> dict[str, JsonValue]:
        """Find lines of text files of the workspace.

        Args:
            pattern: A Python regular expression.
            path: A folder or a file, relative to the workspace.
        """
        return dict(
            await self._ask(
                context,
                "search_files",
                pattern=pattern,
                path=path,
                max_entries=MAX_ENTRIES,
            )
        )
