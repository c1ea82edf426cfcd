"""Programs in cells call the host, and only as far as the host allows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import ExecutionResult, HostCalls, Limits, SandboxManager
from toolcell.sandbox.client.host_calls import CallServer, answer_as_json
from toolcell.sandbox.network.run_clock import RunClock

pytestmark = pytest.mark.anyio


class Host:
    """Remembers what was called."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Any], dict[str, Any]]] = []
        self.at_work = self.most = 0

    async def answer(
        self, name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        self.seen.append((name, arguments, options))
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await anyio.sleep(0)
            if name == "fail":
                return {"error": {"code": "denied", "message": "not today"}}
            if name == "hang":
                await anyio.sleep_forever()
            if name == "object":
                return {"value": object()}
            return {"value": sum(arguments) + sum(options.values())}
        finally:
            self.at_work -= 1


NAMES = ("add", "fail", "hang", "object")


async def run(
    sandbox: SandboxManager, code: str, **options: Any
) -> tuple[ExecutionResult, Host]:
    host = Host()
    calls = HostCalls(names=NAMES, handler=host.answer, **options)
    return await sandbox.run(code, calls=calls), host


@pytest.mark.promise("cluster-01")
async def test_a_program_calls_the_host(sandbox: SandboxManager) -> None:
    result, host = await run(sandbox, "tools.add(1, b=tools.add(2, 3))")

    assert result.value == 6, result.stderr
    assert host.seen == [("add", [2, 3], {}), ("add", [1], {"b": 5})]


async def test_a_program_awaits_the_host(sandbox: SandboxManager) -> None:
    code = (
        "import asyncio\n"
        "async def main():\n"
        "    return await asyncio.gather(*[tools.add(i) for i in range(5)])\n"
        "asyncio.run(main())"
    )
    result, host = await run(sandbox, code)

    assert result.value == [0, 1, 2, 3, 4], result.stderr
    assert len(host.seen) == 5


async def test_a_refusal_is_an_exception_in_the_program(
    sandbox: SandboxManager,
) -> None:
    code = (
        "try:\n    tools.fail()\n"
        "except ToolError as e:\n    said = [e.code, str(e)]\nsaid"
    )
    result, _ = await run(sandbox, code)

    assert result.value == ["denied", "not today"]


@pytest.mark.promise("E-84", "E-85")
async def test_only_what_is_offered_can_be_called(sandbox: SandboxManager) -> None:
    plain = await sandbox.run("'tools' in globals()")
    forged, host = await run(
        sandbox,
        "from types import SimpleNamespace\n"
        "said = ''\ntry:\n    tools.add._bridge.call('secret', [], {})\n"
        "except ToolError as e: said = e.code\nsaid",
    )

    assert plain.value is False
    assert forged.value == "not_found"
    assert host.seen == []


async def test_calls_are_limited_in_number_and_concurrency(
    sandbox: SandboxManager,
) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def one(i):\n    try: return tools.add(i)\n"
        "    except ToolError as e: return e.code\n"
        "with ThreadPoolExecutor(6) as pool:\n"
        "    said = sorted(map(str, pool.map(one, range(6))))\n"
        "said"
    )
    result, host = await run(sandbox, code, max_calls=4, max_concurrency=2)

    assert isinstance(result.value, list), result.stderr
    assert result.value.count("too_many") == 2
    assert len(host.seen) == 4
    assert host.most <= 2


async def test_what_is_no_json_comes_back_as_an_error(sandbox: SandboxManager) -> None:
    code = "try:\n    tools.object()\nexcept ToolError as e:\n    said = e.code\nsaid"
    result, _ = await run(sandbox, code)

    assert result.value == "bad_result"


