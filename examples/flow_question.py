"""A question that another process answers: the one that asked has ended by then.

Each `toolcell` below is a separate process; the graph and the configuration are in a
temporary folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

GRAPH = """
from pydantic import BaseModel
from toolcell.flow import START, Graph, interrupt

class Order(BaseModel):
    item: str = ""
    shipped: bool = False

graph = Graph(Order, name="order")

@graph.node
def ship(state: Order):
    return {"shipped": interrupt({"question": f"ship {state.item}?"}, answer=bool)}

graph.edge(START, "ship")
"""
CONFIG = """
[state]
folder = "state"
[tools]
folders = ["."]
[flows]
graphs = ["orders:graph"]
agent = "clerk"
[[policies]]
agent_id = "clerk"
"""


def toolcell(folder: str, *arguments: str) -> Any:
    """Return what a command prints."""
    command = [sys.executable, "-m", "toolcell", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return json.loads(done.stdout)


def main() -> None:
    """Ask in one process, answer in another, go on in a third."""
    with TemporaryDirectory() as folder:
        Path(folder, "orders.py").write_text(GRAPH)
        Path(folder, "toolcell.toml").write_text(CONFIG)
        order = ("--input", '{"item": "books"}', "--thread", "order-1")
        paused = toolcell(folder, "flow", "run", "order", *order)
        print(paused["status"], paused["questions"][0]["payload"])
        [request] = toolcell(folder, "approvals", "list")
        print("among the approvals:", request["tool"])
        answer = (request["id"], "--seen", request["digest"], "--by", "anna")
        toolcell(folder, "approvals", "approve", *answer)
        done = toolcell(folder, "flow", "resume", "order-1")
        print(done["status"], done["state"])
        newest = toolcell(folder, "flow", "history", "order-1")[0]
        print("answered by", newest["answers"][0]["by"])


main()
