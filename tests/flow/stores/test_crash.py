"""Killed before and after each write: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ...support.guard.redis_server import RedisServer

VICTIM = r"""
import json, os, signal, sys, threading
from typing import Annotated

import anyio
from pydantic import BaseModel

from toolcell.core import ThreadBusyError
from toolcell.flow import (START, Flow, Graph, NodeContext, RedisCheckpointer,
                           SendBatch, SendResult, SQLiteCheckpointer, append_list,
                           interrupt, scatter)
from toolcell.tools import (ConcurrentExecutor, SQLiteIdempotency, ToolRegistry, tool)

FOLDER, MOMENT, BOTH, STORE, EVERY = sys.argv[1:6]
WRITES = ("create", "claim", "append", "commit", "put_once", "release")


class Killing:
    at, writes, turn = 0, 0, threading.Lock()

    def killing(self, name, write):
        if name not in WRITES:
            return write()
        with self.turn:
            self.writes += 1
            if self.writes == self.at:
                with open("killed", "a") as told:
                    told.write(name + "\n")
                if MOMENT == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
            done = write()
            if self.writes == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done


class KillingSQLite(Killing, SQLiteCheckpointer):
    def _in_transaction(self, work, *args):
        write = lambda: super(Killing, self)._in_transaction(work, *args)
        return self.killing(work.__name__, write)


class KillingRedis(Killing, RedisCheckpointer):
    def _answer(self, script, *values):
        from toolcell.flow.stores import redis_scripts
        names = {getattr(redis_scripts, name.upper()): name for name in WRITES}
        write = lambda: super(Killing, self)._answer(script, *values)
        return self.killing(names.get(script), write)


def opened():
    if STORE.startswith("unix:"):
        prefix = os.path.basename(os.getcwd())
        return KillingRedis(STORE, prefix=prefix, lease_seconds=0.3, deadline=60)
    return KillingSQLite("flows.db", power_safe=STORE == "safe")


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
    async with opened() as checkpointer:
        flow = Flow(graph, checkpointer=checkpointer, executor=executor)
        if await checkpointer.read("t") is None:
            result = await flow.run({}, "t")
        else:
            while True:
                try:
                    result = await flow.resume("t")
                    break
                except ThreadBusyError:
                    # The lease of the process that was killed has not ended.
                    await anyio.sleep(0.05)
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
    at += int(EVERY)
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
pytestmark = pytest.mark.timeout(600)
IN_NO_CALL = {"create", "claim", "commit", "release", "put_once"}


def rounds(folder: Path, *options: str) -> list[dict[str, Any]]:
    """Kill the victim at its first write, its second, ...; return what came of it."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", VICTIM, str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(found: Sequence[dict[str, Any]]) -> None:
    """Check what came of a victim that was killed at some of its writes."""
    for victim in found:
        assert victim["codes"][-1] == 0, victim
        status, log, history = victim["done"]
        assert (status, log) == ("done", LOG), victim
        assert sorted(victim["effects"]) == EFFECTS, victim
        assert history == [str(n) for n in range(len(history) - 1, -1, -1)], victim
        assert victim["left"] == [], victim
        if set(victim["killed"]) <= IN_NO_CALL:
            assert victim["doubts"] == [], victim


@pytest.mark.parametrize(
    ("moment", "times", "store"),
    [
        ("before", "once", "quick"),
        ("after", "twice", "quick"),
        pytest.param("after", "once", "safe", marks=pytest.mark.full),
        pytest.param("before", "twice", "safe", marks=pytest.mark.full),
    ],
)
def test_a_kill_at_any_write_loses_nothing_and_repeats_nothing(
    moment: str, times: str, store: str, tmp_path: Path
) -> None:
    found = rounds(tmp_path, moment, times, store, "1")

    check(found)
    # How many records share a write is a matter of time.
    assert len(found) > 20
    assert {name for each in found for name in each["killed"]} >= {"append", "commit"}
    assert any(each["doubts"] for each in found)


@pytest.mark.parametrize(
    ("moment", "times", "every"),
    [
        ("before", "twice", 7),
        ("after", "once", 6),
        pytest.param("before", "once", 1, marks=pytest.mark.full),
        pytest.param("after", "twice", 1, marks=pytest.mark.full),
    ],
)
def test_a_kill_at_a_write_to_redis_loses_nothing_and_repeats_nothing(
    moment: str, times: str, every: int, tmp_path: Path
) -> None:
    server = RedisServer(tmp_path, keeps=False)
    server.start()
    try:
        found = rounds(tmp_path, moment, times, server.url, f"{every}")
    finally:
        server.kill()

    check(found)
    assert len(found) > 20 // every
