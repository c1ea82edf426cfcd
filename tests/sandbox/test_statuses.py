"""Every status has one cause, on every backend (docs/security.md)."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from toolcell.sandbox import Limits, SandboxManager

pytestmark = pytest.mark.anyio


@pytest.mark.promise("cluster-01")
@pytest.mark.smoke
async def test_a_program_that_ends_is_ok(sandbox: SandboxManager) -> None:
    result = await sandbox.run("print('hello')\n6 * 7")

    assert (result.status, result.value, result.stdout) == ("ok", 42, "hello\n")
    assert (result.exit_code, result.signal, result.exception) == (0, None, None)


@pytest.mark.smoke
async def test_an_uncaught_exception_is_an_error(sandbox: SandboxManager) -> None:
    result = await sandbox.run("def f():\n    return 1 / 0\nf()")

    assert (result.status, result.exit_code) == ("error", 1)
    assert result.exception is not None
    assert result.exception.type == "ZeroDivisionError"
    assert 'main.py", line 2, in f' in result.exception.traceback
    assert result.stderr == result.exception.traceback


@pytest.mark.parametrize(
    "code", ["import sys; sys.exit(3)", "import os; os._exit(3)", "raise SystemExit(3)"]
)
async def test_leaving_by_an_exit_code_is_an_exit(
    sandbox: SandboxManager, code: str
) -> None:
    result = await sandbox.run(code)

    assert (result.status, result.exit_code, result.exception) == ("exit", 3, None)


async def test_bash_that_fails_is_an_exit(sandbox: SandboxManager) -> None:
    result = await sandbox.run("echo out; echo err >&2; exit 7", language="bash")

    assert (result.status, result.exit_code) == ("exit", 7)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


@pytest.mark.smoke
async def test_the_deadline_is_a_timeout_and_keeps_output(
    sandbox: SandboxManager,
) -> None:
    code = "import time\nprint('a line')\nprint('before', end='')\ntime.sleep(60)"
    # A busy machine may not let it print in time.
    for seconds in (1, 2, 4, 8, 16):
        result = await sandbox.run(code, limits=Limits(wall_seconds=seconds))
        assert (result.status, result.signal) == ("timeout", "SIGKILL")
        if result.stdout.startswith("a line"):
            break

    assert result.stdout == "a line\nbefore"


async def test_cpu_time_is_a_cpu_limit(sandbox: SandboxManager) -> None:
    limits = Limits(cpu_seconds=1)
    result = await sandbox.run("while True: pass", limits=limits)

    assert result.status == "cpu_limit"
    assert result.usage.enforced_by["cpu_seconds"] == "watchdog"


@pytest.mark.smoke
async def test_memory_is_out_of_memory(sandbox: SandboxManager) -> None:
    # Where no cgroup holds memory, a program is looked at from time to time.
    holds = "import time\ndata = b'x' * (600 << 20)\ntime.sleep(600)\n"
    result = await sandbox.run(f"{holds}print('held it')")

    assert (result.status, result.stdout) == ("out_of_memory", "")
    assert result.self_reported is False


async def test_output_is_an_output_limit_by_rule(sandbox: SandboxManager) -> None:
    limits = Limits(output_bytes=1000, stop_at_output_limit=True)
    result = await sandbox.run("while True: print('x' * 100)", limits=limits)

    assert result.status == "output_limit"
    assert len(result.stdout_bytes) <= 1000
    assert result.truncated.stdout > 0


@pytest.mark.smoke
async def test_a_full_disk_is_a_disk_limit(sandbox: SandboxManager) -> None:
    code = "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
    result = await sandbox.run(code)

    assert (result.status, result.self_reported) == ("disk_limit", True)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGTERM", "SIGABRT"])
async def test_a_fatal_signal_is_a_crash(sandbox: SandboxManager, name: str) -> None:
    result = await sandbox.run(
        f"import os, signal; os.kill(os.getpid(), signal.{name})"
    )

    assert (result.status, result.signal, result.exit_code) == ("crashed", name, None)


async def test_a_kill_that_nobody_asked_for_is_killed(sandbox: SandboxManager) -> None:
    result = await sandbox.run("import os; os.kill(os.getpid(), 9)")

    assert (result.status, result.signal) == ("killed", "SIGKILL")


async def test_a_deadline_before_the_first_line_is_a_timeout(
    sandbox: SandboxManager,
) -> None:
    limits = Limits(wall_seconds=0.00001)
    for _ in range(5):
        result = await sandbox.run("print(1)\nwhile True: pass", limits=limits)

        assert (result.status, result.signal) == ("timeout", "SIGKILL")


@pytest.mark.promise("cluster-02")
@pytest.mark.parametrize("code", ["1", "object()", "1 / 0", "print('x' * 100)"])
async def test_a_result_has_all_its_fields(sandbox: SandboxManager, code: str) -> None:
    result = await sandbox.run(code, limits=Limits(output_bytes=10))
    parts = [
        result,
        *filter(lambda each: isinstance(each, BaseModel), vars(result).values()),
    ]

    assert len(parts) >= 4
    for part in parts:
        assert set(vars(part)) == part.model_fields_set == set(type(part).model_fields)
    assert result == result.model_copy() != result.model_copy(update={"exit_code": 9})
