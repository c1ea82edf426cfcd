"""The page of policies shows what `toolcell tools pin` has approved, of every kind."""

from __future__ import annotations

import json
from pathlib import Path

from ...support.console.client import signed_in
from ...support.console.served import configured, served
from ...support.mcp.servers import Scripted
from ...support.toolcell_command import toolcell
from ...support.web.api import document

PETS = document(
    {
        "/pets": {
            method: {"operationId": name, "responses": {"200": {"description": "ok"}}}
            for method, name in {"get": "listPets", "post": "addPet"}.items()
        }
    }
)


def tables(folder: Path) -> str:
    """Return tables of an MCP server, an API, and one of each that nobody pinned."""
    server = Scripted(folder, "read")
    (folder / "pets.json").write_text(json.dumps(PETS))
    api = 'document = "pets.json"\nserver = "https://pets.example"\n'
    return (
        f"{server.table('files')}{server.table('new-server')}"
        f"[tools.openapi.pets]\n{api}[tools.openapi.new-api]\n{api}"
    )


def test_approved_definitions_of_servers_and_apis_are_shown(tmp_path: Path) -> None:
    more = tables(tmp_path)
    configured(tmp_path, more)
    config = str(tmp_path / "toolcell.toml")
    done = toolcell("tools", "pin", "files", "pets", "--yes", "--config", config)
    assert done.returncode == 0, done.stderr
    pinned = {
        name: pin["sha256"]
        for file, server, names in (
            ("mcp_pins.json", "files", ["read"]),
            ("openapi_pins.json", "pets", ["addPet", "listPets"]),
        )
        for name, pin in zip(
            names,
            json.loads((tmp_path / file).read_text())["servers"][server],
            strict=True,
        )
    }
    with served(tmp_path, more) as service, signed_in(service, "viewer") as viewer:
        page = " ".join(viewer.page("/policies").split())

    assert "Approved definitions of MCP servers and APIs" in page
    assert f"files: 1 tool read {pinned['read']}" in page
    pets = [f"{name} {pinned[name]}" for name in ("addPet", "listPets")]
    assert f"pets: 2 tools {' '.join(pets)}" in page
    for name in ("new-server", "new-api"):
        assert f"{name}: 0 tools none: toolcell tools pin {name}" in page
