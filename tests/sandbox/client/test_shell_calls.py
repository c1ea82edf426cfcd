"""Bash programs and commands call the host by the program `tools`."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError
from toolcell.sandbox import (
    ExecutionResult,
    HostCalls,
    Limits,
    Sandbox,
    SandboxManager,
    SandboxSession,
)

from ...conftest import BackendRow
from ...support.polling import until

pytestmark = pytest.mark.anyio


class Host:
    """Answers calls, and remembers them."""

    def __init__(self, **bounds: Any) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.at_work = self.most = 0
        self.hangs = anyio.Event()
        self.calls = HostCalls(
            names=("add", "fail", "late", "hang", "hung", "big", "echo", "list"),
            handler=self._answer,
            describe=self._describe,
            **bounds,
        )

    async def _answer(
        self, name: str, arguments: list[Any], named: dict[str, Any]
    ) -> dict[str, Any]:
        assert arguments == []
        self.seen.append((name, named))
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        try:
            await anyio.sleep(0)
            if name == "hang":
                self.hangs.set()
                await anyio.sleep_forever()
            if name == "hung":
                await self.hangs.wait()
            refusal = {"code": "guard.denied", "message": "not yet", "retry_after": 7}
            answers: dict[str, dict[str, Any]] = {
                "fail": {"error": refusal},
                "late": {"error": {"code": "tool.timeout", "message": "too late"}},
                "big": {"value": "x" * 4_000_000},
                "echo": {"value": named},
            }
            if name in answers:
                return answers[name]
            return {"value": sum(named.values())}
        finally:
            self.at_work -= 1

    async def _describe(self, name: str) -> dict[str, Any]:
        return {"name": name, "parameters": {"type": "object"}}


async def bash(place: Any, code: str, host: Host, **more: Any) -> ExecutionResult:
    result: ExecutionResult = await place.run(
        code, language="bash", calls=host.calls, **more
    )
    return result


async def command(
    session: SandboxSession, words: str | list[str], host: Host, **more: Any
) -> ExecutionResult:
    more = {"timeout_seconds": 30, **more}
    return await (await session.exec(words, calls=host.calls, **more)).wait()


async def test_a_bash_program_calls_by_name_and_by_json(sandbox: Sandbox) -> None:
    code = (
        "tools add --a 1 --b 2\n"
        "tools echo --text é --number=5 --code 05 --flag true --all '[1, null]'\n"
        """echo '{"a": "5"}' | tools echo --json -\n"""
        "tools call list --a 7\n"
        "tools echo --a NaN --b -Infinity --c 1e999\n"
    )
    host = Host()
    result = await bash(sandbox, code, host)
    lines = result.stdout.splitlines()

    assert result.ok, result.stderr
    assert [json.loads(line) for line in lines] == [
        3,
        {"text": "é", "number": 5, "code": "05", "flag": True, "all": [1, None]},
        {"a": "5"},
        7,
        {"a": "NaN", "b": "-Infinity", "c": "1e999"},
    ]


async def test_tools_are_listed_and_described(sandbox: Sandbox) -> None:
    host = Host()
    result = await bash(sandbox, "tools list | head -2; tools describe add", host)
    unknown = await bash(sandbox, "tools describe secret", host)

    described = '{"name": "add", "parameters": {"type": "object"}}'
    assert result.stdout == f"add\nfail\n{described}\n", result.stderr
    assert (unknown.exit_code, host.seen) == (1, [])


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        ("fail", 3, "guard.denied: not yet (retry after 7 s)"),
        ("late", 124, "tool.timeout: too late"),
        ("secret", 1, "not_found"),
        ("add --a", 2, "--a has no value"),
        ("add a", 2, "'a' is no --KEY"),
        ("echo --json 5", 2, "takes an object"),
        ("""echo --json "$(printf '[%.0s' {1..5000})" """, 2, "nested too deeply"),
        ("""echo --json '{"a": NaN}'""", 2, "is no JSON"),
        ("", 2, "usage: tools list"),
    ],
)
async def test_exit_codes_say_what_happened(
    sandbox: Sandbox, words: str, exit_code: int, said: str
) -> None:
    result = await bash(sandbox, f"tools {words}", Host())

    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("", "no tools were offered"),
        ("TOOLCELL_TOOLS=²", "no tools were offered"),
        ("TOOLCELL_TOOLS=99999999999999999999", "was closed on the way"),
    ],
)
async def test_without_calls_there_are_no_tools(
    sandbox: Sandbox, before: str, said: str
) -> None:
    result = await sandbox.run(f"{before} tools list", language="bash")

    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.promise("E-85", "E-87")
async def test_callers_at_once_get_their_own_answers_within_the_bounds(
    sandbox: Sandbox,
) -> None:
    code = (
        'one() { [ "$(tools add --a $1 --b 1)" = $(($1 + 1)) ] && echo own; }\n'
        "export -f one; seq 12 | xargs -P 6 -I{} bash -c 'one {}'\n"
        "tools add --a 1; echo $?"
    )
    host = Host(max_calls=12, max_concurrency=1)
    result = await bash(sandbox, code, host)

    assert result.stdout == "own\n" * 12 + "3\n", result.stderr
    assert "too_many" in result.stderr
    assert (len(host.seen), host.most) == (12, 1)


async def test_a_python_child_calls_if_it_keeps_the_descriptor(
    sandbox: Sandbox,
) -> None:
    code = (
        'python3 -c \'import subprocess as s; a = ["tools", "add", "--a", "5"]\n'
        "print(s.run(a).returncode, flush=True); s.run(a, close_fds=False)'"
    )
    host = Host()
    result = await bash(sandbox, code, host)

    assert result.stdout == "1\n5\n", result.stderr
    assert "close_fds=False" in result.stderr


async def test_a_few_open_files_are_enough(backend: BackendRow) -> None:
    config = backend.config(limits=Limits(open_files=32, wall_seconds=60))
    async with SandboxManager(config) as sandbox:
        result = await bash(sandbox, "tools add --a 1", Host())

    assert result.stdout == "1\n", result.stderr


async def test_the_end_of_a_run_ends_its_calls(sandbox: Sandbox) -> None:
    host = Host()
    async with sandbox.session() as session:
        left = await bash(session, "tools hang & tools hung; echo over", host)
        assert host.at_work == 0
        after = await bash(session, "tools add --a 1", host)

    assert ("hang", {}) in host.seen
    assert (left.stdout, after.stdout) == ("0\nover\n", "1\n")


async def test_an_answer_that_nobody_reads_holds_nobody_up(sandbox: Sandbox) -> None:
    code = "tools big | head -c 1; tools add --a 1; (tools big | sleep 30) & wait -n"
    result = await bash(sandbox, code, Host(), limits=Limits(wall_seconds=10))

    assert result.stdout.startswith('"1\n'), result.stderr


NONSENSE = """
import array, os, socket, sys
door = socket.socket(fileno=os.dup(int(os.environ["TOOLCELL_TOOLS"])))
def enter():
    door.sendall(b"?")
    fds = array.array("i")
    ancillary = door.recvmsg(1, socket.CMSG_SPACE(4))[1]
    fds.frombytes(ancillary[0][2][:4])
    return socket.socket(fileno=fds[0])
