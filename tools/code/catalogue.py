"""The tools that programs may call, for a model that looks for what it needs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice

from ..definition.tool import Tool
from ..export.python_stubs import short_stub, stub
from ..registry.snapshot import Snapshot
from .executor import CodeExecutor, python_name
from .tool_index import ToolIndex

MAX_FULL_CHARACTERS = 2_400
"""Characters of stubs with their documentation in one answer to a search, some 600
tokens. When it would be exceeded the other tools are one line each."""

_Named = tuple[str, Tool]


class ToolCatalogue:
    """Finds and describes tools in the view of one agent.

    It has the tools that `CodeExecutor.describe_tools` has: what the agent's policy
    always denies is never found.

    Args:
        code: Runs the programs that call the tools.
    """

    def __init__(self, code: CodeExecutor) -> None:
        self._executor = code.executor
        self._turn = threading.Lock()
        self._listed: _Listed | None = None

    def search(self, agent_id: str | None, query: str, limit: int) -> str:
        """Return stubs of the tools that fit a query best, at most `limit`."""
        listed = self._current()
        names = listed.index.search(query)
        tools = (self._find(agent_id, listed, python_name(name)) for name in names)
        found = islice((tool for tool in tools if tool is not None), limit)
        return "\n\n".join(_stubs(found)) or "No tool has one of these words."

    def describe(self, agent_id: str | None, names: Iterable[str]) -> str:
        """Return the whole stubs of tools, by their names in Python or their own."""
        listed = self._current()
        texts = []
        for asked in dict.fromkeys(names):
            found = asked and self._find(agent_id, listed, python_name(asked))
            texts.append(
                stub(*found) if found else f"# There is no tool {asked[:100]!r}."
            )
        return "\n\n".join(texts)

    def _find(self, agent_id: str | None, listed: _Listed, name: str) -> _Named | None:
        """Return a tool by its name in Python, if an agent's program may call it."""
        view = listed.snapshot.for_agent(agent_id)
        tools = [view.get(each) for each in listed.names.get(name, ())]
        seen = [tool for tool in tools if tool is not None and "code" in tool.callers]
        # Which of two of one name is meant is not known.
        if len(seen) != 1:
            return None
        may_call = self._executor.may_call(agent_id, seen[0], via="code")
        return (name, seen[0]) if may_call else None

    def _current(self) -> _Listed:
        """Return the list of the registry as it is now, made anew if that changed."""
        snapshot = self._executor.registry.snapshot()
        with self._turn:
            if self._listed is None or self._listed.revision != snapshot.revision:
                self._listed = _Listed(snapshot)
            return self._listed


class _Listed:
    """All tools of a snapshot, by words and by their names in Python."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.revision = snapshot.revision
        self.index = ToolIndex(snapshot)
        self.names: dict[str, list[str]] = {}
        for tool in snapshot:
            self.names.setdefault(python_name(tool.name), []).append(tool.name)


def _stubs(tools: Iterable[_Named]) -> Iterator[str]:
    room = MAX_FULL_CHARACTERS
    for name, tool in tools:
        text = stub(name, tool)
        if len(text) > room:
            text = short_stub(name, tool)
        room -= len(text)
        yield text
