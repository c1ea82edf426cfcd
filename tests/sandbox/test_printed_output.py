"""What a program prints leaves it quickly, whole, in order, and however it ends."""

from __future__ import annotations

import os
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from toolcell.sandbox import Limits, Sandbox, SandboxManager, Stdout
from toolcell.sandbox.cell.supervisor import run
from toolcell.sandbox.cell.supervisor.page_reader import PageReader
from toolcell.sandbox.cell.wire.output_page import (
    FLUSHED,
    SIZE,
    START,
    TAKING,
    OutputPage,
)

from ..conftest import BackendRow

pytestmark = pytest.mark.anyio

# More than is gathered at once.
LINES = 9000
PRINTED = "".join(f"{number} line\n" for number in range(LINES))
PRINTS = f"import os, signal\nfor n in range({LINES}): print(n, 'line')\n"
ENDS = {
    "os._exit(3)": "exit",
    "os.kill(os.getpid(), signal.SIGKILL)": "killed",
    "import ctypes; ctypes.string_at(0)": "crashed",
    "os.abort()": "crashed",
    "import itertools; sum(itertools.repeat(0))": "cpu_limit",
    "os.execv('/bin/true', ['true'])": "exit",
}


@pytest.mark.promise("FP5")
@pytest.mark.parametrize("ending", ENDS)
async def test_what_was_printed_before_any_end_is_kept(
    sandbox: Sandbox, ending: str
) -> None:
    result = await sandbox.run(PRINTS + ending, limits=Limits(cpu_seconds=1))
    assert (result.status, result.stdout) == (ENDS[ending], PRINTED)


@pytest.mark.promise("FP5")
async def test_a_program_that_runs_out_of_memory_keeps_what_it_printed(
    sandbox: Sandbox,
) -> None:
    code = PRINTS + "held = []\nwhile True: held.append(bytearray(os.urandom(1 << 20)))"
    result = await sandbox.run(code, limits=Limits(memory_mib=64))
    assert result.status in ("out_of_memory", "killed", "error")
    assert result.stdout == PRINTED


@pytest.mark.promise("FP5")
async def test_a_line_costs_no_system_call(sandbox: Sandbox) -> None:
    code = (
        "def calls():\n"
        "    try: file = open('/proc/self/io')\n"
        "    except OSError: return None\n"
        "    with file: return int(file.read().split('syscw: ')[1].split()[0])\n"
        "before = calls()\n"
        "for n in range(9000): print(n, 'line')\n"
        "before and calls() - before\n"
    )
    result = await sandbox.run(code)
    assert result.stdout == PRINTED
    if result.value is None:
        pytest.skip("a program here cannot count its calls")
    assert isinstance(result.value, int)
    assert result.value < 90


@pytest.mark.promise("FP5")
async def test_a_stream_that_does_not_block_loses_no_line(sandbox: Sandbox) -> None:
    """Plain Python raises BlockingIOError where its pipe is full."""
    begin = "import fcntl, os\nos.set_blocking(1, False)\n"
    # It is full sooner.
    begin += "fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 4096)\n"
    result = await sandbox.run(begin + PRINTS)
    assert (result.status, result.stdout) == ("ok", PRINTED)


ORDERS = {
    "children": (
        "import os, subprocess\n"
        "print('a'); subprocess.run(['echo', 'b'])\n"
        "print('c'); os.system('echo d')\n"
        "print('e')\n"
        "if os.fork() == 0:\n    print('f'); os._exit(0)\n"
        "os.wait(); print('g')\n"
        "os.waitpid(os.posix_spawnp('echo', ['echo', 'h'], os.environ), 0)\n"
        "print('i')\n",
        "abcdefghi",
    ),
    "bytes": (
        "import io, os, sys\n"
        "print('a'); out = sys.stdout.buffer\n"
        "for byte in (b'b', b'c'): out.write(byte + b'\\n')\n"
        "print('d'); out.write(b'e\\n'); print('f', flush=True)\n"
        "os.write(1, b'g\\n'); print('h')\n"
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='ascii')\n"
        "print('i')\n",
        "abcdefghi",
    ),
    "another file": (
        "import os, sys\n"
        "print('a'); sys.stdout.flush()\n"
        "kept, other = os.dup(1), os.open('other', os.O_CREAT | os.O_RDWR)\n"
        "os.dup2(other, 1)\n"
        "import time\n"
        "print('b'); time.sleep(0.3); sys.stdout.flush()\n"
        "os.dup2(kept, 1); print('c')\n"
        "print(open('other').read(), end='')\n",
        "acb",
    ),
}


