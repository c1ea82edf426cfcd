"""Runs, streams, sessions and calls on nodes in processes of their own."""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from toolcell.cluster import ClusterSandbox
from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import (
    Finished,
    HostCalls,
    Limits,
    Sandbox,
    SandboxSession,
    Stdout,
)
from toolcell.sandbox.spi import pause_deadline

from ..support.cells.leak_check import at_rest
from ..support.cluster.patience import givers
from ..support.cluster.processes import ClusterProcesses, NodeProcess
from ..support.guard.redis_server import RedisServer
from ..support.polling import until
from ..support.process_tree import below, resident_bytes

pytestmark = pytest.mark.anyio
MARKER = "marker-7d1c55f0"


@pytest.mark.promise("cluster-02")
async def test_a_run_has_the_result_of_one_machine(cluster: ClusterSandbox) -> None:
    code = """
import os, sys
print('out', sys.argv[1], sys.stdin.read())
print('err', file=sys.stderr)
os.makedirs('artifacts')
open('artifacts/a.bin', 'wb').write(b'\\x00\\xff')
{'type': 'a', 'repr': open('in.txt').read(), 'big': 10 ** 40, 'x': x}
"""
    result = await cluster.run(
        code,
        inputs={"x": [1, None, "ä"]},
        files={"in.txt": "text"},
        argv=["program", "first"],
        stdin=b"typed",
    )

    assert result.status == "ok", result.stderr
    assert result.value == {
        "type": "a",
        "repr": "text",
        "big": 10**40,
        "x": [1, None, "ä"],
    }
    assert (result.stdout, result.stderr) == ("out first typed\n", "err\n")
    [artifact] = result.artifacts
    assert (artifact.name, artifact.data) == ("a.bin", b"\x00\xff")
    assert result.isolation is not None
    assert result.isolation.level == "namespaces"


@pytest.mark.promise("cluster-02", "cluster-37")
@pytest.mark.parametrize("size", [5, pytest.param(100, marks=pytest.mark.full)])
async def test_large_data_comes_whole(cluster: ClusterSandbox, size: int) -> None:
    data = bytes(range(250)) * 4_000 * size
    async with cluster.session() as session:
        await session.write_file("large", data)
        assert await session.read_file("large") == data


async def test_displays_are_told_among_the_output(cluster: ClusterSandbox) -> None:
    told: list[str] = []
    result = await cluster.run(
        "print('a')\ndisplay('first')\nprint('b')\n",
        on_output=lambda _, data: told.append(data.decode()),
        on_display=lambda output: told.append(output.text() or ""),
    )

    assert told == ["a\n", "'first'", "b\n"]
    assert [each.text() for each in result.outputs] == ["'first'"]


@pytest.mark.promise("cluster-39")
async def test_a_stream_waits_for_its_reader(cluster: ClusterSandbox) -> None:
    code = "for i in range(3): print(i, flush=True); input_or = open('/dev/null')"
    found = [event async for event in cluster.stream(code)]

    told = b"".join(each.data for each in found if isinstance(each, Stdout))
    assert told == b"0\n1\n2\n"
    assert isinstance(found[-1], Finished)
    assert found[-1].result.ok


