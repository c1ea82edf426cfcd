"""Set-ups of MCP servers for tests: the scripted one, and the official example."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolcell.sandbox import SandboxConfig
from toolcell.tools import MCPCommand, MCPToolset
from toolcell.tools.spi import MCPPins

from ..polling import until
from ..process_tree import alive

SERVER = Path(__file__).with_name("scripted_server.py")
CELL_SERVER = Path(__file__).with_name("cell_server.py")
OPEN = {"type": "object"}


def definition(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"Does {name}.", "inputSchema": OPEN, **more}


class Scripted:
    """The scripted server over its pipes, in a folder of its own."""

    def __init__(self, folder: Path, *tools: str | dict[str, Any]) -> None:
        self.folder = folder
        self.offer(*tools)

    def offer(self, *tools: str | dict[str, Any]) -> None:
        """Tell these tools from the next listing on."""
        told = [definition(tool) if isinstance(tool, str) else tool for tool in tools]
        self.tell(told)

    def tell(self, listing: Any) -> None:
        (self.folder / "tools.json").write_text(json.dumps(listing))

    def command(self, **options: Any) -> MCPCommand:
        args = ("-I", "-S", str(SERVER), str(self.folder))
        return MCPCommand(command=sys.executable, args=args, where="host", **options)

    def table(self, name: str) -> str:
        """Return its table in the configuration of a host; more lines may follow."""
        command = self.command()
        return (
            f"[tools.mcp.{name}]\ncommand = {json.dumps(command.command)}\n"
            f'args = {json.dumps(command.args)}\nwhere = "host"\n'
        )

    def toolset(self, pins: MCPPins | None = None, **options: Any) -> MCPToolset:
        return MCPToolset("test", self.command(), pins=pins, **options)

    def log(self, word: str = "") -> list[str]:
        """Return what happened, or only what begins with a word, without it."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [
            line.removeprefix(word).strip() for line in lines if line.startswith(word)
        ]

    async def logged(self, word: str) -> str:
        """Wait until something happened."""
        await until(lambda: bool(self.log(word)))
        return self.log(word)[0]

    @property
    def pids(self) -> list[int]:
        """The servers that were started."""
        return [int(line.split()[0]) for line in self.log("started")]


def in_cell(
    cell: SandboxConfig | None, *args: str, env: Mapping[str, str] | None = None
) -> MCPCommand:
    """Return the server of `cell_server.py`, to run in a cell."""
    program = ("-c", CELL_SERVER.read_text(), *args)
    return MCPCommand(command="python3", args=program, cell=cell, env=env or {})


def be_patient(toolset: MCPToolset) -> None:
    """Let calls take a minute from now on, whatever they might take before."""
    for tool in toolset.tools:
        # What was registered stays as it is, for all but this.
        object.__setattr__(tool, "timeout", 60.0)


def processes_of(folder: Path) -> list[int]:
    """Return the processes that have a folder's path in their command."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                command = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder) in command and alive(int(name)):
                found.append(int(name))
    return found
