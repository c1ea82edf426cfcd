"""Commands and everything that goes wrong around them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import Limits, SandboxManager, Session
from toolcell.sandbox.backends import launcher_start
from toolcell.sandbox.cell.wire.frames import Frame
from toolcell.sandbox.processes import table
from toolcell.sandbox.processes.output import KeptOutput
from toolcell.sandbox.processes.side_channel import SideChannel

from ...conftest import SUBPROCESS, BackendRow
from ...support.cells.changed_bundle import changed_bundle
from ...support.polling import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        yield session


@pytest.mark.namespaces
async def test_a_program_cannot_touch_what_runs_commands(session: Session) -> None:
    code = """
import ctypes, os
found = []
for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
    status = open(f'/proc/{pid}/status').read()
    if pid == os.getpid() or 'PPid:\\t1\\n' not in status: continue
    if open(f'/proc/{pid}/cmdline').read().startswith('sleep'): continue
    try: os.listdir(f'/proc/{pid}/fd'); found.append('fd')
    except PermissionError: pass
    try: open(f'/proc/{pid}/mem', 'rb'); found.append('mem')
    except PermissionError: pass
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, pid, 0, 0) == 0: found.append('ptrace')
    try: os.kill(pid, 0); found.append('kill')
    except PermissionError: pass
found
"""
    await session.exec(["sleep", "600"])
    result = await session.run(code, fresh=True)

    assert (result.status, result.value) == ("ok", [])


@pytest.mark.namespaces
async def test_commands_are_confined_as_programs_are(session: Session) -> None:
    names = ("CapEff", "NoNewPrivs", "Seccomp", "Uid", "CapBnd")
    code = (
        f"[l for l in open('/proc/self/status') if l.split(':')[0] in {names}]"
        " + [open('/proc/self/oom_score_adj').read(), str(__import__('os').nice(0))]"
    )
    process = await session.exec(["python3", "-c", f"print({code})"])
    run = await session.run(code, fresh=True)
    command = await process.wait()

    assert command.stdout.strip() == str(run.value)


async def test_no_descriptor_leaks_into_a_command(session: Session) -> None:
    await session.run("1")
    code = """
import os
for fd in range(4096):
    try: os.fstat(fd); print(fd)
    except OSError: pass
