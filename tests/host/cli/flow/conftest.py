"""Graphs and a configuration for the commands of `toolcell flow`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ....support.toolcell_command import toolcell
from ..conftest import Command

GRAPHS = '''
from typing import Annotated
from pydantic import BaseModel
from toolcell.flow import START, Graph, NodeContext, append_list, interrupt
from toolcell.tools import tool

class Order(BaseModel):
    item: str = ""
    password: str = ""
    log: Annotated[tuple[str, ...], append_list] = ()

@tool
def pay(euros: int) -> str:
    """Pay."""
    with open("effects.txt", "a") as effects:
        effects.write(f"{euros}\\n")
    return f"paid {euros}"

order = Graph(Order, name="order")

@order.node
async def ship(state: Order, ctx: NodeContext):
    print("a word of the graph's own")
    answer = interrupt({"question": f"ship {state.item}?"}, answer=bool)
    return {"log": (f"ship: {answer}",)}

order.edge(START, "ship")

hurried = Graph(Order, name="hurried")

@hurried.node
def hurry(state: Order):
    interrupt("at once?", expires_seconds=0.0)

hurried.edge(START, "hurry")

payment = Graph(Order, name="payment")

@payment.node
async def charge(state: Order, ctx: NodeContext):
    return {"log": ((await ctx.call("pay", euros=30)).to_text(),)}

payment.edge(START, "charge")

broken = Graph(Order, name="broken")

@broken.node
def fail(state: Order):
    raise ValueError("hunter2 \\x1b]0;title\\x07\\x9b2J\\u202e")

broken.edge(START, "fail")
'''
CONFIG = """
[state]
folder = "state"
[tools]
python = ["my_graphs:pay"]
folders = ["."]
[flows]
graphs = [
    "my_graphs:order", "my_graphs:payment", "my_graphs:broken", "my_graphs:hurried",
]
agent = "bot"
[[policies]]
agent_id = "bot"
ask = ["pay"]
"""


Flow = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_graphs.py").write_text(GRAPHS)
    (tmp_path / "toolcell.toml").write_text(CONFIG)
    return tmp_path


def other(*arguments: str, code: int = 0) -> Any:
    """Return what a command prints in a process of its own."""
    done = toolcell("flow", *arguments, "--json")
    assert done.returncode == code, done
    return json.loads(done.stdout or done.stderr)


@pytest.fixture
def flow(command: Command, folder: Path) -> Flow:
    """Run a command in this process; return what it prints with `--json`."""

    def run(*arguments: str, code: int = 0) -> Any:
        done = command("flow", *arguments, "--json")
        assert done.code == code, done
        return json.loads(done.out or done.err)

    return run