@pytest.mark.promise("cluster-39")
async def test_a_slow_reader_holds_the_program_up_and_fills_no_memory(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    size, bound = 64 << 20, 12 << 20
    code = f"import os\nfor _ in range({size} >> 16): os.write(1, bytes(1 << 16))"
    processes = ClusterProcesses(redis_server.url, tmp_path)
    directory = processes.directory()
    try:
        wide = processes.node("wide", limits={"output_bytes": 2 * size})
        ends = [os.getpid(), wide.process.pid]
        async with (
            ClusterSandbox(directory, token=processes.token) as sandbox,
            sandbox.session() as session,
        ):
            await session.run("1", limits=Limits(output_bytes=1024))
            before = most = [resident_bytes(end) for end in ends]
            total = 0
            async with aclosing(session.stream(code)) as events:
                async for event in events:
                    if not isinstance(event, Stdout):
                        continue
                    total += len(event.data)
                    if total >> 22 != (total - len(event.data)) >> 22:
                        # The reader is slow: the program could write all of it.
                        await anyio.sleep(0.1)
                        now = [resident_bytes(end) for end in ends]
                        most = [max(pair) for pair in zip(most, now, strict=True)]
    finally:
        directory.close()
        processes.end()

    assert total == size
    grown = [then - first for then, first in zip(most, before, strict=True)]
    assert max(grown) < bound, grown


@pytest.mark.promise("cluster-03", "cluster-20")
async def test_sessions_spread_and_stay(cluster: ClusterSandbox) -> None:
    assert isinstance(cluster, Sandbox)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(cluster.session()) for _ in range(4)
        ]
        where = [session.node for session in sessions]
        assert sorted(where) == ["one", "one", "two", "two"]
        for number, session in enumerate(sessions):
            assert isinstance(session, SandboxSession)
            await session.run(f"x = {number}")
        for _ in range(5):
            for session in sessions:
                await session.run("x += 10")
        values = [(await session.run("x")).value for session in sessions]
        assert values == [50, 51, 52, 53]
        fork = await sessions[0].fork()
        assert (await fork.run("x")).value == 50
        assert [session.node for session in sessions] == where
    with pytest.raises(CellLostError):
        await sessions[0].run("x")


