"""What a run promises, on every backend."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from typing import Any

import anyio
import pytest

from toolcell.core import CallFailedError, InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import (
    CodePolicy,
    ExecutionResult,
    Limits,
    SandboxManager,
    Session,
)
from toolcell.sandbox.spi import OpaqueValue

from ..conftest import BackendRow

pytestmark = pytest.mark.anyio


@pytest.mark.promise("GR-21", "RG-12", "A-03")
@pytest.mark.smoke
async def test_inputs_become_variables(sandbox: SandboxManager) -> None:
    """GR-21, RG-12, A-03: the same values on every backend."""
    inputs = {"x": [1, 2.5, None, True, {"k": "ü\0\n"}], "name": "a 'b' $c"}
    result = await sandbox.run("[x, name]", inputs=inputs)

    assert result.value == [inputs["x"], inputs["name"]]


async def test_inputs_become_variables_of_bash(sandbox: SandboxManager) -> None:
    inputs: dict[str, Any] = {
        "text": "$(id) `id` ; rm -rf / \n*",
        "data": {"a": [1, True]},
    }
    code = 'printf "%s|%s" "$text" "$data"'
    result = await sandbox.run(code, language="bash", inputs=inputs)

    assert result.stdout == inputs["text"] + '|{"a": [1, true]}'


@pytest.mark.promise("RG-13")
@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("object()", "object"),
        ("(1, 2)", "tuple"),
        ("{1: 2}", "dict"),
        ("float('nan')", "float"),
        ("'\\ud800'", "str"),
        ("10 ** 5000", "int"),
        ("'x' * 2_000_000", "str"),
        ("lambda: 1", "function"),
    ],
)
async def test_what_is_not_json_is_described(
    sandbox: SandboxManager, expression: str, kind: str
) -> None:
    """RG-13: the value is plain JSON or a description, never an object."""
    result = await sandbox.run(expression)

    assert result.status == "ok"
    assert isinstance(result.value, OpaqueValue)
    assert result.value.type == kind
    assert len(result.value.repr) <= 1024


async def test_a_long_text_of_any_script_comes_back(sandbox: SandboxManager) -> None:
    result = await sandbox.run("'é' * 260_000")

    assert (result.status, result.value) == ("ok", "é" * 260_000), result.warnings


async def test_half_a_surrogate_pair_costs_no_report(sandbox: SandboxManager) -> None:
    failed = await sandbox.run("raise ValueError('a\\ud800')")
    kind = "type('T', (), {'__repr__': lambda self: 'b\\ud800'})"
    described = await sandbox.run(f"{kind}()")

    assert failed.exception is not None, failed.warnings
    assert (failed.exception.type, failed.exception.message) == ("ValueError", "a?")
    assert described.value == OpaqueValue(type="T", repr="b?")


async def test_a_deeply_nested_value_is_described(sandbox: SandboxManager) -> None:
    result = await sandbox.run("x = []\nfor _ in range(100_000): x = [x]\nx")

    assert result.status == "ok"
    assert isinstance(result.value, OpaqueValue)


@pytest.mark.promise("RG-19")
async def test_bytes_that_are_no_text_survive(sandbox: SandboxManager) -> None:
    """RG-19: a bad byte costs nothing."""
    data = bytes(range(256)) + b"\x1b[31mred\x00"
    code = f"import sys; sys.stdout.buffer.write({data!r})\nNone"
    result = await sandbox.run(code)

    assert (result.status, result.stdout_bytes) == ("ok", data)
    assert result.stdout == data.decode("utf-8", "replace")


async def test_head_and_tail_are_kept_and_the_rest_counted(
    sandbox: SandboxManager,
) -> None:
    code = "for i in range(20_000): print(f'{i:09d}')"
    result = await sandbox.run(code, limits=Limits(output_bytes=1000))

    assert result.status == "ok"
    assert result.stdout_bytes.startswith(b"000000000\n000000001\n")
    assert result.stdout_bytes.endswith(b"000019998\n000019999\n")
    assert len(result.stdout_bytes) == 1000
    assert result.truncated.stdout == 200_000 - 1000
    assert f"[... {result.truncated.stdout} bytes left out ...]" in result.stdout


async def test_both_streams_at_once_do_not_block(sandbox: SandboxManager) -> None:
    code = (
        "import sys\nfor _ in range(1000):\n"
        "    sys.stdout.write('o' * 1000)\n    sys.stderr.write('e' * 1000)"
    )
    result = await sandbox.run(code)

    assert (len(result.stdout), len(result.stderr)) == (1_000_000, 1_000_000)
    assert not result.truncated


@pytest.mark.smoke
async def test_output_arrives_while_the_program_runs(sandbox: SandboxManager) -> None:
    seen = anyio.Event()
    pieces: list[tuple[str, bytes]] = []

    def on_output(stream: str, data: bytes) -> None:
        pieces.append((stream, data))
        seen.set()

    code = "import time\nprint('early', flush=True)\ntime.sleep(60)"
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def program() -> None:
                await sandbox.run(code, on_output=on_output)

            tasks.start_soon(program)
            await seen.wait()
            tasks.cancel_scope.cancel()

    assert pieces == [("stdout", b"early\n")]


@pytest.mark.promise("RG-30")
async def test_200_kb_of_code_runs(sandbox: SandboxManager) -> None:
    """RG-30: the code does not travel on a command line."""
    code = "\n".join(f"x{i} = {i}" for i in range(20_000)) + "\nx19999"
    result = await sandbox.run(code)

    assert len(code) > 200_000
    assert result.value == 19_999


async def test_usage_is_measured_from_outside(sandbox: SandboxManager) -> None:
    code = (
        "from time import process_time as now\nend = now() + 0.3\n"
        "while now() < end: pass"
    )
    result = await sandbox.run(code)

    assert 200 < result.usage.cpu_ms < 10_000
    assert result.usage.wall_ms >= result.usage.cpu_ms * 0.9
    assert result.usage.peak_memory_bytes > 5 << 20


@pytest.mark.promise("RG-04", "RG-15")
async def test_each_limit_names_its_enforcer(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    """RG-04, RG-15: what holds a limit is said, per limit."""
    held = (await sandbox.run("1")).usage.enforced_by

    assert held["wall_seconds"] == held["output_bytes"] == "watchdog"
    assert held["open_files"] == "rlimit"
    assert "cpu_seconds" not in held
    if backend.name == "docker":
        assert held["memory_mib"] == held["pids"] == held["cpus"] == "cgroup"
    if backend.name == "runsc":
        assert (held["memory_mib"], held["pids"]) == ("watchdog", "rlimit")


@pytest.mark.parametrize(
    ("code", "value", "error"),
    [
        ("41 + 1", 42, None),
        ("(41\n + 1)", 42, None),
        ("41 + 1 # of them\n", 42, None),
        ("x = 41 + 1", None, None),
        ("x = 41; x + 1", 42, None),
        (" 41 + 1", None, "IndentationError"),
        ("41 + 1;", None, None),
        ("41 +", None, "SyntaxError"),
        ("compile('1 +', '', 'eval')", None, "SyntaxError"),
        ("", None, None),
    ],
)
async def test_a_program_of_one_expression_is_a_program(
    sandbox: SandboxManager, code: str, value: object, error: str | None
) -> None:
    result = await sandbox.run(code)

    assert result.value == value
    assert (result.exception.type if result.exception else None) == error


async def test_a_program_of_one_expression_runs_once_and_shows_its_line(
    sandbox: SandboxManager,
) -> None:
    result = await sandbox.run("print('once') or [][1]  # here")

    assert result.stdout == "once\n"
    assert "[][1]  # here" in result.stderr


@pytest.mark.smoke
async def test_a_function_runs_in_a_cell(sandbox: SandboxManager) -> None:
    assert await sandbox.call(_hypotenuse, 3, b=4.0) == 5.0


def _square(x: float) -> float:
    return x**2


def _hypotenuse(a: float, b: float) -> float:
    return math.sqrt(sum(_square(side) for side in (a, b)))


async def test_a_function_that_raises_says_so(sandbox: SandboxManager) -> None:
    with pytest.raises(CallFailedError) as failure:
        await sandbox.call(_fail, "reason")

    result: ExecutionResult = failure.value.result
    assert result.exception is not None
    assert (result.exception.type, result.exception.message) == ("KeyError", "'reason'")


def _fail(text: str) -> None:
    raise KeyError(text)


def test_a_function_that_cannot_travel_is_refused() -> None:
    from toolcell.sandbox.spi import call_program

    lock = threading.Lock()

    def closure() -> Any:
        return lock

    for function in (closure, len, _uses_a_lock):
        with pytest.raises(InvalidInputError):
            call_program(function, (), {})


_LOCK = threading.Lock()


def _uses_a_lock() -> None:
    _LOCK.acquire()


@pytest.mark.promise("RG-18")
async def test_cancelling_kills_the_tree_before_control_returns(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    """RG-18: nothing of a cancelled run is left when the task is."""
    started = anyio.Event()
    code = (
        "import os, time\n"
        "for _ in range(3):\n    if os.fork() == 0: time.sleep(600)\n"
        "print('up', flush=True)\ntime.sleep(600)"
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:

            async def program() -> None:
                await sandbox.run(code, on_output=lambda *_: started.set())

            tasks.start_soon(program)
            await started.wait()
            tasks.cancel_scope.cancel()

    assert not sandbox.active_cells
    assert (await sandbox.run("'next'")).value == "next"


async def run_alone(manager: SandboxManager, started: anyio.Event) -> None:
    code = "print('up', flush=True)\nimport time\ntime.sleep(600)"
    await manager.run(code, on_output=lambda *_: started.set())


async def run_in_session(manager: SandboxManager, started: anyio.Event) -> None:
    code = "print('up', flush=True)\nimport time\ntime.sleep(600)"
    async with manager.session() as session:
        await session.run(code, on_output=lambda *_: started.set())


def told_of_kill(cell: Any, monkeypatch: pytest.MonkeyPatch) -> anyio.Event:
    """Return an event that is set when the processes of a cell are being killed."""
    begun, kill = anyio.Event(), cell._process.kill

    async def tell_and_kill() -> None:
        begun.set()
        await kill()

    monkeypatch.setattr(cell._process, "kill", tell_and_kill)
    return begun


@pytest.mark.parametrize("program", [run_alone, run_in_session])
async def test_who_is_cancelled_twice_leaves_no_cell(
    backend: BackendRow, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task's own `cancel` gets through the shields of anyio."""
    started = anyio.Event()
    with anyio.fail_after(60):
        async with SandboxManager(backend.config(pool=0)) as manager:
            await manager.run("1")
            before = len(os.listdir("/proc/self/fd"))
            task = asyncio.create_task(program(manager, started))
            await started.wait()
            [cell] = manager._active
            killing = told_of_kill(cell, monkeypatch)
            task.cancel()
            await killing.wait()
            task.cancel()
            await asyncio.wait([task])
            assert (task.cancelled(), manager.active_cells) == (True, 0)
            while not cell.gone or len(os.listdir("/proc/self/fd")) > before:
                await anyio.sleep(0.005)


