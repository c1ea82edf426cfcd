"""The tools of a registry at one moment."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from toolcell.core import DuplicateToolError, ToolNotFoundError

from ..definition.options import provider_name
from ..definition.tool import Tool

Visible = Callable[[str | None, Tool], bool]
"""Tells whether an agent may know of a tool; None stands for one without a name."""

MAX_SUGGESTIONS = 3
"""Names that a failed lookup suggests. When it is reached the search ends."""

MAX_COMPARED = 50
"""Names that a failed lookup is compared with. When it is reached suggestions come
from these alone."""

_NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RegistryState:
    """The content of a snapshot; it never changes once a snapshot has it."""

    visible: Visible | None
    config: Mapping[str, Mapping[str, Any]]
    tools: dict[str, Mapping[str, Tool]] = field(default_factory=dict)
    """By name, then by version."""

    spellings: dict[str, str] = field(default_factory=dict)
    """Names by the spelling that providers take, in lower case."""

    pins: dict[str, str] = field(default_factory=dict)
    deprecated: dict[tuple[str, str], str] = field(default_factory=dict)

    def copy(self) -> RegistryState:
        return RegistryState(
            self.visible,
            self.config,
            dict(self.tools),
            dict(self.spellings),
            dict(self.pins),
            dict(self.deprecated),
        )

    def find(self, name: str) -> Mapping[str, Tool] | None:
        found = self.tools.get(name)
        if found is None:
            own = self.spellings.get(name.lower(), "")
            found = self.tools.get(own) if provider_name(own) == name else None
        return found

    def add(self, tool: Tool, *, replace: bool, versions: bool) -> None:
        key = provider_name(tool.name).lower()
        holder = self.spellings.get(key, tool.name)
        known = self.tools.get(holder, {})
        taken = known.get(tool.version) or next(iter(known.values()), None)
        if holder != tool.name and taken is not None:
            raise _duplicate(tool, taken, "rename one: providers write them alike")
        if tool.version in known and not replace:
            raise _duplicate(tool, known[tool.version], "pass replace=True")
        if taken is not None and tool.version not in known and not versions:
            raise _duplicate(tool, taken, "pass versions=True to keep both versions")
        self.spellings[key] = tool.name
        self.tools[tool.name] = {**known, tool.version: tool}
        self.deprecated.pop((tool.name, tool.version), None)

    def remove(self, name: str, version: str | None) -> list[Tool]:
        known = dict(self.tools.get(name, {}))
        gone = [each for each in known if version in (None, each)]
        removed = [known.pop(each) for each in gone]
        for number in gone:
            self.deprecated.pop((name, number), None)
            if self.pins.get(name) == number:
                del self.pins[name]
        if known:
            self.tools[name] = known
        elif removed:
            del self.tools[name]
            del self.spellings[provider_name(name).lower()]
        return removed


def _duplicate(tool: Tool, taken: Tool, hint: str) -> DuplicateToolError:
    return DuplicateToolError(
        f"{tool.name} {tool.version} of {tool.source} meets {taken.name}"
        f" {taken.version} of {taken.source}",
        hint=hint,
    )


class Snapshot:
    """The tools of a registry at one moment, as the host or as one agent sees them.

    A snapshot never changes, so a batch that works on one is not affected by later
    registrations. `for_agent` narrows it to the tools that an agent may know of: the
    others are neither listed nor found nor suggested. A name is found in its own
    spelling, and in the one that providers accept. Of several versions `get` returns
    the pinned one, else the newest that is not deprecated, else the newest.
    """

    def __init__(
        self, state: RegistryState, revision: int, may_see: Callable[[Tool], bool]
    ) -> None:
        self.state = state
        self._may_see = may_see
        self._found: dict[str, Tool] = {}
        """Tools that were looked up, by the requested name; in the host's view only."""

        self.revision = revision
        """Grows with each change of the registry."""

    def for_agent(self, agent_id: str | None) -> Snapshot:
        """Return the tools that an agent may know of; None: an agent without a name.

        A registry that was made without `visible` knows no policy; then
        `ToolExecutor.tools` hides the tools that the guard always denies.
        """
        visible = self.state.visible
        if visible is None:
            return self
        return Snapshot(self.state, self.revision, functools.partial(visible, agent_id))

    def get(self, name: str, version: str | None = None) -> Tool | None:
        """Return a tool, or None where there is none to see.

        Args:
            name: The tool's name, in its own spelling or that of the providers.
            version: The version; None: the one that the class describes.
        """
        known = self._found.get(name)
        if known is not None and version is None:
            return known
        versions = self.state.find(name)
        if versions is None:
            return None
        found = self._chosen(versions) if version is None else versions.get(version)
        if found is None or not self._may_see(found):
            return None
        if version is None and self._may_see is everything:
            self._found[name] = found
        return found

    def get_or_raise(self, name: str, version: str | None = None) -> Tool:
        """Return a tool.

        Raises:
            ToolNotFoundError: There is none of that name and version to see. The
                error suggests only names that the agent may see.
        """
        found = self._found.get(name)
        if found is None or version is not None:
            found = self.get(name, version)
        if found is not None:
            return found
        similar = self._similar(name)
        raise ToolNotFoundError(
            "there is no such tool, or not in this version",
            hint=f"did you mean {' or '.join(similar)}?" if similar else None,
            details={"suggestions": similar},
        )

    def list_tools(self) -> list[str]:
        """Return the names in the order of their registration."""
        return [tool.name for tool in self]

    def versions(self, name: str) -> list[str]:
        """Return the versions of a tool, oldest first; none without such a tool."""
        known = self.state.find(name) or {}
        return sorted(
            (each for each in known if self._may_see(known[each])), key=_version_key
        )

    def deprecation(self, tool: Tool) -> str | None:
        """Return the reason why a tool is deprecated; None: it is not."""
        return self.state.deprecated.get((tool.name, tool.version))

    def config_of(self, name: str) -> Mapping[str, Any]:
        """Return the configuration of a tool, for its `ToolContext`."""
        return self.state.config.get(name, _NO_CONFIG)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Tool]:
        for versions in self.state.tools.values():
            found = self._chosen(versions)
            if self._may_see(found):
                yield found

    def _chosen(self, versions: Mapping[str, Tool]) -> Tool:
        first = next(iter(versions.values()))
        if len(versions) == 1:
            return first
        pinned = versions.get(self.state.pins.get(first.name, ""))
        if pinned is not None:
            return pinned
        gone = self.state.deprecated
        return max(
            versions.values(),
            key=lambda each: (
                (each.name, each.version) not in gone,
                _version_key(each.version),
            ),
        )

    def _similar(self, name: str) -> list[str]:
        # A comparison is slow, so only names that begin or end alike are compared.
        alike = (
            tool
            for tool in self.state.tools
            if tool[:3] == name[:3] or tool[-3:] == name[-3:]
        )
        few = itertools.islice(filter(self.__contains__, alike), MAX_COMPARED)
        return difflib.get_close_matches(name[:64], few, n=MAX_SUGGESTIONS, cutoff=0.7)


def everything(tool: Tool) -> bool:
    """Show every tool: the host's view."""
    return True


def _version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