@pytest.mark.promise("cluster-20")
@pytest.mark.full
async def test_fifty_sessions_keep_to_themselves(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    processes = ClusterProcesses(redis_server.url, tmp_path)
    names = [f"n{number}" for number in range(4)]
    directory = processes.directory()
    try:
        for name in names:
            processes.node(name, max_concurrency=13)
        async with (
            ClusterSandbox(directory, token=processes.token) as sandbox,
            AsyncExitStack() as stack,
        ):
            await until(lambda: {*names} == givers(sandbox))
            sessions = [
                await stack.enter_async_context(sandbox.session()) for _ in range(50)
            ]
            where = [session.node for session in sessions]
            assert {where.count(name) for name in names} == {12, 13}

            async def steps(number: int) -> None:
                session = sessions[number]
                await session.run(f"import os\nx, pid = {number}, os.getpid()")
                for step in range(1, 20):
                    found = await session.run("x += 100; [x, os.getpid() == pid]")
                    assert found.value == [number + 100 * step, True]

            async with anyio.create_task_group() as tasks:
                for number in range(50):
                    tasks.start_soon(steps, number)
            assert [session.node for session in sessions] == where
    finally:
        directory.close()
        processes.end()


@pytest.mark.promise("cluster-30")
async def test_calls_come_back_to_the_caller(cluster: ClusterSandbox) -> None:
    seen: list[Any] = []

    async def answer(name: str, args: list[Any], options: dict[str, Any]) -> Any:
        seen.append((name, args, options))
        return {"value": sum(args)} if args else {"value": object()}

    calls = HostCalls(names=("add",), handler=answer)
    code = """
found = [tools.add(1, 2)]
try: tools.add()
except Exception as error: found.append(str(error))
found
"""
    result = await cluster.run(code, calls=calls)

    assert result.value == [3, "the result is not JSON"], result.stderr
    assert seen == [("add", [1, 2], {}), ("add", [], {})]


async def test_an_error_of_the_handler_is_the_caller_s(cluster: ClusterSandbox) -> None:
    async def fail(*_: Any) -> Any:
        raise ZeroDivisionError("mine")

    calls = HostCalls(names=("add",), handler=fail)
    with pytest.raises(ZeroDivisionError, match="mine"):
        await cluster.run("tools.add()", calls=calls)
    assert cluster.active_cells == 0


@pytest.mark.promise("cluster-31")
async def test_a_person_who_is_asked_stops_the_clock_of_the_node(
    cluster: ClusterSandbox,
) -> None:
    async def ask(*_: Any) -> Any:
        async with pause_deadline():
            await anyio.sleep(5)
        return {"value": "asked"}

    paused = HostCalls(names=("ask",), handler=ask, max_pause_seconds=60)
    limits = Limits(wall_seconds=4)
    result = await cluster.run("tools.ask()", calls=paused, limits=limits)
    assert (result.status, result.value) == ("ok", "asked")

    unpaused = HostCalls(names=("ask",), handler=ask)
    short = Limits(wall_seconds=0.8)
    result = await cluster.run("tools.ask()", calls=unpaused, limits=short)
    assert result.status == "timeout"


async def test_cancelling_reaches_the_program(
    cluster: ClusterSandbox, nodes: dict[str, NodeProcess]
) -> None:
    pids = [node.process.pid for node in nodes.values()]
    idle = sum([(await at_rest(pid)).processes for pid in pids])
    started = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await cluster.run(
                "print(1, flush=True)\nwhile True: pass",
                on_output=lambda *_: started.set(),
            )

        tasks.start_soon(run)
        await started.wait()
        assert len(below(*pids)) > idle
        tasks.cancel_scope.cancel()

    assert cluster.active_cells == 0
    # Long before the program's own limit would end it.
    await until(lambda: len(below(*pids)) == idle)


async def test_a_batch_uses_all_nodes(cluster: ClusterSandbox) -> None:
    async with cluster.map([f"{n} + 1" for n in range(20)]) as results:
        found = [result.result async for result in results]

    assert [result and result.value for result in found] == [*range(1, 21)]
    assert cluster.config.max_concurrency == 8


async def test_commands_run_on_the_node(cluster: ClusterSandbox) -> None:
    async with cluster.session() as session:
        process = await session.exec(["cat"], stdin="pipe")
        assert session.processes() == (process,)
        await process.write(b"through")
        await process.close_stdin()
        assert [piece async for piece in process.output()] == [("stdout", b"through")]
        assert (await process.wait()).status == "ok"
        assert session.processes() == ()
        with pytest.raises(InvalidInputError) as caught:
            await session.exec(["no-such-program"])
        assert caught.value.details["reason"] == "missing"


@pytest.mark.promise("cluster-43")
async def test_a_bad_argument_is_refused_as_on_one_machine(
    cluster: ClusterSandbox,
) -> None:
    wrong: list[dict[str, Any]] = [
        {"code": 5},
        {"code": "1", "inputs": {"a": {1}}},
        {"code": "1", "inputs": {"a": "\ud800"}},
        {"code": "1", "language": "cobol"},
        {"code": "1", "limits": {"wall_seconds": 1}},
        {"code": "1", "limits": Limits(wall_seconds=10_000)},
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInputError):
            await cluster.run(**arguments)
    assert (await cluster.run("1")).value == 1


@pytest.mark.promise("cluster-32")
async def test_what_a_run_is_given_is_found_nowhere(
    cluster: ClusterSandbox,
    nodes: dict[str, NodeProcess],
    processes: ClusterProcesses,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    code = f"import os\n[len(os.environ['KEY']), '{MARKER}'[:6], len(x)]"
    result = await cluster.run(
        code, inputs={"x": MARKER}, secrets={"KEY": SecretStr(MARKER)}
    )
    assert result.value == [len(MARKER), "marker", len(MARKER)]
    with pytest.raises(InvalidInputError):
        await cluster.run("1", limits=Limits(wall_seconds=9_999), inputs={"x": MARKER})

    with redis_server.client() as client:
        stored = b"".join(client.dump(key) for key in client.keys("*"))
    logs = caplog.text + "".join(node.log.read_text() for node in nodes.values())
    assert b"fingerprint" in stored
    for secret in (MARKER, processes.token):
        assert secret.encode() not in stored
        assert secret not in logs