async def test_closing_the_manager_ends_runs_as_cancelled(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.sandbox.scheduling.cell_supply._STOP_SECONDS", 60)
    results: list[ExecutionResult] = []
    started = anyio.Event()

    async def program(manager: SandboxManager) -> None:
        code = "print('up', flush=True)\nimport time\ntime.sleep(600)"
        results.append(await manager.run(code, on_output=lambda *_: started.set()))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with SandboxManager(backend.config()) as manager:
                tasks.start_soon(program, manager)
                await started.wait()

    assert [result.status for result in results] == ["cancelled"]
    assert results[0].stdout == "up\n"


async def test_a_run_can_only_narrow_limits(sandbox: SandboxManager) -> None:
    with pytest.raises(InvalidInputError, match="memory_mib"):
        await sandbox.run("1", limits=Limits(wall_seconds=1, memory_mib=512))


async def test_narrower_memory_holds(sandbox: SandboxManager) -> None:
    limits = Limits(memory_mib=64)
    result = await sandbox.run("x = b'1' * (150 << 20)", limits=limits)

    assert result.status == "out_of_memory"


@pytest.mark.smoke
async def test_concurrent_runs_do_not_mix(sandbox: SandboxManager) -> None:
    results: dict[int, ExecutionResult] = {}

    async def one(number: int) -> None:
        code = f"for _ in range(200): print('{number:04d}' * 50)\n{number}"
        results[number] = await sandbox.run(code)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(one, number)

    for number, result in results.items():
        assert result.value == number
        assert set(result.stdout.split()) == {f"{number:04d}" * 50}


async def test_more_than_the_queue_holds_is_refused(backend: BackendRow) -> None:
    config = backend.config(max_concurrency=1, max_queue=1)
    refused: list[SandboxUnavailableError] = []
    values: list[Any] = []

    async def one(manager: SandboxManager) -> None:
        try:
            values.append((await manager.run("7")).value)
        except SandboxUnavailableError as error:
            refused.append(error)

    async with SandboxManager(config) as manager, anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one, manager)

    assert values == [7, 7]
    assert [error.retryable for error in refused] == [True, True]


