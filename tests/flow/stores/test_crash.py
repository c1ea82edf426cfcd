"""Killed before and after each write: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

VICTIM = r"""
import json, os, signal, sys
from typing import Annotated

import anyio
from pydantic import BaseModel

from toolcell.flow import (START, Flow, Graph, NodeContext, SendBatch, SendResult,
                           SQLiteCheckpointer, append_list, interrupt, scatter)
from toolcell.tools import (ConcurrentExecutor, SQLiteIdempotency, ToolRegistry, tool)

FOLDER, MOMENT, BOTH, POWER_SAFE = sys.argv[1:5]
WRITES = ("create", "claim", "append", "commit", "put_once", "release")


class Killing(SQLiteCheckpointer):
    at, writes, name = 0, 0, ""

    def _in_transaction(self, work, *args):
        if work.__name__ not in WRITES:
            return super()._in_transaction(work, *args)
        self.writes += 1
        if self.writes == self.at:
            with open("killed", "a") as told:
                told.write(work.__name__ + "\n")
            if MOMENT == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        done = super()._in_transaction(work, *args)
        if self.writes == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def effect(line):
    fd = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (line + "\n").encode())
    os.close(fd)


@tool
async def pay(what: str) -> str:
    "Pay."
    effect(what)
    return "paid " + what


@tool(idempotent=True)
async def look(what: str) -> str:
    "Look."
    return "saw " + what


class State(BaseModel):
    log: Annotated[tuple[str, ...], append_list] = ()


graph = Graph(State, name="victim")


@graph.node
async def first(state: State, ctx: NodeContext):
    paid = await ctx.call("pay", what="first")
    seen = await ctx.call("look", what="first")
    return {"log": (paid.content, seen.content)}


@graph.node
async def fan(state: State):
    sends = scatter("worker", ["a", "b", "c"], key="what")
    return SendBatch(sends=sends, aggregator_node="gather")


@graph.node
async def worker(what: str, ctx: NodeContext):
    return (await ctx.call("pay", what=what)).content


@graph.node
async def gather(results: list[SendResult]):
    return {"log": [each.result for each in results]}


@graph.node
async def ask(state: State, ctx: NodeContext):
    before = await ctx.call("pay", what="before")
    answer = interrupt("go on?")
    after = await ctx.call("pay", what="after")
    return {"log": (before.content, answer, after.content)}


graph.edge(START, "first").edge("first", "fan").edge("gather", "ask")


def told(question):
    "Answer truthfully, by looking at what happened."
    if question.kind == "question":
        return "yes"
    what = question.payload["arguments"]["what"]
    with open("doubts", "a") as doubts:
        doubts.write(what + "\n")
    lines = open("effects").read().split() if os.path.exists("effects") else []
    if what in lines:
        return {"outcome": "done", "content": "paid " + what}
    return {"outcome": "again"}


async def run(at):
    Killing.at = at
    keys = SQLiteIdempotency("keys.db")
    executor = ConcurrentExecutor(
        ToolRegistry([pay, look]), guard=None, idempotency=keys
    )
    safe = POWER_SAFE == "yes"
    async with Killing("flows.db", power_safe=safe) as checkpointer:
        flow = Flow(graph, checkpointer=checkpointer, executor=executor)
        if await checkpointer.read("t") is None:
            result = await flow.run({}, "t")
        else:
            result = await flow.resume("t")
        while result.status == "interrupted":
            answers = {each.interrupt_id: told(each) for each in result.interrupts}
            result = await flow.resume("t", answers)
        history = await flow.history("t", 100)
    keys.close()
    with open("done", "w") as done:
        json.dump([result.status, result.state.log,
                   [each.checkpoint_id for each in history]], done)


def child(at):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            anyio.run(run, at)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


at = 0
while True:
    at += 1
    folder = f"{FOLDER}/{at}"
    os.mkdir(folder)
    os.chdir(folder)
    codes = [child(at)]
    if BOTH == "twice" and codes[0]:
        codes.append(child(at))
    while codes[-1] == -signal.SIGKILL or len(codes) == 1 and codes[0]:
        codes.append(child(0))
    found = {name: open(name).read().split() if os.path.exists(name) else []
             for name in ("effects", "doubts", "killed")}
    left = [name for name in os.listdir(".") if "-owner-" in name]
    done = json.load(open("done")) if os.path.exists("done") else None
    print(json.dumps({"at": at, "codes": codes, "done": done, "left": left, **found}),
          flush=True)
    if codes[0] == 0:
        break
"""
LOG = [
    *("paid first", "saw first", "paid a", "paid b", "paid c"),
    *("paid before", "yes", "paid after"),
]
EFFECTS = ["a", "after", "b", "before", "c", "first"]
IN_NO_CALL = {"create", "claim", "commit", "release", "put_once"}


def rounds(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Kill the victim at its first write, its second, ...; return what came of it."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", VICTIM, str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("moment", "times", "power_safe"),
    [
        ("before", "once", "no"),
        ("after", "twice", "no"),
        pytest.param("after", "once", "yes", marks=pytest.mark.full),
        pytest.param("before", "twice", "yes", marks=pytest.mark.full),
    ],
)
def test_a_kill_at_any_write_loses_nothing_and_repeats_nothing(
    moment: str, times: str, power_safe: str, tmp_path: Path
) -> None:
    found = rounds(tmp_path, moment, times, power_safe)

    assert len(found) > 25
    for each in found:
        assert each["codes"][-1] == 0, each
        status, log, history = each["done"]
        assert (status, log) == ("done", LOG), each
        assert sorted(each["effects"]) == EFFECTS, each
        assert history == [str(n) for n in range(len(history) - 1, -1, -1)], each
        assert each["left"] == [], each
        if set(each["killed"]) <= IN_NO_CALL:
            assert each["doubts"] == [], each
    assert {name for each in found for name in each["killed"]} >= {"append", "commit"}
    assert any(each["doubts"] for each in found)
