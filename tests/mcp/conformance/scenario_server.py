"""An MCP server of resources and prompts, named as the scenarios of the runner ask."""

from __future__ import annotations

import base64
import json

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.types import EmbeddedResource, ImageContent, TextResourceContents

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6"
    "kgAAAABJRU5ErkJggg=="
)
server = MCPServer("scenarios")


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """Text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """Bytes."""
    return base64.b64decode(PNG)


@server.resource("test://template/{name}/data", mime_type="application/json")
def data(name: str) -> str:
    """Data."""
    return json.dumps({"id": name, "templateTest": True, "data": f"Data of {name}"})


@server.prompt()
def test_simple_prompt() -> str:
    """Say a text."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Say two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
    """Show a resource."""
    text = "Embedded resource content for testing."
    shown = TextResourceContents(uri=resourceUri, mime_type="text/plain", text=text)
    return [
        UserMessage(EmbeddedResource(type="resource", resource=shown)),
        UserMessage("Please process the embedded resource above."),
    ]


@server.prompt()
def test_prompt_with_image() -> list[UserMessage]:
    """Show an image."""
    return [
        UserMessage(ImageContent(type="image", data=PNG, mime_type="image/png")),
        UserMessage("Please analyze the image above."),
    ]


if __name__ == "__main__":
    server.run()