"""
    result = await (await session.exec(["python3", "-c", code])).wait()

    assert result.stdout.split() == ["0", "1", "2"]


async def test_commands_have_no_network(session: Session) -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', 80), 2)"
    result = await (await session.exec(["python3", "-c", code])).wait()

    assert result.exit_code == 1


async def test_a_line_and_its_answer_are_a_frame_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    send, take = SideChannel.send, SideChannel._take

    async def seen_send(to: SideChannel, header: Any, payload: bytes = b"") -> None:
        seen.append(header["type"])
        await send(to, header, payload)

    def seen_take(to: SideChannel, frame: Frame) -> None:
        seen.append(frame.header["type"])
        take(to, frame)

    monkeypatch.setattr(SideChannel, "send", seen_send)
    monkeypatch.setattr(SideChannel, "_take", seen_take)
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        process = await session.exec(["cat"], stdin="pipe")
        output = process.output()
        seen.clear()
        for _ in range(10):
            await process.write(b"line\n")
            assert await anext(output) == ("stdout", b"line\n")
        frames = [*seen]
        await output.aclose()

    assert frames == ["exec_input", "exec_output"] * 10


async def test_a_reader_that_stops_costs_its_credit_alone(session: Session) -> None:
    process = await session.exec("yes")
    output = process.output()
    await anext(output)
    sizes: list[int] = []

    def stands_still() -> bool:
        sizes.append(process._kept["stdout"].dropped)
        return len(sizes) > 50 and sizes[-1] == sizes[-50]

    # What is under way comes; then the command waits.
    await until(stands_still)
    await output.aclose()
    # Nobody reads: it is not held up any more.
    before = process._kept["stdout"].dropped
    await until(lambda: process._kept["stdout"].dropped > before + 10_000_000)
    await process.kill()
    assert (await process.wait()).status == "cancelled"


async def test_input_that_nobody_reads_waits_and_ends_with_the_command(
    session: Session,
) -> None:
    process = await session.exec("sleep 600", stdin="pipe")
    written = anyio.Event()

    async def write() -> None:
        await process.write(b"x" * 4_000_000)
        written.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await (await session.exec(["true"])).wait()
        assert not written.is_set()
        await process.kill()
        with anyio.fail_after(30):
            await written.wait()


async def test_a_cancelled_start_leaves_nothing(session: Session) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await session.exec(["sleep", "603"])
    await (await session.exec(["true"])).wait()

    assert session.processes() == ()
    result = await session.run(
        "import glob\\nsum(b'603' in open(p, 'rb').read()"
        " for p in glob.glob('/proc/*/cmdline'))".replace("\\n", "\n"),
        fresh=True,
    )
    assert result.value == 0


async def test_the_session_lives_while_a_command_does() -> None:
    config = SUBPROCESS.config(session_idle_seconds=2)
    async with SandboxManager(config) as manager, manager.session() as session:
        await (await session.exec(["sleep", "3"])).wait()
        assert (await session.run("1")).value == 1


async def test_a_session_is_idle_from_the_end_of_its_last_command(
    session: Session,
) -> None:
    process = await session.exec(["sleep", "1"])
    began = time.monotonic()
    await process.wait()

    assert session._shared.last_used > began


async def test_a_fork_starts_commands_in_its_own_folder(session: Session) -> None:
    await session.run("open('name', 'w').write('first')")
    fork = await session.fork()
    await fork.run("open('name', 'w').write('second')")
    mine = await (await session.exec(["cat", "name"])).wait()
    theirs = await (await fork.exec(["cat", "name"])).wait()
    await fork.aclose()

    assert (mine.stdout, theirs.stdout) == ("first", "second")
    with pytest.raises(InvalidInputError, match="closed"):
        await fork.exec(["true"])


async def test_a_killed_cell_ends_commands_without_a_result(session: Session) -> None:
    process = await session.exec(["sleep", "600"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(session._shared.cell.kill)
        with anyio.fail_after(30), pytest.raises(CellLostError):
            await process.wait()
    pieces = [piece async for piece in process.output()]
    assert pieces == []
    await process.kill()


async def test_more_commands_than_the_limit_are_refused() -> None:
    config = SUBPROCESS.config(limits=Limits(pids=200))
    async with SandboxManager(config) as manager, manager.session() as session:
        running = [await session.exec(["sleep", "600"]) for _ in range(64)]
        with pytest.raises(InvalidInputError, match="64 commands"):
            await session.exec(["true"])
        await running[0].kill()
        await running[0].wait()
        assert (await (await session.exec(["true"])).wait()).ok


async def test_what_a_command_left_may_go_on_writing(session: Session) -> None:
    left = await session.exec(
        "(for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; touch all) &"
    )
    assert (await left.wait()).ok
    process = await session.exec("until [ -e all ]; do sleep 0.05; done")

    with anyio.fail_after(30):
        assert (await process.wait()).ok


def test_what_is_kept_of_a_stream() -> None:
    kept = KeptOutput(10)
    for piece in (b"0123", b"4567", b"89ab", b"cd"):
        kept.add(piece)

    assert kept.raw() == b"01234" + b"9abcd"
    assert kept.dropped == 4
    assert kept.text() == "01234\n[... 4 bytes left out ...]\n9abcd"


async def test_no_process_of_a_session_is_left(backend: BackendRow) -> None:
    marker = f"60{os.getpid()}"
    async with (
        SandboxManager(backend.config()) as manager,
        manager.session() as session,
    ):
        await (await session.exec(f"setsid sleep {marker} & sleep {marker} &")).wait()
        await session.exec(["sleep", marker])

    def there() -> bool:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if file.read().endswith(f"sleep\0{marker}\0".encode()):
                        return True
            except OSError:
                continue
        return False

    await until(lambda: not there())


async def test_a_process_server_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resize = 'elif kind == "exec_resize":'
    change = ("processes.server", resize, f"{resize}\n            {{}}[process.number]")
    code = changed_bundle([change])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        process = await session.exec(["sleep", "600"], pty=(24, 80))
        await process.resize(25, 80)
        lost = r"process server is gone: KeyError\(1\) in .*processes.server.*:\d+"
        with anyio.fail_after(60), pytest.raises(CellLostError, match=lost):
            await process.wait()

        assert (await (await session.exec(["true"])).wait()).ok


async def test_a_command_of_which_the_cell_says_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    starts = 'self._send({"type": "exec_started", "id": number, "pid": process.pid})'
    code = changed_bundle([("processes.server", starts, "pass")])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    monkeypatch.setattr(table, "_START_SECONDS", 0.1)
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        with anyio.fail_after(60), pytest.raises(CellLostError, match="did not start"):
            await session.exec(["sleep", "600"])


@pytest.mark.parametrize(
    "nonsense",
    [
        '"exec_lost"',
        '"exec_started", "id": 1, "pid": "many"',
        '"exec_ended", "id": 1, "wait_status": 0, "reason": None,'
        ' "cpu_ms": 0, "peak_memory_bytes": 0, "oom_kills": 0, "wall_ms": 10**400',
    ],
)
async def test_a_cell_that_speaks_nonsense_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, nonsense: str
) -> None:
    resize = 'elif kind == "exec_resize":'
    says = f'{resize}\n            self._send({{"type": {nonsense}}}); raise SystemExit'
    code = changed_bundle([("processes.server", resize, says)])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(launcher_start, name, lambda: code)
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as other,
    ):
        await other.run("x = 5")
        async with manager.session() as session:
            process = await session.exec(["sleep", "600"], pty=(24, 80))
            await process.resize(25, 80)
            with anyio.fail_after(60), pytest.raises(CellLostError):
                await process.wait()

        assert (await other.run("x")).value == 5
