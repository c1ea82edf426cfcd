"""Several processes and one thread: one of them runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import ThreadBusyError
from toolcell.flow import START, Flow, Graph, SQLiteCheckpointer, interrupt

from ...support.child import Child

pytestmark = pytest.mark.anyio
ROUNDS = 200
PROGRAM = """
import os, sys
import anyio
from anyio.to_thread import run_sync
from pydantic import BaseModel
from toolcell.core import InvalidInputError, LeaseLostError, ThreadBusyError
from toolcell.flow import (
    START, Flow, Graph, NodeContext, SQLiteCheckpointer, StoredThreads, interrupt
)
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

class State(BaseModel):
    by: str = ""

@tool
async def hang() -> None:
    "Hang."
    print("inside", flush=True)
    await anyio.sleep_forever()

graph = Graph(State, name="shared")

@graph.node
async def slow(state: State):
    print("inside", flush=True)
    await run_sync(sys.stdin.readline)
    return {"by": "owner"}

@graph.node
def ask(state: State):
    return {"by": interrupt("who?")}

@graph.node
async def call(state: State, ctx: NodeContext):
    await ctx.call("hang")

graph.edge(START, "ask" if sys.argv[2] == "rounds" else sys.argv[2])

async def answer_all(store):
    threads = StoredThreads(store)
    print("ready", flush=True)
    await run_sync(sys.stdin.readline)
    for number in range(ROUNDS):
        try:
            await threads.answer(f"t{number}", None, os.getpid(), by=str(os.getpid()))
            print("won", flush=True)
        except InvalidInputError as error:
            print(error.details.get("by", error.message), flush=True)

async def main():
    async with SQLiteCheckpointer(sys.argv[1], busy_seconds=60) as store:
        executor = ConcurrentExecutor(ToolRegistry([hang]), guard=None)
        flow = Flow(graph, checkpointer=store, executor=executor)
        try:
            if sys.argv[2] == "rounds":
                return await answer_all(store)
            if sys.argv[2] == "call":
                print((await flow.run({}, "t")).status)
                return
            if sys.argv[2] == "slow":
                print((await flow.run({}, "t")).unwrap().by)
                return
            [state] = await flow.interrupts("t")
            print("ready", flush=True)
            await run_sync(sys.stdin.readline)
            answers = {state.interrupt.interrupt_id: str(os.getpid())}
            print((await flow.resume("t", answers)).unwrap().by)
        except (InvalidInputError, LeaseLostError, ThreadBusyError) as error:
            print(type(error).__name__)

anyio.run(main)
""".replace("ROUNDS", str(ROUNDS))


class State(BaseModel):
    by: str = ""


def shared(first: str) -> Graph[State]:
    graph = Graph(State, name="shared")

    @graph.node
    async def slow(state: State) -> dict[str, str]:
        return {"by": "thief"}

    @graph.node
    def ask(state: State) -> dict[str, str]:
        return {"by": str(interrupt("who?"))}

    @graph.node
    async def call(state: State) -> None: ...

    return graph.edge(START, first)


@contextmanager
def process(path: Path, first: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-c", PROGRAM, str(path), first]
    pipe = subprocess.PIPE
    with Child(command, stdin=pipe, stdout=pipe, text=True) as started:
        yield started


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


async def test_an_owner_that_thaws_after_a_theft_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    with process(path, "slow") as owner:
        assert line(owner) == "inside"
        owner.send_signal(signal.SIGSTOP)
        async with SQLiteCheckpointer(path, busy_seconds=60) as store:
            flow = Flow(shared("slow"), checkpointer=store)
            with pytest.raises(ThreadBusyError):
                await flow.resume("t")
            stolen = await flow.resume("t", steal=True)
            assert stolen.unwrap().by == "thief"
            before = await store.read("t")
            owner.send_signal(signal.SIGCONT)
            said, _ = owner.communicate("\n")

            assert said.strip() == "LeaseLostError"
            assert await store.read("t") == before


@pytest.mark.promise("flow-27")
async def test_of_processes_that_answer_at_once_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with SQLiteCheckpointer(path, busy_seconds=60) as store:
        flow = Flow(shared("ask"), checkpointer=store)
        await flow.run({}, "t")
        with process(path, "ask") as one, process(path, "ask") as two:
            assert [line(one), line(two)] == ["ready", "ready"]
            for owner in (one, two):
                assert owner.stdin is not None
                owner.stdin.write("\n")
                owner.stdin.flush()
            said = {str(each.pid): each.communicate()[0].strip() for each in (one, two)}
        state = await flow.state("t")

    assert state.by in said
    refused = said.pop(next(pid for pid, text in said.items() if text != state.by))
    assert refused in ("InvalidInputError", "ThreadBusyError")
    assert list(said.values()) == [state.by]


@pytest.mark.promise("flow-27")
async def test_each_of_many_questions_has_one_answer_of_two_processes(
    tmp_path: Path,
) -> None:
    """The other one is told who was first."""
    path = tmp_path / "t.db"
    async with SQLiteCheckpointer(path, power_safe=False, busy_seconds=60) as store:
        flow = Flow(shared("ask"), checkpointer=store)
        for number in range(ROUNDS):
            await flow.run({}, f"t{number}")
        with process(path, "rounds") as one, process(path, "rounds") as two:
            assert [line(one), line(two)] == ["ready", "ready"]
            for owner in (one, two):
                assert owner.stdin is not None
                owner.stdin.write("\n")
                owner.stdin.flush()
            said = [each.communicate()[0].split("\n")[:-1] for each in (one, two)]
            pids = [str(one.pid), str(two.pid)]
        for number in range(ROUNDS):
            first, second = said[0][number], said[1][number]
            assert (first, second) in [("won", pids[0]), (pids[1], "won")], number
            winner = pids[0] if first == "won" else pids[1]
            [kept] = await store.answers(f"t{number}")
            assert f'"value":{winner}'.encode() in kept


@pytest.mark.promise("flow-43")
async def test_a_process_ends_the_thread_of_another_in_the_midst_of_a_call(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.db"
    with process(path, "call") as owner:
        assert line(owner) == "inside"
        async with SQLiteCheckpointer(path, busy_seconds=60) as store:
            flow = Flow(shared("call"), checkpointer=store)
            await flow.cancel("t", by="anna", wait_seconds=60)
            said, _ = owner.communicate("\n")
            assert said.strip() == "cancelled"
            assert (await flow.resume("t")).status == "cancelled"


async def test_who_is_first_does_not_matter_within_a_process(tmp_path: Path) -> None:
    async with SQLiteCheckpointer(tmp_path / "t.db", power_safe=False) as store:
        flow = Flow(shared("ask"), checkpointer=store)
        [question] = (await flow.run({}, "t")).interrupts
        ended: list[str] = []

        async def resume(answer: str) -> None:
            try:
                done = await flow.resume("t", {question.interrupt_id: answer})
            except ThreadBusyError:
                ended.append("busy")
            else:
                ended.append(done.unwrap().by)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(resume, f"n{number}")

        assert sorted(ended)[:4] == ["busy"] * 4
        assert (await flow.state("t")).by == sorted(ended)[4]
