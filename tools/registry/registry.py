"""The tools of one host, by name and version. Nothing is global."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakValueDictionary

import anyio

from toolcell.core import ToolNotFoundError

from ..definition.options import ToolOptions
from ..definition.tool import FunctionTool, Tool, as_tool, tool
from .snapshot import RegistryState, Snapshot, Visible, everything

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Reload:
    """The changes of a reload, as names in order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    """Tools whose definition has another hash now."""


class ToolRegistry:
    """The tools that a host offers, by name and version.

    Tools are registered, replaced, withdrawn and reloaded while calls run. Readers work
    on a `Snapshot` that never changes; a writer prepares the next one and puts it in
    place in one step, or changes nothing if a tool is not well defined. So a batch that
    took a snapshot is not affected by later changes, except by `retire`, which waits
    until no call of a tool runs. Methods may be called from any thread; `retire`
    belongs to the event loop of the executors.

    Args:
        tools: Tools, or functions to make tools of.
        visible: Tells whether an agent may know of a tool; None: every agent may know
            of all. A host takes it from its guard.
        config: Configuration by tool name, for `ToolContext.get_config`.

    Raises:
        ConfigError: A tool is not well defined.
        DuplicateToolError: A name comes twice in the same version.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        visible: Visible | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        settled = {name: dict(values) for name, values in (config or {}).items()}
        self._lock = threading.Lock()
        self._watchers: dict[object, Callable[[], object]] = {}
        self._put(RegistryState(visible, settled), 0)
        self._runs = ActiveRuns()
        self.register_many(tools, versions=True)

    def _put(self, state: RegistryState, revision: int) -> None:
        self._snapshot = Snapshot(state, revision, everything)

    @contextmanager
    def _changing(self) -> Iterator[RegistryState]:
        """Yield a copy of the state; it becomes the present one if nothing fails."""
        with self._lock:
            state = self._snapshot.state.copy()
            yield state
            self._put(state, self._snapshot.revision + 1)
            watchers = list(self._watchers.values())
        for notify in watchers:
            notify()

    def snapshot(self) -> Snapshot:
        """Return all tools as they are now. Take one for a whole batch."""
        return self._snapshot

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call a function after each change; return a function that ends this.

        Args:
            changed: Called in the thread that made the change. It must not raise.
        """
        key = object()
        self._watchers[key] = changed

        def end() -> None:
            self._watchers.pop(key, None)

        return end

    def register(
        self,
        tool: Tool | Callable[..., Any],
        *,
        replace: bool = False,
        versions: bool = False,
        **options: Unpack[ToolOptions],
    ) -> Tool:
        """Add a tool, or a function as a tool.

        Args:
            tool: The tool, or a function to make it of.
            replace: Whether it replaces the tool of the same name and version.
            versions: Whether other versions of its name may exist beside it.
            **options: For a function, see `ToolOptions`.

        Raises:
            ConfigError: The tool is not well defined.
            DuplicateToolError: The name is taken, also in a spelling that providers
                cannot tell from it.
        """
        made = as_tool(tool, **options)
        self.register_many([made], replace=replace, versions=versions)
        return made

    def register_many(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        *,
        replace: bool = False,
        versions: bool = False,
    ) -> list[Tool]:
        """Add tools, all or none of them; otherwise as `register`."""
        made = _checked(tools)
        with self._changing() as state:
            for added in made:
                state.add(added, replace=replace, versions=versions)
        for added in made:
            self._runs.retired.pop(id(added), None)
        return made

    @overload
    def tool(
        self, function: Callable[P, R], /, **options: Unpack[ToolOptions]
    ) -> FunctionTool[P, R]: ...

    @overload
    def tool(
        self, /, **options: Unpack[ToolOptions]
    ) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Make a tool of a function and register it: `@registry.tool`."""
        make = tool(**options)
        if function is not None:
            return self.register(make(function))
        return lambda function: self.register(make(function))

    def unregister(self, name: str, version: str | None = None) -> Tool | None:
        """Remove a tool, in one version or in all, and return it; None without it.

        Calls that run go on, and batches that have a snapshot still find the tool in
        it; see `retire`.
        """
        chosen = self._snapshot.get(name, version)
        if chosen is not None:
            with self._changing() as state:
                state.remove(chosen.name, version)
        return chosen

    def reload(self, tools: Iterable[Tool | Callable[..., Any]]) -> Reload:
        """Replace all tools by these, in one step.

        Tools that stay keep their pins and deprecations. Running calls go on.

        Raises:
            ConfigError: A tool is not well defined; nothing changed.
            DuplicateToolError: A name comes twice in the same version.
        """
        made = _checked(tools)
        before = self._snapshot.state
        with self._changing() as state:
            state.tools.clear()
            state.spellings.clear()
            for added in made:
                state.add(added, replace=False, versions=True)
            for name, version in before.pins.items():
                if version not in state.tools.get(name, ()):
                    del state.pins[name]
            for key, reason in before.deprecated.items():
                if key[1] in state.tools.get(key[0], ()):
                    state.deprecated[key] = reason
        return _difference(before.tools, state.tools)

    def pin(self, name: str, version: str | None) -> None:
        """Make `get` return this version of a tool; None: the newest again.

        Raises:
            ToolNotFoundError: There is no such version.
        """
        found = self._snapshot.get_or_raise(name, version)
        with self._changing() as state:
            state.pins.pop(found.name, None)
            if version is not None:
                state.pins[found.name] = version

    def deprecate(self, name: str, version: str, reason: str) -> None:
        """Make `get` prefer other versions of a tool.

        Raises:
            ToolNotFoundError: There is no such version.
        """
        found = self._snapshot.get_or_raise(name, version)
        with self._changing() as state:
            state.deprecated[found.name, version] = reason

    def track_run(self, tool: Tool, cancel: Callable[[], object]) -> ToolRun:
        """Return a context manager around one run of a tool, for `retire`.

        Args:
            tool: The tool that runs.
            cancel: Ends the run.

        Raises:
            ToolNotFoundError: On entering, if the tool was retired meanwhile.
        """
        return ToolRun(self._runs, tool, cancel)

    async def retire(
        self, name: str, version: str | None = None, *, cancel: bool = False
    ) -> Tool | None:
        """Remove a tool as `unregister` does, and wait until no call of it runs.

        No new run begins, not even from an older snapshot.

        Args:
            name: The tool.
            version: The version; None: all.
            cancel: Whether running calls are cancelled instead of waited for.
        """
        known = self._snapshot.state.find(name) or {}
        gone = [known[each] for each in known if version in (None, each)]
        removed = self.unregister(name, version)
        await self._runs.retire(gone, cancel=cancel)
        return removed

    def get(self, name: str, version: str | None = None) -> Tool | None:
        """Return a tool as the host sees it, see `Snapshot.get`."""
        return self._snapshot.get(name, version)

    def get_or_raise(self, name: str, version: str | None = None) -> Tool:
        """Return a tool as the host sees it, see `Snapshot.get_or_raise`."""
        return self._snapshot.get_or_raise(name, version)

    def list_tools(self) -> list[str]:
        """Return all names in the order of their registration."""
        return self._snapshot.list_tools()

    def __contains__(self, name: object) -> bool:
        return name in self._snapshot

    def __len__(self) -> int:
        return len(self._snapshot)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._snapshot)


def _checked(tools: Iterable[Tool | Callable[..., Any]]) -> list[Tool]:
    made = [as_tool(value) for value in tools]
    for found in made:
        found.check_definition()
    return made


def _difference(
    before: Mapping[str, Mapping[str, Tool]], after: Mapping[str, Mapping[str, Tool]]
) -> Reload:
    def hashes(versions: Mapping[str, Tool]) -> set[str]:
        return {version.definition_hash for version in versions.values()}

    return Reload(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            name
            for name in after
            if name in before and hashes(before[name]) != hashes(after[name])
        ),
    )


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
