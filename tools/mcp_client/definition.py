"""Definitions of tools by an MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, JsonValue

from toolcell.core import ConfigError

from ..external.definition import ExternalDefinition, checked_definition
from ..external.pins import Pins
from .offers import KINDS, MCPOffer

_OTHER_KINDS = tuple(f"{kind} " for kind in KINDS)


class MCPDefinition(ExternalDefinition):
    """A tool as its server defines it. With any change it is another tool."""

    output_schema: Annotated[
        dict[str, JsonValue] | None, Field(alias="outputSchema")
    ] = None
    annotations: dict[str, JsonValue] = Field(default_factory=dict)
    """Hints of the server about the tool; they decide nothing here."""

    def to_json(self) -> dict[str, Any]:
        """Return the definition with the names of the protocol."""
        fields = super().to_json()
        if self.output_schema is None:
            del fields["outputSchema"]
        return fields


def mcp_definition(tool: Mapping[str, Any]) -> MCPDefinition:
    """Return the definition of a tool as the server sent it. Raises ConfigError."""
    keys = ("name", "description", "inputSchema", "outputSchema", "annotations")
    given = {key: tool[key] for key in keys if tool.get(key) is not None}
    if str(given.get("name")).startswith(_OTHER_KINDS):
        raise ConfigError(
            "its name could be that of a resource or prompt in the pins",
            hint="its server has to name it otherwise",
        )
    return checked_definition(MCPDefinition, given, ("input_schema", "output_schema"))


class MCPPins(Pins[MCPDefinition | MCPOffer]):
    """Approved definitions of MCP servers, by the name of their server; immutable.

    Args:
        servers: Definitions by server: of tools, resources and prompts.
    """

    kind = MCPDefinition

    @classmethod
    def read(cls, definition: Mapping[str, JsonValue]) -> MCPDefinition | MCPOffer:
        kind = MCPOffer if "kind" in definition else MCPDefinition
        return kind.model_validate(definition)

    def tools_of(self, server: str) -> dict[str, MCPDefinition]:
        """Return the approved tools of a server, by name."""
        found = self.of(server).items()
        return {
            name: value for name, value in found if isinstance(value, MCPDefinition)
        }

    def offers_of(self, server: str) -> dict[str, MCPOffer]:
        """Return the approved resources and prompts of a server, by name."""
        found = self.of(server).items()
        return {name: value for name, value in found if isinstance(value, MCPOffer)}