async def test_calls_and_answers_are_limited_in_size(
    sandbox: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.client.host_calls.MAX_ANSWER_BYTES", 1000)
    code = (
        "said = []\n"
        "for text in 'x' * 2**20, 'x' * 1000, 'x':\n"
        "    try: said.append(tools.echo(text))\n"
        "    except ToolError as e: said.append(e.code)\n"
        "said"
    )
    seen = []

    async def echo(
        name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        seen.append(len(arguments[0]))
        return {"value": arguments[0]}

    calls = HostCalls(names=("echo",), handler=echo)
    result = await sandbox.run(code, calls=calls)

    assert result.value == ["too_large", "bad_result", "x"], result.stderr
    assert seen == [1000, 1]


@pytest.mark.promise("E-84", "E-85", "E-86")
@pytest.mark.parametrize(
    "bytes_sent",
    [
        "b'zzzzzzzz'",
        "b'ffffffff'",
        "b'00000002[]'",
        "b'00000003{\\xff}'",
        "b'0' * 100000",
    ],
)
async def test_nonsense_on_the_bridge_harms_nobody(
    sandbox: SandboxManager, bytes_sent: str
) -> None:
    code = f"import os\nos.write(4, {bytes_sent})\n'on'"
    result, host = await run(sandbox, code)

    assert result.value == "on", result.stderr
    assert host.seen == []
    assert (await sandbox.run("1")).value == 1


async def test_the_end_of_a_run_ends_its_calls(sandbox: SandboxManager) -> None:
    code = (
        "import threading\nthreading.Thread(target=tools.hang, daemon=True).start()\n1"
    )
    result, host = await run(sandbox, code)

    assert result.value == 1
    assert host.at_work == 0


async def test_a_call_that_waits_for_room_does_not_begin_at_the_end_of_its_run() -> (
    None
):
    begun: list[str] = []

    async def answer(
        name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        begun.append(name)
        await anyio.sleep_forever()
        return {}

    async def send(header: dict[str, Any], payload: Any = b"") -> None:
        pytest.fail("no call was answered")

    calls = HostCalls(names=NAMES, handler=answer, max_concurrency=1)
    hangs = json.dumps({"name": "hang", "args": [], "kwargs": {}}).encode()
    async with CallServer(calls, send, RunClock(anyio.sleep, 0)) as server:
        server.serve(b"00000001" + hangs)
        await anyio.wait_all_tasks_blocked()
        server.serve(b"00000002" + hangs)

    assert begun == ["hang"]


async def test_a_call_that_hangs_meets_the_deadline(sandbox: SandboxManager) -> None:
    host = Host()
    calls = HostCalls(names=NAMES, handler=host.answer)
    result = await sandbox.run(
        "tools.hang()", calls=calls, limits=Limits(wall_seconds=0.5)
    )

    assert result.status == "timeout"
    assert host.at_work == 0


async def test_a_session_calls_and_goes_on_after_an_interrupted_call(
    sandbox: SandboxManager,
) -> None:
    host = Host()
    calls = HostCalls(names=NAMES, handler=host.answer)
    async with sandbox.session() as session:
        first = await session.run("x = tools.add(20, 1)\nx", calls=calls)
        stuck = await session.run(
            "tools.hang()", calls=calls, limits=Limits(wall_seconds=0.3)
        )
        last = await session.run("tools.add(x, x)", calls=calls)

    assert (first.value, last.value) == (21, 42)
    assert (stuck.status, stuck.state) == ("timeout", "kept")
    assert host.at_work == 0


class Meeting(Host):
    """`first` returns when `hang` hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = anyio.Event()

    async def answer(
        self, name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        if name == "hang":
            self.hangs.set()
        if name == "first":
            await self.hangs.wait()
            return {"value": 1}
        return await super().answer(name, arguments, options)


@pytest.mark.promise("E-84")
async def test_threads_of_one_run_share_the_bridge_and_of_another_do_not(
    sandbox: SandboxManager,
) -> None:
    meeting = Meeting()
    calls = HostCalls(names=(*NAMES, "first"), handler=meeting.answer)
    leaves = """
import threading
old = tools
thread = threading.Thread(target=tools.hang, daemon=True)
thread.start()
tools.first()
"""
    goes_on = """
def gone(tool):
    try: return tool(1)
    except ToolError as error: return error.code
[gone(old.add), *map(tools.add, range(5))]
"""
    async with sandbox.session() as session:
        left = await session.run(leaves, calls=calls)
        result = await session.run(goes_on, calls=calls)
        last = await session.run("thread.join()\ngone(tools.add)")

    assert left.value == 1, left.stderr
    assert result.value == ["gone", *range(5)], result.stderr
    assert (last.value, last.stderr) == ("gone", "")


RAW_CALL = """
import json, os, select
def call(name, *arguments):
    text = json.dumps({"name": name, "args": arguments, "kwargs": {}}).encode()
    os.write(4, b"%08x%08x%s" % (len(text), 1, text))
"""


async def test_calls_that_nobody_answers_yet_wait_in_the_cell(
    sandbox: SandboxManager,
) -> None:
    code = f"""{RAW_CALL}
os.set_blocking(4, False)
sent = 0
while sent < 64 and select.select([], [4], [], 3)[1]:
    try:
        call("hang", "x" * 100_000)
        sent += 1
    except BlockingIOError:
        pass
sent
"""
    result, host = await run(sandbox, code, max_concurrency=2)

    assert isinstance(result.value, int), result.stderr
    # What is in the sockets' own buffers was sent, too.
    assert 4 <= result.value < 32
    assert host.most == 2


async def test_a_call_of_one_run_is_not_the_next_ones(sandbox: SandboxManager) -> None:
    leave = f"""{RAW_CALL}
import threading
go = threading.Event()
late = threading.Thread(target=lambda: go.wait() and call("add", 1))
late.start()
"""
    before, after = Host(), Host()
    async with sandbox.session() as session:
        calls = HostCalls(names=NAMES, handler=before.answer)
        await session.run(leave, calls=calls)
        await session.run("go.set(); late.join()")
        calls = HostCalls(names=NAMES, handler=after.answer)
        result = await session.run("tools.add(2, 3)", calls=calls)

    assert (result.value, before.seen) == (5, []), result.stderr
    assert after.seen == [("add", [2, 3], {})]


LEAVES_A_SPEAKER = f"""{RAW_CALL}
import time
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.01)
if os.fork() == 0:
    try:
        tools.add(6)
    except ToolError as error:
        open(error.code, "w").close()
    wait_for("begun")
    call("add", 7)
    os.write(3, b'{{"outcome": "ok", "value": {{"type": "json", "value": 8}}}}\\n')
    open("spoken", "w").close()
    time.sleep(600)
wait_for("gone")
"""


@pytest.mark.promise("E-84", "E-85", "R60")
async def test_what_a_run_left_behind_does_not_speak_for_the_next(
    sandbox: SandboxManager,
) -> None:
    host = Host()
    calls = HostCalls(names=NAMES, handler=host.answer)
    async with sandbox.session() as session:
        left = await session.run(LEAVES_A_SPEAKER, calls=calls)
        code = "open('begun', 'w').close()\nwait_for('spoken')\ntools.add(2, 3)"
        result = await session.run(code, calls=calls)

    assert left.ok, left.stderr
    assert (result.value, result.state) == (5, "kept"), result.stderr
    assert host.seen == [("add", [2, 3], {})]


async def test_half_an_answer_does_not_meet_the_next_run(
    sandbox: SandboxManager,
) -> None:
    async def answer(*_: Any) -> dict[str, Any]:
        return {"value": "x" * 4_000_000}

    async with sandbox.session() as session:
        calls = HostCalls(names=("big",), handler=answer)
        code = f"{RAW_CALL}call('big')\nselect.select([4], [], [])\nx = 41"
        await session.run(code, calls=calls)
        result = await session.run("x", limits=Limits(wall_seconds=10))

        assert (result.status, result.value, result.state) == ("ok", 41, "kept")


class OwnMistakeError(Exception):
    """A caller's own."""


def mistake(*_: Any) -> None:
    raise OwnMistakeError


async def careless(*_: Any) -> dict[str, Any]:
    raise OwnMistakeError


async def test_what_the_callers_own_functions_raise_is_raised_as_it_is(
    sandbox: SandboxManager,
) -> None:
    with pytest.raises(OwnMistakeError):
        await sandbox.run("print(1)", on_output=mistake)
    with pytest.raises(OwnMistakeError):
        calls = HostCalls(names=("any",), handler=careless)
        await sandbox.run("tools.any()", calls=calls)

    assert (await sandbox.run("6 * 7")).value == 42


async def test_what_describes_a_tool_raises_what_it_raises(
    sandbox: SandboxManager,
) -> None:
    async def describe(name: str) -> dict[str, Any]:
        raise KeyError(name)

    code = f"""{RAW_CALL}
text = b'{{"describe": "any"}}'
os.write(4, b"%08x%08x%s" % (len(text), 1, text))
select.select([4], [], [])
"""
    calls = HostCalls(names=("any",), handler=careless, describe=describe)
    with pytest.raises(KeyError, match="any"):
        await sandbox.run(code, calls=calls)


async def test_a_session_outlives_what_the_callers_own_functions_raise(
    sandbox: SandboxManager,
) -> None:
    calls = HostCalls(names=("any",), handler=careless)
    endless = "print('here', flush=True)\nwhile True: pass"
    async with sandbox.session() as session:
        await session.run("x = 41")
        for code in ("print(1)", "print(1)\nx", endless, f"x = 41\n{endless}"):
            with anyio.fail_after(60), pytest.raises(OwnMistakeError):
                await session.run(code, on_output=mistake)
            assert session.alive
        with pytest.raises(OwnMistakeError):
            await session.run("tools.any()\nwhile True: pass", calls=calls)
        after = await session.run("x + 1")

    assert (after.value, after.state, after.stdout) == (42, "kept", "")


def test_what_may_be_called_has_names() -> None:
    with pytest.raises(InvalidInputError, match="names"):
        HostCalls(names=(5,), handler=careless)  # type: ignore[arg-type]


async def test_half_a_surrogate_pair_is_refused_in_the_program(
    sandbox: SandboxManager,
) -> None:
    code = """
said = []
for text in ("\\ud800", "\\ud83d\\ude00"[:1], "\\N{GRINNING FACE}"):
    try:
        said.append(tools.echo(text))
    except UnicodeEncodeError:
        said.append("refused")
said
"""

    async def echo(_: str, arguments: list[Any], __: Any) -> dict[str, Any]:
        return {"value": arguments[0]}

    calls = HostCalls(names=("echo",), handler=echo)
    result = await sandbox.run(code, calls=calls)

    assert result.value == ["refused", "refused", "\N{GRINNING FACE}"], result.stderr


@pytest.mark.promise("R61")
@pytest.mark.parametrize(
    "value", [[1, 2.5, None, "ü"], "NaN", "\ud800", {"a": {"Infinity": True}}, 10**30]
)
def test_answers_are_written_as_the_program_reads_them(value: Any) -> None:
    assert json.loads(answer_as_json({"value": value})) == {"value": value}


@pytest.mark.promise("R61")
def test_a_large_answer_costs_the_loop_little() -> None:
    large = {"value": [{"a": "b"}] * 300_000}

    def seconds(write: Callable[[Any], Any]) -> float:
        start = time.thread_time()
        write(large)
        return time.thread_time() - start

    plain = min(seconds(json.dumps) for _ in range(3))
    assert min(seconds(answer_as_json) for _ in range(3)) < 0.6 * plain
    assert (
        answer_as_json({"value": [float("nan")]})
        == answer_as_json({"value": object()})
        == b""
    )
