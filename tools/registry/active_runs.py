"""The calls of tools that run now, so that a tool can be withdrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakValueDictionary

import anyio

from toolcell.core import ToolNotFoundError

from ..definition.tool import Tool


class ActiveRuns:
    """The running calls of a registry's tools, on one event loop."""

    def __init__(self) -> None:
        self.running: set[ToolRun] = set()
        self.retired: WeakValueDictionary[int, Tool] = WeakValueDictionary()
        """Withdrawn tools by their id, which is free again when the tool is gone."""

        self.any_retired = False
        """True once a tool was withdrawn: until then `retired` is not searched."""

    async def retire(self, tools: Iterable[Tool], *, cancel: bool) -> None:
        """Prevent new runs of these tools, and wait until the last one has ended."""
        gone = {id(tool): tool for tool in tools}
        self.retired.update(gone)
        self.any_retired = True
        left = [run for run in self.running if id(run.tool) in gone]
        for run in left:
            run.ended = run.ended or anyio.Event()
            if cancel:
                run.cancel()
        for run in left:
            if run.ended is not None:
                await run.ended.wait()


class ToolRun:
    """One run of a tool, as a context manager.

    Raises:
        ToolNotFoundError: On entering, if the tool was retired meanwhile.
    """

    __slots__ = ("_cancel", "_runs", "ended", "retired", "tool")

    def __init__(
        self, runs: ActiveRuns, tool: Tool, cancel: Callable[[], object]
    ) -> None:
        self._runs = runs
        self._cancel = cancel
        self.tool = tool
        self.ended: anyio.Event | None = None
        self.retired = False
        """True if it was cancelled because its tool was withdrawn."""

    def cancel(self) -> None:
        """End the run because its tool is withdrawn."""
        self.retired = True
        self._cancel()

    def __enter__(self) -> None:
        runs = self._runs
        if runs.any_retired and id(self.tool) in runs.retired:
            raise ToolNotFoundError(
                "the tool was withdrawn meanwhile",
                hint="list the tools again, and use one of them",
            )
        runs.running.add(self)

    def __exit__(self, *error: object) -> None:
        self._runs.running.discard(self)
        if self.ended is not None:
            self.ended.set()