@pytest.mark.smoke
async def test_the_pool_gives_never_used_cells(backend: BackendRow) -> None:
    code = "import os\nseen = os.listdir('.')\nopen('mark', 'w').close()\nseen"
    async with SandboxManager(backend.config(pool=2)) as manager:
        values = [(await manager.run(code)).value for _ in range(5)]

    assert values == [["main.py"]] * 5


async def test_a_code_policy_refuses_before_a_cell_is_spent(
    backend: BackendRow,
) -> None:
    policy = CodePolicy(imports=("math",))
    async with SandboxManager(backend.config(code_policy=policy)) as manager:
        refused = await manager.run("import math\nimport os\nopen('x')")
        allowed = await manager.run("import math\nmath.floor(2.5)")

    assert refused.status == "refused"
    assert refused.reasons == (
        "line 2: import of 'os' is not allowed",
        "line 3: the name 'open' is not allowed",
    )
    assert allowed.value == 2


async def test_the_deadline_is_kept_within_100_ms(sandbox: SandboxManager) -> None:
    """DESIGN §4: for code that ignores signals, stops itself or sits in C."""
    programs = [
        "import signal, time\nfor n in set(signal.Signals) - {9, 19}:\n"
        "    signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "sum(range(10 ** 12))",
        "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')",
    ]
    async with sandbox.session() as session:
        late = [await _least_late(session, code) for code in programs]

    assert max(late) < 0.1


async def _least_late(session: Session, code: str) -> float:
    """Return how late a run ended; a busy machine may need tries.

    The start of a program is no part of its time, so that of an empty one is
    taken off: on gVisor it is 60 ms and more.
    """
    limits, late = Limits(wall_seconds=0.5), math.inf
    for _ in range(20):
        start, _ = await _timed(session, "", limits)
        seconds, status = await _timed(session, code, limits)
        assert status == "timeout"
        late = min(late, seconds - start - 0.5)
        if late < 0.1:
            break
    return late


async def _timed(session: Session, code: str, limits: Limits) -> tuple[float, str]:
    began = anyio.current_time()
    result = await session.run(code, fresh=True, limits=limits)
    return anyio.current_time() - began, result.status
