"""Makes toolsets of the MCP servers that the configuration names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from toolcell.core import ConfigError
from toolcell.core.secrets import read_secret
from toolcell.sandbox import Network, SandboxConfig
from toolcell.tools import MCPCommand, MCPToolset
from toolcell.tools.spi import MCPEndpoint, MCPPins

from ..config.host_config import HostConfig
from ..config.mcp_servers import MCPCellConfig, MCPServerConfig

_log = logging.getLogger(__name__)


def listed_toolsets(config: HostConfig) -> list[MCPToolset]:
    """Return the approved tools for display; no secret is read.

    Raises:
        ConfigError: The pins cannot be read.
    """
    if not config.tools.mcp:
        return []
    pins = MCPPins.load(config.tools.mcp_pins)
    return [
        _toolset(config, name, pins, dict.fromkeys(settings.secrets, ""))
        for name, settings in config.tools.mcp.items()
    ]


def make_toolsets(config: HostConfig, secrets: Mapping[str, Any]) -> list[MCPToolset]:
    """Return the approved tools of all servers; none is started or connected yet.

    Raises:
        ConfigError: The pins cannot be read.
    """
    if not config.tools.mcp:
        return []
    pins = MCPPins.load(config.tools.mcp_pins)
    made = []
    for name, settings in config.tools.mcp.items():
        known = {each: secrets[each].get_secret_value() for each in settings.secrets}
        toolset = _toolset(config, name, pins, known)
        if toolset.unconfined:
            _log.warning(
                "the MCP server %s is not confined: it runs as the user of this host",
                name,
            )
        for tool, reason in toolset.unusable.items():
            _log.warning("%s of the MCP server %s is left out: %s", tool, name, reason)
        if not toolset.tools:
            _log.warning(
                "no tool of the MCP server %s is approved; see `toolcell tools pin`",
                name,
            )
        made.append(toolset)
    return made


def offering_toolset(
    config: HostConfig, name: str, environ: Mapping[str, str]
) -> MCPToolset:
    """Return a toolset that, once opened, has all tools of a server, approved or not.

    Raises:
        ConfigError: There is no such server, or a secret is not set.
    """
    settings = config.tools.mcp.get(name)
    if settings is None:
        raise ConfigError(
            f"there is no MCP server or API {name!r}",
            hint=f"add a table [tools.mcp.{name}]",
        )
    known = {
        each: read_secret(each, environ).get_secret_value() for each in settings.secrets
    }
    return _toolset(config, name, None, known)


def _toolset(
    config: HostConfig, name: str, pins: MCPPins | None, secrets: Mapping[str, str]
) -> MCPToolset:
    settings = config.tools.mcp[name]
    return MCPToolset(
        name,
        _server(settings, config.sandbox, secrets),
        pins=pins,
        prefix=settings.prefix,
        idempotent=settings.idempotent,
        timeout_seconds=settings.timeout_seconds,
        startup_seconds=settings.startup_seconds,
        max_message_bytes=settings.max_message_bytes,
        per_agent=settings.per_agent,
        max_agents=settings.max_agents,
        idle_seconds=settings.idle_seconds,
    )


def _server(
    settings: MCPServerConfig, sandbox: SandboxConfig, secrets: Mapping[str, str]
) -> MCPCommand | MCPEndpoint:
    if settings.command is not None:
        hidden = {key: secrets[each] for key, each in settings.secret_env.items()}
        return MCPCommand(
            command=settings.command,
            args=settings.args,
            env={**settings.env, **hidden},
            where=settings.where,
            cell=_cell(settings.cell, sandbox) if settings.where == "cell" else None,
            folder=settings.folder,
        )
    headers = {key: secrets[each] for key, each in settings.headers.items()}
    if settings.bearer is not None:
        headers["Authorization"] = f"Bearer {secrets[settings.bearer]}"
    return MCPEndpoint(url=settings.url or "", headers=headers)


def _cell(cell: MCPCellConfig, sandbox: SandboxConfig) -> SandboxConfig:
    """Return the host's kind of cell, with what is a server's own."""
    usual = {name: getattr(sandbox, name) for name in sandbox.model_fields_set}
    own = {
        "network": Network.none.to(cell.network),
        "mounts": cell.mounts,
        "packages": cell.packages,
        "limits": cell.limits,
        "env": {},
    }
    return SandboxConfig(**(usual | own))
