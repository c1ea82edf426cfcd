"""Files of a workspace: the work dir of a session's cell.

The programs below run in the cell, so the cell is the wall: a path that leads out
of the work dir is refused to keep a model from confusion, and would find nothing of
the host's if it were not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, JsonValue

from toolcell.core import ToolError, ToolExecutionError
from toolcell.sandbox import Session

from ..running import account
from ..tool import Tool, tool

MAX_LINES = 2_000
"""Lines that `read_file` returns. When it is reached the rest is counted only."""

MAX_ENTRIES = 1_000
"""Files or matches that are listed. When it is reached the rest is left out."""

_SOURCE = (Path(__file__).parent / "in_cell.py").read_text()
_PROGRAM = f"{_SOURCE}\nanswer(action, inputs)\n"
_Line = Annotated[int, Field(ge=1)]
_Count = Annotated[int, Field(ge=1, le=MAX_LINES)]


def workspace_tools(session: Session) -> list[Tool]:
    """Return `read_file`, `write_file`, `edit_file`, `list_files`, `search_files`.

    Args:
        session: Its work dir is the workspace; what programs of the session write
            there is seen here, and the other way round.
    """
    files = _Workspace(session)
    return [
        files.read_file,
        files.write_file,
        files.edit_file,
        files.list_files,
        files.search_files,
    ]


class _Workspace:
    """The work dir of a session, and what can be done in it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def _ask(self, action: str, **inputs: JsonValue) -> Any:
        asked: dict[str, JsonValue] = {"action": action, "inputs": inputs}
        result = await self._session.run(_PROGRAM, inputs=asked, fresh=True)
        account(result)
        if result.status != "ok" or not isinstance(result.value, dict):
            raise ToolExecutionError(f"{action} did not end well ({result.status})")
        if "error" in result.value:
            raise ToolError(str(result.value["error"]))
        return result.value["content"]

    @tool(tags={"files"})
    async def read_file(
        self, path: str, first_line: _Line = 1, lines: _Count = MAX_LINES
    ) -> dict[str, JsonValue]:
        """Return lines of a text file of the workspace.

        Args:
            path: Relative to the workspace.
            first_line: The first line wanted; 1 is the file's first.
            lines: How many at most.
        """
        return dict(
            await self._ask("read_file", path=path, first_line=first_line, lines=lines)
        )

    @tool(tags={"files"})
    async def write_file(self, path: str, text: str) -> dict[str, JsonValue]:
        """Write a text file of the workspace, new or in place of an old one.

        Args:
            path: Relative to the workspace; missing folders are made.
            text: The whole content.
        """
        return dict(await self._ask("write_file", path=path, text=text))

    @tool(tags={"files"})
    async def edit_file(self, path: str, old: str, new: str) -> dict[str, JsonValue]:
        """Replace a piece of a text file of the workspace.

        Args:
            path: Relative to the workspace.
            old: What stands there now; it must occur exactly once.
            new: What shall stand there.
        """
        return dict(await self._ask("edit_file", path=path, old=old, new=new))

    @tool(tags={"files"})
    async def list_files(self, path: str = ".") -> dict[str, JsonValue]:
        """List the files of the workspace beneath a folder, with their sizes in bytes.

        Args:
            path: A folder, relative to the workspace.
        """
        return dict(await self._ask("list_files", path=path, most=MAX_ENTRIES))

    @tool(tags={"files"})
    async def search_files(self, pattern: str, path: str = ".") -> dict[str, JsonValue]:
        """Find lines of text files of the workspace.

        Args:
            pattern: A Python regular expression.
            path: A folder or a file, relative to the workspace.
        """
        return dict(
            await self._ask(
                "search_files", pattern=pattern, path=path, most=MAX_ENTRIES
            )
        )
