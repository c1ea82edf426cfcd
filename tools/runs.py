"""Which calls of a tool run now, so that a tool can be taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import anyio

from toolcell.core import ToolNotFoundError

from .tool import Tool


class Runs:
    """The running calls of a registry's tools, on one event loop."""

    def __init__(self) -> None:
        self.cancels: dict[int, dict[Run, Callable[[], object]]] = {}
        """How to end each run, by the id of its tool."""

        self.ended: dict[int, anyio.Event] = {}
        """Set when no run of a retired tool is left."""

        self.retired: WeakValueDictionary[int, Tool] = WeakValueDictionary()

    async def retire(self, tools: Iterable[Tool], *, cancel: bool) -> None:
        """Let no new run of these tools begin, and wait for the last to end."""
        ids = []
        for tool in tools:
            self.retired[id(tool)] = tool
            if id(tool) in self.cancels:
                ids.append(id(tool))
                self.ended.setdefault(id(tool), anyio.Event())
        if cancel:
            for stop in [stop for each in ids for stop in self.cancels[each].values()]:
                stop()
        for event in [self.ended[each] for each in ids]:
            await event.wait()


class Run:
    """One run of a tool, as a context manager.

    Raises:
        ToolNotFoundError: On entering, if the tool was retired meanwhile.
    """

    __slots__ = ("_cancel", "_runs", "_tool")

    def __init__(self, runs: Runs, tool: Tool, cancel: Callable[[], object]) -> None:
        self._runs = runs
        self._tool = tool
        self._cancel = cancel

    def __enter__(self) -> None:
        key = id(self._tool)
        if key in self._runs.retired:
            raise ToolNotFoundError("the tool was withdrawn meanwhile")
        self._runs.cancels.setdefault(key, {})[self] = self._cancel

    def __exit__(self, *error: object) -> None:
        key = id(self._tool)
        left = self._runs.cancels[key]
        del left[self]
        if not left:
            del self._runs.cancels[key]
            ended = self._runs.ended.pop(key, None)
            if ended is not None:
                ended.set()
