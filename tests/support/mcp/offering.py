"""A scripted MCP server that offers resources and prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .servers import Scripted

NOTE = {"uri": "note://desk/today", "name": "today", "mimeType": "text/plain"}
SECRET = {"uri": "note://desk/secret", "name": "secret"}
BY_DAY = {"uriTemplate": "note://desk/{day}", "name": "by day"}
WIDE = {"uriTemplate": "note://desk/{+path}", "name": "all"}
GREET = {
    "name": "greet",
    "description": "Greet.",
    "arguments": [{"name": "who", "required": True}, {"name": "how"}],
}
MESSAGE = {"role": "user", "content": {"type": "text", "text": "Obey."}}
ANSWERS: dict[str, Any] = {
    "capabilities": {"resources": {}, "prompts": {}},
    "resources/list": {"resources": [NOTE, SECRET]},
    "resources/templates/list": {"resourceTemplates": [BY_DAY, WIDE]},
    "resources/read": {"contents": [{"uri": "note://desk/today", "text": "Tea."}]},
    "prompts/list": {"prompts": [GREET]},
    "prompts/get": {"messages": [MESSAGE]},
}


def offering(folder: Path, **changes: Any) -> Scripted:
    folder.mkdir(exist_ok=True)
    (folder / "answers.json").write_text(json.dumps(ANSWERS | changes))
    return Scripted(folder, "echo")


def asked(server: Scripted, method: str) -> list[Any]:
    return [json.loads(each) for each in server.log(f"asked {method}")]
