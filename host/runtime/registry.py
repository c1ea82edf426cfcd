"""The registry of a host's tools, which come with toolcell or are the user's own."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from toolcell.core import ConfigError
from toolcell.guard import ActionGuard
from toolcell.tools import Tool, ToolRegistry
from toolcell.tools.builtin import (
    calculate,
    get_today_date,
    http_get_tool,
    query_sqlite_tool,
)
from toolcell.tools.spi import first_facts

from ..config.host_config import HostConfig
from ..config.tools import Group


def imported(key: str, path: str) -> Any:
    """Return the object of `package.module:name`.

    Args:
        key: The key of the configuration, for the error.
        path: The module and the name.

    Raises:
        ConfigError: It cannot be imported, or is not there.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"{key}: {path} cannot be imported: {error}",
            hint="install its package, or name its folder in tools.folders",
        ) from error
    except AttributeError:
        raise ConfigError(
            f"{key}: {module} has no {name}",
            hint="write package.module:name, of what the module has",
        ) from None


_ENTRY_POINTS = "toolcell.tools"


def make_registry(config: HostConfig, guard: ActionGuard) -> ToolRegistry:
    """Return the tools, each visible to agents that may make some call of it.

    Those that run in sessions of code are not among them.

    Raises:
        ConfigError: A tool cannot be imported or made.
        DuplicateToolError: Two tools have the same name.
    """

    def visible(agent_id: str | None, tool: Tool) -> bool:
        return agent_id is not None and any(
            guard.may_allow(agent_id, tool.name, first_facts(tool, via))
            for via in sorted(tool.callers)
        )

    registry = ToolRegistry(visible=visible)
    for group, names in config.tools.groups.items():
        registry.register_many(wanted(_builtin(group, config), names))
    for folder in map(str, config.tools.folders):
        if folder not in sys.path:
            # Last, so that no file in it can replace a known module.
            sys.path.append(folder)
    for path in config.tools.python:
        registry.register_many(_imported(path))
    for name in config.tools.entry_points:
        registry.register_many(_entry_point(name))
    return registry


def wanted(tools: Iterable[Tool], names: Collection[str]) -> list[Tool]:
    """Return those of some tools that are named."""
    return [tool for tool in tools if tool.name in names]


def _builtin(group: Group, config: HostConfig) -> list[Tool]:
    settings = config.tools
    match group:
        case "arithmetic":
            return [calculate]
        case "clock":
            return [get_today_date]
        case "code" | "files":
            return []
        case "http":
            return [http_get_tool(**settings.http.model_dump())]
        case "database":
            if settings.database is None:
                raise ConfigError(
                    "tools.database is missing",
                    hint="name the file under [tools.database], or drop 'database'",
                )
            return [query_sqlite_tool(**settings.database.model_dump())]


def _entry_point(name: str) -> list[Any]:
    found = list(entry_points(group=_ENTRY_POINTS, name=name))
    if len(found) != 1:
        raise ConfigError(
            f"tools.entry_points: {len(found)} packages have {name!r}",
            hint=None if found else "install the package that brings it",
        )
    return _imported(found[0].value)


def _imported(path: str) -> list[Any]:
    found = imported("tools", path)
    return list(found) if isinstance(found, list | tuple) else [found]