for said in (b"zzzzzzzz", b"ffffffff", b"-0000001", b"00000002[]", b"0000000", b""):
    with enter() as own:
        own.sendall(said)
        own.shutdown(socket.SHUT_WR)
        print(own.recv(9)[:1], end=" ")
kept = [enter() for _ in range(12)]
own = enter()
text = b'{"name": "add", "args": [], "kwargs": {"a": 5}}'
own.sendall(b"%08x%s" % (len(text), text))
own.close()
del kept
"""


@pytest.mark.promise("E-85", "E-86", "E-87")
async def test_nonsense_at_the_door_harms_nobody(sandbox: Sandbox) -> None:
    code = f"cat > n.py <<'EOF'\n{NONSENSE}\nEOF\npython3 n.py && tools add --a 1"
    host = Host()
    result = await bash(sandbox, code, host)

    assert result.stdout == "b'' b'' b'' b'0' b'' b'' 1\n", result.stderr
    assert host.seen[-1] == ("add", {"a": 1})
    assert (await sandbox.run("1")).value == 1


async def test_a_command_calls_beside_runs(sandbox: Sandbox) -> None:
    host, other = Host(), Host()
    async with sandbox.session() as session:
        loop = "for i in 1 2 3; do tools add --a $i; done"
        beside = await session.exec(loop, calls=host.calls)
        run = await bash(session, loop, other)
        result = await beside.wait()
        listed = await command(session, ["tools", "list"], host)
        without = await (await session.exec("tools list")).wait()

    assert result.stdout == run.stdout == "1\n2\n3\n", result.stderr
    assert len(host.seen) == len(other.seen) == 3
    assert listed.stdout.startswith("add\n")
    assert "no tools were offered" in without.stderr


async def test_a_command_ends_with_what_its_handler_raises(sandbox: Sandbox) -> None:
    async def careless(*_: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    calls = HostCalls(names=("any",), handler=careless)
    host = Host()
    async with sandbox.session() as session:
        process = await session.exec("tools any; sleep 100", calls=calls)
        with anyio.fail_after(60), pytest.raises(ZeroDivisionError):
            await process.wait()
        late = await command(session, "tools hang", host, timeout_seconds=10)
        after = await command(session, "tools add --a 1", host)

    assert ("hang", {}) in host.seen
    assert (late.status, after.stdout) == ("timeout", "1\n")
    assert host.at_work == 0


async def test_a_command_whose_start_is_cancelled_leaves_no_task(
    sandbox: Sandbox,
) -> None:
    def answering() -> int:
        names = [task.name or "" for task in anyio.get_running_tasks()]
        return sum("CommandCalls" in name for name in names)

    host = Host()
    async with sandbox.session() as session:
        process = await session.exec("cat", stdin="pipe", calls=host.calls)
        assert answering() == 1
        with anyio.move_on_after(0):
            await session.exec("true", calls=host.calls)
        await process.close_stdin()
        await process.wait()
        await until(lambda: answering() == 0)


async def test_a_lost_cell_ends_the_calls_of_its_commands(sandbox: Sandbox) -> None:
    host = Host()
    async with sandbox.session() as session:
        process = await session.exec("tools hang", calls=host.calls)
        with anyio.fail_after(60):
            await host.hangs.wait()
    with anyio.fail_after(60), pytest.raises(CellLostError):
        await process.wait()
    await _until_idle(host)


async def _until_idle(host: Host) -> None:
    with anyio.fail_after(60):
        while host.at_work:
            await anyio.sleep(0.01)


@pytest.mark.promise("E-84", "E-85", "R60")
async def test_what_a_command_left_behind_calls_nothing(sandbox: Sandbox) -> None:
    leaves = (
        "(until [ -e begun ]; do sleep 0.05; done;"
        " tools add --a 7 > said 2>&1; touch spoken) > /dev/null 2>&1 &"
    )
    goes_on = "touch begun; until [ -e spoken ]; do sleep 0.05; done; tools add --a 1"
    host = Host()
    async with sandbox.session() as session:
        await command(session, leaves, host)
        result = await command(session, goes_on, host)
        said = await session.read_file("said")

    assert result.stdout == "1\n", result.stderr
    assert b"its run is over" in said
    assert host.seen == [("add", {"a": 1})]


HOLDS_PLACES = """
import os, sys, time
sys.stdout.flush()
if os.fork() == 0:
    held = []
    for _ in range(16):
        held.append(enter())
    open("holds", "w").close()
    time.sleep(600)
