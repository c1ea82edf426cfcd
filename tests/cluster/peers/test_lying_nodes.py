"""A node that lies: its driver believes nothing that cannot be, and goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.cluster import ClusterSandbox, FixedNodes
from toolcell.cluster.driver.session import ClusterSession
from toolcell.cluster.node.agent import NodeAgent
from toolcell.cluster.wire.link import Exchange, Kind
from toolcell.cluster.wire.message import WireMessage
from toolcell.core import CellLostError
from toolcell.sandbox import HostCalls

from ...support.cells.gates import Gate
from ...support.cluster.lying_nodes import OPENED, Lie, ends_with, lying_node
from ...support.cluster.null_nodes import TOKEN, driver, null_node
from ...support.cluster.patience import LONG, refusal
from ...support.polling import until

pytestmark = pytest.mark.anyio
EMPTY = (b"", b"")
OK = {"status": "ok"}
Lying = Callable[[Lie], Any]


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Lying:
    """Return what opens a driver of a node that lies, and proves that it is dropped."""

    @asynccontextmanager
    async def opened(lie: Lie) -> AsyncIterator[ClusterSandbox]:
        async with lying_node(monkeypatch, lie) as record, driver(record) as sandbox:
            with anyio.fail_after(60):
                with pytest.raises(CellLostError) as caught:
                    yield sandbox
                assert caught.value.details == {"reason": "node_lost", "node": "liar"}
                assert "it broke the protocol" in caught.value.message
                await until(lambda: sandbox.nodes == ())
            assert sandbox.active_cells == 0

    return opened


RESULTS: dict[str, tuple[dict[str, Any], tuple[bytes, ...]]] = {
    "nothing": ({}, EMPTY),
    "a list": ({"result": [OK]}, EMPTY),
    "another status": ({"result": {"status": "fine"}}, EMPTY),
    "no status": ({"result": {}}, EMPTY),
    "one more field": ({"result": {**OK, "node": "x"}}, EMPTY),
    "no output": ({"result": OK}, ()),
    "one more output": ({"result": OK}, (b"", b"", b"")),
    "texts of numbers": ({"result": OK, "texts": [1, 2]}, EMPTY),
    "too few texts": ({"result": OK, "texts": ["a"]}, EMPTY),
    "an artifact without data": (
        {"result": {**OK, "artifacts": [{"name": "a", "mime": "a/b"}]}},
        EMPTY,
    ),
    "an artifact of another size": (
        {
            "result": {
                **OK,
                "artifacts": [{"name": "a", "mime": "a/b", "size": 9, "sha256": ""}],
            }
        },
        (*EMPTY, b"a"),
    ),
    **{
        f"negative {name}": ({"result": {**OK, "usage": {name: -1}}}, EMPTY)
        for name in (
            "wall_ms",
            "cpu_ms",
            "peak_memory_bytes",
            "connections",
            "network_bytes",
        )
    },
}


@pytest.mark.parametrize("told", RESULTS.values(), ids=RESULTS)
async def test_a_result_that_cannot_be_is_none(
    lying: Lying, told: tuple[dict[str, Any], tuple[bytes, ...]]
) -> None:
    fields, blobs = told
    async with lying(ends_with(fields, *blobs)) as sandbox:
        await sandbox.run("1")


@pytest.mark.parametrize("last", [Kind.END, Kind.DATA])
async def test_a_stream_ends_with_its_result_alone(lying: Lying, last: Kind) -> None:
    async def lie(exchange: Exchange, _: WireMessage) -> None:
        if last is Kind.END:
            exchange.finish(Kind.END, {"event": "stdout"}, b"no result")
        await exchange.send({"event": "finished", "result": OK}, *EMPTY)
        await anyio.sleep_forever()

    async with lying(lie) as sandbox:
        async for _ in sandbox.stream("1"):
            pass


ACT = {
    "name": "net.connect",
    "arguments": {"host": "a.example.test", "port": 443},
    "has_body": False,
}
HEARD: dict[str, list[tuple[dict[str, Any], tuple[bytes, ...]]]] = {
    "another stream": [({"output": "log"}, (b"x",))],
    "output without bytes": [({"output": "stdout"}, ())],
    "no connection": [({"connection": {"host": 5}}, ())],
    "no display": [({"display": []}, ())],
    "a call of something else": [
        ({"call": 1, "name": "b", "args": [], "kwargs": {}}, ())
    ],
    "a call without a name": [({"call": 1, "args": [], "kwargs": {}}, ())],
    "arguments of a number": [({"call": 1, "name": "a", "args": 1, "kwargs": {}}, ())],
    "too many calls": [
        ({"call": n, "name": "a", "args": [], "kwargs": {}}, ()) for n in range(4)
    ],
    "too many calls at once": [
        ({"call": n, "name": "a", "args": ["wait"], "kwargs": {}}, ()) for n in range(3)
    ],
    "another act": [({**ACT, "act": 1, "name": "files.commit"}, ())],
    "an act without its facts": [({**ACT, "act": 1, "arguments": None}, ())],
    "an act twice": [({**ACT, "act": 1}, ())] * 2,
    "another reason": [({**ACT, "act": 1, "unplaced": ["why", "not"]}, ())],
    "an end of no number": [({"ended": [], "outcome": {}}, ())],
    "too much about an act": [
        ({**ACT, "act": 1, "arguments": {"host": "a" * 300_000, "port": 1}}, ())
    ],
}


@pytest.mark.parametrize("told", HEARD.values(), ids=HEARD)
async def test_what_a_run_cannot_say_ends_the_link(
    lying: Lying, told: list[tuple[dict[str, Any], tuple[bytes, ...]]]
) -> None:
    made: list[str] = []

    async def handler(name: str, args: list[Any], _: dict[str, Any]) -> dict[str, Any]:
        made.append(name)
        if args:
            await anyio.sleep_forever()
        return {"value": 1}

    async def lie(exchange: Exchange, _: WireMessage) -> None:
        for fields, blobs in told:
            await exchange.send(fields, *blobs)
            if "call" in fields and not fields.get("args"):
                await exchange.receive()
        await anyio.sleep_forever()

    calls = HostCalls(names=("a",), handler=handler, max_calls=3, max_concurrency=2)
    async with lying(lie) as sandbox:
        await sandbox.run(
            "1",
            calls=calls,
            gate=Gate(),
            on_output=lambda *_: None,
            on_display=lambda *_: None,
            on_connection=lambda *_: None,
        )
    assert set(made) <= {"a"}
    assert len(made) <= 3


@pytest.mark.parametrize("odd", ["another act", "an act twice", "another stream"])
async def test_what_a_stream_cannot_say_ends_the_link(lying: Lying, odd: str) -> None:
    async def lie(exchange: Exchange, _: WireMessage) -> None:
        for fields, blobs in HEARD[odd]:
            await exchange.send(fields, *blobs)
        await anyio.sleep_forever()

    async with lying(lie) as sandbox:
        async for _ in sandbox.stream("1", gate=Gate()):
            pass


@pytest.mark.parametrize("last", [Kind.END, Kind.DATA])
async def test_an_act_is_no_end_of_a_stream_and_needs_a_gate(
    lying: Lying, last: Kind
) -> None:
    async def lie(exchange: Exchange, _: WireMessage) -> None:
        if last is Kind.END:
            exchange.finish(Kind.END, {**ACT, "act": 1})
        await exchange.send({**ACT, "act": 1})
        await anyio.sleep_forever()

    gate = Gate() if last is Kind.END else None
    async with lying(lie) as sandbox:
        async for _ in sandbox.stream("1", gate=gate):
            pass


async def test_the_end_of_a_failed_stream_says_if_its_session_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(Gate):
        async def look(self) -> None:
            raise LookupError("broken")

    async def lie(exchange: Exchange, message: WireMessage) -> None:
        if message.fields["op"] == "session":
            exchange.send_soon(OPENED)
            await anyio.sleep_forever()
        await exchange.send({**ACT, "act": 1})
        await exchange.receive()
        ended = {"event": "finished", "result": OK, "alive": False}
        exchange.finish(Kind.END, ended, *EMPTY)

    async with lying_node(monkeypatch, lie) as record, driver(record) as sandbox:
        async with sandbox.session() as session:
            with anyio.fail_after(60), pytest.raises(LookupError):
                async for _ in session.stream("1", gate=Broken()):
                    pass
            assert not session.alive


Use = Callable[[ClusterSession, Path], Awaitable[object]]


async def _waits(session: ClusterSession, _: Path) -> object:
    return await (await session.exec("ls")).wait()


async def _reads(session: ClusterSession, _: Path) -> object:
    return [each async for each in (await session.exec("ls")).output()]


USES: dict[str, tuple[Use, list[dict[str, Any]]]] = {
    "run": (lambda s, _: s.run("1"), [{}, {"result": {"status": "fine"}}]),
    "usage": (lambda s, _: s.usage(), [{}, {"usage": {"cpu_ms": 1}}]),
    "checkpoint": (lambda s, _: s.checkpoint(), [{}]),
    "read_file": (lambda s, _: s.read_file("a"), [{}]),
    "list_files": (lambda s, _: s.list_files(), [{}, {"files": 5}, {"files": [{}]}]),
    "fork": (lambda s, _: s.fork(), [{}, {**OPENED, "session": "x"}]),
    "context": (
        lambda s, _: s.context(),
        [{**OPENED, "limits": {"pids": -1}}, {**OPENED, "network": {"mode": "all"}}],
    ),
    "exec": (lambda s, _: s.exec("ls"), [{}, {"process": "x", "pid": 1, "argv": []}]),
    "wait": (_waits, [{"process": 1, "pid": 1, "argv": []}]),
    "output": (_reads, [{"process": 1, "pid": 1, "argv": []}]),
    "connect": (lambda s, _: s.connect(8000), [{}]),
    "watch": (lambda s, _: s.watch(), [{}]),
    "save": (lambda s, folder: s.save(folder / "a"), [{}]),
    "load": (lambda s, folder: s.load(folder / "source"), [{}]),
}


@pytest.mark.parametrize(
    ("use", "told"),
    [(use, told) for use, tolds in USES.values() for told in tolds],
    ids=[f"{name}-{n}" for name, (_, all_) in USES.items() for n in range(len(all_))],
)
async def test_what_a_session_cannot_say_ends_the_link(
    lying: Lying, tmp_path: Path, use: Use, told: dict[str, Any]
) -> None:
    (tmp_path / "source").write_bytes(b"an archive")
    async with lying(ends_with(told)) as sandbox:
        async with sandbox.session() as session:
            await use(session, tmp_path)


@pytest.mark.parametrize(
    "about",
    [{}, {**OPENED, "session": None}, {**OPENED, "limits": {"cpus": "many"}}],
    ids=["nothing", "no number", "no limits"],
)
async def test_a_session_that_cannot_be_is_not_opened(
    lying: Lying, about: dict[str, Any]
) -> None:
    async def lie(exchange: Exchange, _: WireMessage) -> None:
        await exchange.send(about)
        await anyio.sleep_forever()

    async with lying(lie) as sandbox:
        async with sandbox.session():
            pytest.fail("it was opened")


@pytest.mark.parametrize(
    "told",
    [
        {"credit": -1},
        {"credit": 0.5},
        {"credit": 10**30},
        {"slots": -4},
        {"rules": {"limits": {"cpus": "many"}}},
        {"packages": 5},
        {"protocol": None},
    ],
    ids=str,
)
async def test_a_greeting_that_cannot_be_makes_no_node(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]
) -> None:
    about = NodeAgent.about

    def lie(agent: NodeAgent) -> dict[str, Any]:
        return {**about(agent), **told}

    async with null_node("liar", 4) as (_, record):
        monkeypatch.setattr(NodeAgent, "about", lie)
        if "credit" in told:
            monkeypatch.setattr(NodeAgent, "_now", lambda _: told)
        sandbox = ClusterSandbox(FixedNodes([record]), token=TOKEN, wait_seconds=LONG)
        error = await refusal(sandbox)
    assert error.details["reason"] == "no_nodes"
