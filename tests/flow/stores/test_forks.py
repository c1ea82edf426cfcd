"""A forked process leaves the checkpointer of its parent alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toolcell.flow import Flow, Graph, SQLiteCheckpointer

from ...support.child import Child
from ...support.flow.graphs import Log

PROGRAM = """
import os, signal, sys
import anyio
from toolcell.core import StoreUnavailableError
from toolcell.flow import SQLiteCheckpointer
from toolcell.flow import START, Flow, Graph
from pydantic import BaseModel

class Log(BaseModel):
    note: str = ""

graph = Graph(Log, name="g")
graph.node(lambda: {"note": "x"}, name="one")
graph.edge(START, "one")
store = SQLiteCheckpointer(sys.argv[1])

async def parent():
    await Flow(graph, checkpointer=store).run({}, "t")
    await store.claim("t")

async def child():
    try:
        await store.claim("t", steal=True)
    except StoreUnavailableError as error:
        print(error.hint, flush=True)
    await store.aclose()

anyio.run(parent)
if os.fork() == 0:
    anyio.run(child)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] == "die":
    sys.stdin.close()
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
anyio.run(store.read, "t")
anyio.run(store.aclose)
print("read and closed", flush=True)
"""
REFUSED = "open a SQLiteCheckpointer in each process\n"


def started(file: Path, how: str) -> subprocess.Popen[str]:
    return Child(
        [sys.executable, "-c", PROGRAM, str(file), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_forked_process_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    with started(tmp_path / "flows.db", "live") as process:
        told, _ = process.communicate(timeout=60)
    assert told == REFUSED + "read and closed\n"


@pytest.mark.anyio
async def test_a_parent_that_dies_is_seen_though_its_child_lives(
    tmp_path: Path,
) -> None:
    file = tmp_path / "flows.db"
    with started(file, "die") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == REFUSED
        assert process.wait(60) == -signal.SIGKILL
        async with SQLiteCheckpointer(file) as store:
            graph = Graph(Log, name="g")
            graph.node(lambda: None, name="one")
            graph.edge("__start__", "one")
            lease = await store.claim("t")
            await store.release(lease)
            assert await Flow(graph, checkpointer=store).threads()
        process.communicate(timeout=60)