while not os.path.exists("holds"): time.sleep(0.01)
"""


@pytest.mark.promise("R60")
async def test_what_a_command_left_behind_takes_no_place_of_the_next(
    sandbox: Sandbox,
) -> None:
    holder = NONSENSE.partition("for said in")[0] + HOLDS_PLACES
    host = Host()
    async with sandbox.session() as session:
        await session.write_file("holder.py", holder)
        left = await command(session, "python3 holder.py", host)
        result = await command(session, "tools add --a 1", host, timeout_seconds=30)
        run = await bash(session, "tools add --a 2", host)

    assert left.ok, left.stderr
    assert (result.stdout, run.stdout) == ("1\n", "2\n"), result.stderr


# It has the number of the victim, as one that had waited for it would.
TAKES_DOOR = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
def take():
    while not os.path.exists("pid"): time.sleep(0.01)
    time.sleep(0.1)
    pid = int(open("pid").read())
    got = []
    for fd in (4, 100):
        try:
            got.append(os.open("/proc/%d/fd/%d" % (pid, fd), os.O_RDWR))
        except OSError:
            pass
        held = libc.syscall(434, pid, 0)
        if held >= 0:
            got.append(libc.syscall(438, held, fd, 0))
    got.append(0 if libc.ptrace(16, pid, 0, 0) == 0 else -1)
    text = '{"name": "add", "args": [], "kwargs": {"a": 7}}'
    os.environ["TOOLCELL_TOOLS"] = "100"
    os.system("tools add --a 7")
    open("took.tmp", "w").write(repr([each for each in got if each >= 0]))
    os.rename("took.tmp", "took")
    time.sleep(600)
if os.fork() == 0:
    take()
"""


@pytest.mark.promise("E-84", "R60")
async def test_a_process_that_a_run_left_behind_cannot_take_the_next_ones_door(
    sandbox: Sandbox,
) -> None:
    host = Host()
    code = "echo $$ > p; mv p pid; until [ -e took ]; do sleep 0.05; done\n"
    async with sandbox.session() as session:
        left = await session.run(TAKES_DOOR, calls=host.calls)
        result = await bash(session, code + "tools add --a 1; cat took", host)

    assert left.ok, left.stderr
    assert result.stdout == "1\n[]", result.stderr
    assert host.seen == [("add", {"a": 1})]


async def test_programs_of_a_reused_cell_call_each_for_itself(
    backend: BackendRow,
) -> None:
    if backend.on_nodes:
        pytest.skip("what a cell is used for is no matter of its node")
    config = backend.config(programs_per_cell=10, limits=Limits(wall_seconds=60))
    async with SandboxManager(config) as sandbox:
        hosts = [Host(), Host()]
        results = [await bash(sandbox, "tools add --a 1", host) for host in hosts]

    assert [result.stdout for result in results] == ["1\n", "1\n"], results[0].stderr
    assert [len(host.seen) for host in hosts] == [1, 1]
