"""Definitions of MCP tools that a person approved."""

from __future__ import annotations

from ..foreign.pins import Pins
from .definition import MCPDefinition


class MCPPins(Pins[MCPDefinition]):
    """Approved definitions of MCP tools, by the name of their server; immutable.

    Args:
        servers: Definitions by server.
    """

    kind = MCPDefinition