@pytest.mark.promise("FP5")
@pytest.mark.parametrize("name", ORDERS)
async def test_lines_come_in_the_order_of_their_printing(
    sandbox: Sandbox, name: str
) -> None:
    code, order = ORDERS[name]
    result = await sandbox.run(code)
    assert "".join(result.stdout.split()) == order, result


@pytest.mark.promise("FP6")
async def test_threads_and_signals_lose_no_line(sandbox: Sandbox) -> None:
    code = (
        "import signal, sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "signal.signal(signal.SIGALRM, lambda *_: sys.stdout.write('s\\n'))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\n"
        "def work(name):\n"
        "    for n in range(4000):\n"
        "        sys.stdout.write(f'{name} {n}\\n')\n"
        "        if n % 500 == 0: sys.stdout.flush()\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    result = await sandbox.run(code)
    lines = [line for line in result.stdout.splitlines() if line != "s"]
    assert sorted(lines) == sorted(f"{t} {n}" for t in range(4) for n in range(4000))


@pytest.mark.promise("FP5")
async def test_a_watcher_sees_lines_while_the_program_works(sandbox: Sandbox) -> None:
    code = "for n in range(20): print(n)\nwhile not os.path.exists('go'): pass\n"
    async with sandbox.session() as session:
        await session.run("import os")
        seen = b""
        async with aclosing(session.stream(code)) as events:
            async for event in events:
                seen += event.data if isinstance(event, Stdout) else b""
                if seen.endswith(b"19\n"):
                    await session.write_file("go", "")
        assert seen.decode() == "".join(f"{n}\n" for n in range(20))


SCRIBBLES = {
    "counts": "for n in range(2, 8): page.words[n] = 2**64 - 1 - n\nos._exit(0)",
    "promises": "page.words[0] = 1\nos._exit(0)",
    "text": "page.memory[64:] = b'x' * (len(page.memory) - 64)",
}


@pytest.mark.parametrize("name", SCRIBBLES)
async def test_a_program_that_scribbles_over_the_page_harms_itself(
    backend: BackendRow, name: str
) -> None:
    find = (
        "import os, sys\n[page] = [m.page for n, m in sys.modules.items()"
        " if n.endswith('.program.streams')]\n"
    )
    config = backend.config(programs_per_cell=5)
    async with SandboxManager(config) as sandbox:
        scribbles = f"{find}print('a')\n{SCRIBBLES[name]}"
        code = f"{find}print('b')\nbytes(page.memory).count(b'x')"
        # The same cell may not be ready for the next program.
        for _ in range(10):
            await sandbox.run(scribbles, agent_id="a")
            after = await sandbox.run(code, agent_id="a")
            assert (after.status, after.stdout, after.value) == ("ok", "b\n", 0)
            assert after.isolation is not None
            if after.isolation.reused or name != "text":
                break


@pytest.mark.promise("FP22")
async def test_two_streams_in_one_have_the_order_of_writing(sandbox: Sandbox) -> None:
    python = (
        "import os, sys\n"
        "for n in range(300):\n"
        "    print('out', n)\n"
        "    print('err', n, file=sys.stderr)\n"
        "os.system('echo c; echo d >&2')\n"
        "print('e')\n"
        "1 / 0"
    )
    lines = "".join(f"out {n}\nerr {n}\n" for n in range(300)) + "c\nd\ne\n"
    result = await sandbox.run(python, merge_stderr=True)
    begin, _, traceback = result.stdout.partition("Traceback")
    assert (begin, result.stderr) == (lines, "")
    assert traceback.endswith("ZeroDivisionError: division by zero\n")

    bash = "for n in 1 2 3; do echo $n; echo -$n >&2; done"
    result = await sandbox.run(bash, language="bash", merge_stderr=True)
    assert (result.stdout, result.stderr) == ("1\n-1\n2\n-2\n3\n-3\n", "")


async def test_a_fork_that_no_hook_sees_prints_lines_of_its_own(
    sandbox: Sandbox,
) -> None:
    code = (
        "import ctypes, os\n"
        "print('both')\n"
        "pid = ctypes.CDLL(None).fork()\n"
        "who = 'parent' if pid else 'child'\n"
        "for n in range(2000): print(who, n)\n"
        "if pid == 0: os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    async with sandbox.session() as session:
        for run in (sandbox.run, session.run):
            result = await run(code)
            wanted = [f"{who} {n}" for who in ("child", "parent") for n in range(2000)]
            assert sorted(result.stdout.splitlines()) == sorted([*wanted, "both"])


@pytest.mark.parametrize("at", [START, START + 1, SIZE - 100, SIZE - 1, SIZE])
@pytest.mark.parametrize("zeros", [0, 1, 63, 64, 65, 4097, SIZE])
def test_what_is_written_ends_before_the_zeros_behind_it(at: int, zeros: int) -> None:
    page = OutputPage()
    text = (b"a\0" * SIZE)[: max(SIZE - at - zeros, 0)]
    page.memory[at : at + len(text)] = text

    assert page.written(at) == text.rstrip(b"\0")


def test_the_pipe_is_read_before_lines_that_follow_are_in_it() -> None:
    """Else the program could move them there first, and they would come first."""
    page = OutputPage()
    reader = PageReader(page)
    page.memory.seek(START)
    page.memory.write(b"line\n")
    seen: list[int] = []
    taken = [reader.take_old(lambda: seen.append(page.words[TAKING])) for _ in "ab"]
    assert (taken, seen, page.words[TAKING]) == ([b"", b"line\n"], [1], 0)


def test_a_line_is_taken_once_all_of_it_is_copied() -> None:
    """C may copy the first bytes of a line last, and be interrupted before."""
    page = OutputPage()
    reader = PageReader(page)
    page.memory[START : START + 15] = b"line\n\0\0\0\0 line\n"
    taken = [reader.take_old(bytes) for _ in "abc"]
    page.memory[START + 5 : START + 9] = b"next"
    taken += [reader.take_old(bytes) for _ in "ab"]
    assert taken == [b"", b"line\n", b"", b"next line\n", b""]


def test_zeros_that_a_program_prints_are_taken_later() -> None:
    page = OutputPage()
    reader = PageReader(page)
    page.memory[START : START + 4] = b"a\0b\n"
    taken = [reader.take_old(bytes) for _ in range(40)]
    assert b"".join(taken) == b"a\0b\n"

    page.memory[START + 4 : START + 8] = b"c\0d\n"
    taken = [reader.take_old(bytes) for _ in "ab"]
    assert (taken, reader.take_rest(b"")) == ([b"", b"c"], b"\0d\n")


@pytest.mark.promise("FP5")
@pytest.mark.parametrize(
    ("busy", "flushes_at", "ends_at"),
    [(1, 0.01, 0.01), (1, 9, 0.02), (5, 0.05, 0.05), (50, 9, 0.3)],
)
def test_a_program_that_waits_for_a_processor_has_time_to_flush(
    monkeypatch: pytest.MonkeyPatch,
    busy: int,
    flushes_at: float,
    ends_at: float,
) -> None:
    """On a busy machine a step takes longer than the program has of it."""
    page, now = OutputPage(), 0.0
    reader = PageReader(page)
    # It may have had the same signal from elsewhere, and said so.
    page.words[FLUSHED] = 1

    def step(poller: object, seconds: float) -> float:
        nonlocal now
        now += seconds * busy
        page.words[FLUSHED] = now >= flushes_at
        return seconds

    ended: Any = SimpleNamespace(
        # The signal is one that this process ignores.
        _child=SimpleNamespace(pid=os.getpid()),
        _output=reader,
        _runs=True,
        _step=step,
    )
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now))
    poller: Any = None
    run.Run._hear_last_words(ended, poller)
    assert now == pytest.approx(ends_at, abs=0.006 * busy)


@pytest.mark.promise("FP5")
async def test_a_program_that_cannot_flush_in_time_loses_its_begun_line_alone(
    sandbox: Sandbox,
) -> None:
    code = (
        "import pathlib\npathlib.Path('artifacts').mkdir(exist_ok=True)\n"
        "pathlib.Path('artifacts/kept.txt').write_text('kept')\n"
        "print('whole line')\nprint('begun', end='')\nsum(range(10**12))"
    )
    result = await sandbox.run(code, limits=Limits(wall_seconds=2))

    assert (result.status, result.stdout) == ("timeout", "whole line\n")
    assert result.usage.cpu_ms > 0
    assert [artifact.name for artifact in result.artifacts] == ["kept.txt"]
