"""Programs in JavaScript call the host, within the same bounds as those in Python."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolcell.sandbox import ExecutionResult, HostCalls, Limits, Sandbox, SandboxManager

from ...conftest import BackendRow
from ...support.cells.node_cells import options
from ...support.cluster.local import local_cluster

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def sandbox(backend: BackendRow) -> AsyncIterator[Sandbox]:
    """A sandbox whose cells have node, and serve several programs."""
    config = backend.config(
        limits=Limits(wall_seconds=60), programs_per_cell=10, **options(backend)
    )
    if backend.on_nodes:
        async with local_cluster(config) as cluster:
            yield cluster
    else:
        async with SandboxManager(config) as manager:
            yield manager


# More calls, or larger ones, than the cell and its socket take before an answer comes.
BEYOND = [
    pytest.param(40, 100_000, {}, id="many"),
    pytest.param(6, 300_000, {"max_concurrency": 1}, id="large"),
]


class Host:
    """Answers calls, and remembers them."""

    def __init__(self, **bounds: Any) -> None:
        self.seen: list[tuple[str, list[Any], dict[str, Any]]] = []
        self.at_work = self.most = 0
        names = ("add", "fail", "hang", "big")
        self.calls = HostCalls(names=names, handler=self._answer, **bounds)

    async def _answer(
        self, name: str, arguments: list[Any], named: dict[str, Any]
    ) -> dict[str, Any]:
        self.seen.append((name, arguments, named))
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await anyio.sleep(0)
            if name == "fail":
                return {
                    "error": {
                        "code": "denied",
                        "message": "not today",
                        "retry_after": 7,
                    }
                }
            if name == "hang":
                await anyio.sleep_forever()
            if name == "big":
                return {"value": "é" * 2_000_000}
            return {"value": sum(arguments) + sum(named.values())}
        finally:
            self.at_work -= 1


async def js(place: Any, code: str, host: Host, **more: Any) -> ExecutionResult:
    result: ExecutionResult = await place.run(
        code, language="node", calls=host.calls, **more
    )
    return result


async def test_a_program_calls_by_position_and_by_name(sandbox: Sandbox) -> None:
    host = Host()
    code = "await tools.add(1, await tools.add({a: 2, b: 3}))"
    result = await js(sandbox, code, host)

    assert result.value == 6, result.stderr
    assert host.seen == [("add", [], {"a": 2, "b": 3}), ("add", [1, 5], {})]


async def test_several_calls_wait_at_once_within_the_bounds(sandbox: Sandbox) -> None:
    host = Host(max_calls=20, max_concurrency=2)
    code = (
        "const calls = [...Array(21).keys()].map(i => tools.add(i))\n"
        "const said = await Promise.allSettled(calls)\n"
        "said.map(each => each.value ?? each.reason.code)"
    )
    result = await js(sandbox, code, host)

    assert result.value == [*range(20), "too_many"], result.stderr
    assert len(host.seen) == 20
    assert host.most <= 2


async def test_a_refusal_is_an_error_of_the_program(sandbox: Sandbox) -> None:
    caught = "let said\ntry { await tools.fail() } catch (e) {\n said = "
    caught += "[e instanceof ToolError, e.kind, e.code, e.retry_after] }\nsaid"
    result = await js(sandbox, caught, Host())
    uncaught = await js(sandbox, "await tools.fail()", Host())

    assert result.value == [True, "denied", "denied", 7], result.stderr
    assert uncaught.exception is not None
    assert (uncaught.exception.type, uncaught.exception.message) == (
        "ToolError",
        "not today",
    )


async def test_a_large_answer_comes_whole_and_large_arguments_are_refused(
    sandbox: Sandbox,
) -> None:
    code = (
        "const size = Buffer.byteLength(await tools.big())\nlet said\n"
        "try { await tools.add('x'.repeat(2 ** 20)) } catch (e) { said = e.code }\n"
        "const found = [size, said]\nfound"
    )
    host = Host()
    result = await js(sandbox, code, host)

    assert result.value == [4_000_000, "too_large"], result.stderr
    assert len(host.seen) == 1


async def test_an_open_call_keeps_a_program_alive_unless_it_exits(
    sandbox: Sandbox,
) -> None:
    awaited = await js(sandbox, "tools.add(1, 2).then(console.log)", Host())
    exits = "tools.hang(); setTimeout(() => process.exit(3), 9)"
    left = await js(sandbox, exits, Host())

    assert awaited.stdout == "3\n", awaited.stderr
    assert (left.status, left.exit_code) == ("exit", 3)


async def test_without_calls_there_are_no_tools(sandbox: Sandbox) -> None:
    result = await sandbox.run("[typeof tools, typeof ToolError]", language="node")

    assert result.value == ["undefined", "undefined"]


async def test_a_session_calls_and_goes_on_after_an_interrupted_call(
    sandbox: Sandbox,
) -> None:
    host = Host()
    async with sandbox.session() as session:
        first = await js(session, "x = await tools.add(20, 1)", host)
        short = Limits(wall_seconds=1)
        stuck = await js(session, "await tools.hang()", host, limits=short)
        last = await js(session, "await tools.add(x, x)", host)

    assert (first.value, last.value) == (21, 42), last.stderr
    assert (stuck.status, stuck.state) == ("timeout", "kept")
    assert host.at_work == 0


async def test_a_large_call_that_a_run_leaves_open_spares_the_next_run(
    sandbox: Sandbox,
) -> None:
    host = Host()
    async with sandbox.session() as session:
        left = await js(session, "tools.hang('x'.repeat(1e6)); 1", host)
        limits = Limits(wall_seconds=30)
        after = await js(session, "await tools.add(2, 3)", host, limits=limits)

    assert (left.value, after.value) == (1, 5), after.stderr


@pytest.mark.parametrize(("count", "size", "bounds"), BEYOND)
async def test_calls_past_those_that_are_read_do_not_hold_up_the_end_of_a_run(
    sandbox: Sandbox, count: int, size: int, bounds: dict[str, int]
) -> None:
    leaves = "for (let i = 0; i < count; i++) tools.hang('x'.repeat(size))\n1"
    given = {"count": count, "size": size}
    host = Host(**bounds)
    async with sandbox.session() as session:
        await js(session, "await tools.add(1)", Host())
        left = await js(session, leaves, host, inputs=given)
        after = await js(session, "await tools.add(2, 3)", Host())

    assert (left.status, left.value, left.state) == ("ok", 1, "kept"), left.stderr
    assert (after.status, after.value) == ("ok", 5), after.stderr


@pytest.mark.promise("E-84", "E-85")
async def test_tools_of_one_run_are_not_the_next_ones(sandbox: Sandbox) -> None:
    before, after = Host(), Host()
    late_call = "let said\ntry { await %s.add(1) } catch (e) { said = e.code }\nsaid"
    async with sandbox.session() as session:
        await js(session, "old = tools; old.hang(); 1", before)
        late = await js(session, late_call % "old", after)
        own = await js(session, "await tools.add(2, 3)", after)
        without = await session.run(late_call % "tools", language="node")

    assert (late.value, own.value) == ("gone", 5), late.stderr
    assert without.value == "gone"
    assert after.seen == [("add", [2, 3], {})]


@pytest.mark.promise("E-84", "E-85", "R60")
async def test_a_process_that_a_run_left_behind_does_not_speak_for_the_next(
    sandbox: Sandbox,
) -> None:
    speaker = (
        "until [ -e begun ]; do sleep 0.01; done;"
        ' text=\'{"name": "add", "args": [7], "kwargs": {}}\';'
        " printf '%08x%08x%s' ${#text} 1 \"$text\" >&4; touch spoken; sleep 600"
    )
    leaves = (
        "require('child_process').spawn('bash', ['-c', line],"
        " {stdio: ['ignore', 'ignore', 'inherit', 'ignore', 4]}); 1"
    )
    goes_on = (
        "fs = require('fs'); fs.writeFileSync('begun', '')\n"
        "while (!fs.existsSync('spoken')) await new Promise(r => setTimeout(r, 10))\n"
        "await tools.add(2, 3)"
    )
    host = Host()
    async with sandbox.session() as session:
        left = await js(session, leaves, host, inputs={"line": speaker})
        result = await js(session, goes_on, host)

    assert left.value == 1, left.stderr
    assert (result.value, result.state) == (5, "kept"), result.stderr
    assert host.seen == [("add", [2, 3], {})]
