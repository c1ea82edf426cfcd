"""Tries the MCP servers of a configuration: `toolcell doctor --config`."""

from __future__ import annotations

from collections.abc import Mapping

from toolcell.core import ConfigError, ToolExecutionError
from toolcell.core.text.counted import counted
from toolcell.sandbox.spi import DoctorCheck

from ..config.host_config import HostConfig
from .mcp_toolsets import offering_toolset


async def check_servers(
    config: HostConfig, environ: Mapping[str, str]
) -> tuple[DoctorCheck, ...]:
    """Start or reach each MCP server of a configuration, and end it again.

    A server that fails is a finding, never an exception.

    Args:
        config: The configuration.
        environ: The variables that secrets are read from.
    """
    return tuple([await _check(config, name, environ) for name in config.tools.mcp])


async def _check(
    config: HostConfig, name: str, environ: Mapping[str, str]
) -> DoctorCheck:
    title = f"MCP server {name}"
    try:
        async with offering_toolset(config, name, environ) as server:
            place = "runs unconfined on the host, " if server.unconfined else ""
            offers = f"{place}offers {counted(len(server.tools), 'tool')}"
            return DoctorCheck(name=title, ok=True, detail=offers)
    except (ConfigError, ToolExecutionError) as error:
        why, fix = error.message, error.hint or ""
        return DoctorCheck(name=title, ok=False, detail=why, fix=fix)
