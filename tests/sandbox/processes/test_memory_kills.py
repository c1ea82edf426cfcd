"""A kill for memory is the end of one program or command, and of nothing else."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import aclosing
from types import SimpleNamespace

import anyio
import pytest

from toolcell.core import CellLostError
from toolcell.sandbox import (
    ExecutionResult,
    Limits,
    Process,
    SandboxConfig,
    SandboxManager,
    Session,
)
from toolcell.sandbox.backends import docker
from toolcell.sandbox.cell.accounting.usage import ResourceAccounting
from toolcell.sandbox.cell.supervisor.child import open_pipes
from toolcell.sandbox.cell.supervisor.run import Run
from toolcell.sandbox.cell.wire.channel import SupervisorChannel
from toolcell.sandbox.cell.wire.contract import WINDOW_BYTES
from toolcell.sandbox.cell.wire.frames import RUN_DEFAULTS, FrameDecoder, encode
from toolcell.sandbox.spi import MEMORY_KILL

from ...conftest import SUBPROCESS, BackendRow
from ...support.cells.stopped_cell import signal_cell

pytestmark = pytest.mark.anyio

LIMITS = Limits(memory_mib=64)
MORE = WINDOW_BYTES + 25_000
"""More output than is read ahead, and less than its pipe holds besides."""
FILL = "exec tail /dev/zero"
FILLS = "import os\nos.execvp('tail', ['tail', '/dev/zero'])"
ENDS_ITSELF = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


async def end_of(command: Process) -> ExecutionResult:
    with anyio.fail_after(60):
        return await command.wait()


async def fill(session: Session) -> None:
    command = await session.exec(FILL)
    assert (await end_of(command)).status == "out_of_memory"


async def test_no_later_run_ends_by_it(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(limits=LIMITS)) as manager:
        async with manager.session() as session:
            await session.run("kept = 1")
            branch = await session.fork()
            await end_of(await session.exec("tail /dev/zero; true"))
            raised = await session.run("raise MemoryError")
            await end_of(await session.exec("tail /dev/zero; true"))
            ends = [await each.run(ENDS_ITSELF) for each in (branch, session)]

    assert (raised.status, raised.self_reported) == ("out_of_memory", True)
    assert [end.status for end in ends] == ["killed"] * 2


async def test_no_command_beside_it_ends_by_it(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(limits=LIMITS)) as manager:
        async with manager.session() as session:
            by_host = await session.exec("tail /dev/zero; echo; sleep 600")
            async with aclosing(by_host.output()) as output:
                await anext(output)
            by_command = await session.exec("sleep 600")
            run = await session.run(FILLS)
            await fill(session)
            await session.exec(f"kill -9 {by_command.pid}")
            await by_host.signal(signal.SIGKILL)
            ends = [await end_of(each) for each in (by_command, by_host)]

    assert run.status == "out_of_memory"
    assert [end.status for end in ends] == ["killed"] * 2


async def test_no_run_beside_it_ends_by_it(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(limits=LIMITS)) as manager:
        async with manager.session() as session, anyio.create_task_group() as tasks:

            async def let_go() -> None:
                await fill(session)
                await session.write_file("go", b"")

            tasks.start_soon(let_go)
            run = await session.run(WAITS + ENDS_ITSELF)

    assert run.status == "killed"


async def test_a_run_is_told_of_it_before_anybody_reads(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(limits=LIMITS)) as manager:
        async with manager.session() as session, anyio.create_task_group() as tasks:

            async def let_go() -> None:
                unread = await session.exec(f"head -c {MORE} /dev/zero; {FILL}")
                is_there = f"kill -0 {unread.pid} 2> /dev/null"
                await end_of(
                    await session.exec(f"while {is_there}; do sleep 0.01; done")
                )
                await session.write_file("go", b"")

            tasks.start_soon(let_go)
            run = await session.run(WAITS + ENDS_ITSELF)

    assert run.status == "killed"


async def test_a_run_whose_child_ends_by_it_says_so(backend: BackendRow) -> None:
    code = "import subprocess\nsubprocess.run(['sh', '-c', 'tail /dev/zero; true'])"
    async with SandboxManager(backend.config(limits=LIMITS)) as manager:
        async with manager.session() as session:
            run = await session.run(code)
            later = await session.run("1")

    if run.usage.enforced_by["memory_mib"] == "cgroup":
        assert (run.status, run.warnings) == ("ok", (MEMORY_KILL,))
        assert later.warnings == ()
    else:
        # A watchdog ends the whole program.
        assert (run.status, run.warnings) == ("out_of_memory", ())


async def test_no_cell_is_lost_by_it() -> None:
    async with SandboxManager(SUBPROCESS.config(limits=LIMITS)) as manager:
        async with manager.session() as session:
            await session.run("1")
            await fill(session)
            signal_cell(session, signal.SIGKILL)
            with pytest.raises(CellLostError, match="the cell ended"):
                await session.run("1")


@pytest.mark.parametrize("kills", [0, 1])
def test_a_program_that_it_ends_before_it_begins_lacked_memory(
    monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    child, pipes = open_pipes(None)
    child.pid = 7
    usage = resource.getrusage(resource.RUSAGE_SELF)
    waits = iter([(child.pid, signal.SIGKILL, usage), (0, 0, None)])
    monkeypatch.setattr(os, "wait4", lambda *_: next(waits))
    count = os.memfd_create("oom")
    [frame] = FrameDecoder().feed(encode({"type": "run", "language": ""}, b"1"))
    request = {**RUN_DEFAULTS, **frame.header, "code_bytes": 1, "output_bytes": 1}
    reader, writer = os.pipe()
    accounting = ResourceAccounting({"oom": count}, adopts=False)
    run = Run(SupervisorChannel(reader, writer), child, request, accounting, -1)
    run.hand_over(frame)
    os.write(count, b"oom_kill %d\n" % kills)
    pipes.close()
    run.reap()
    run.finish(None)
    [sent] = FrameDecoder().feed(os.read(reader, 1 << 16))

    assert sent.header.get("oom_kills", 0) == kills
    assert ("setup_error" in sent.header) is (kills == 0)
    accounting.close()
    for fd in (count, reader, writer):
        os.close(fd)


async def test_an_engine_is_asked_for_later_ones_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def events(since: str, **_: object) -> list[bytes]:
        asked.append(float(since))
        return []

    clock = SimpleNamespace(time=lambda: 1000.75, monotonic=lambda: 50.5)
    api = SimpleNamespace(events=events)
    monkeypatch.setattr(docker, "time", clock)
    config = SandboxConfig(backend="docker", docker_host="tcp://127.0.0.1:1")
    backend = docker.DockerBackend(config)
    monkeypatch.setattr(backend, "_client", SimpleNamespace(api=api))

    assert not await backend.reported_oom("made", since=50.25)
    assert asked == [1000.5]
