"""Commands in a session: how they start, speak, and end; on every backend."""

from __future__ import annotations

import hashlib
import signal

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import Limits, SandboxManager, SandboxSession

from ...conftest import SUBPROCESS, BackendRow

pytestmark = pytest.mark.anyio


async def test_a_command_ends_with_its_output_and_code(session: SandboxSession) -> None:
    process = await session.exec("echo out; echo err >&2; exit 3")
    result = await process.wait()

    assert (result.status, result.exit_code) == ("exit", 3)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.usage.wall_ms > 0 and result.usage.peak_memory_bytes > 0
    assert not process.running
    assert session.processes() == ()


async def test_a_list_is_a_program_and_its_arguments(session: SandboxSession) -> None:
    result = await (await session.exec(["printf", "%s|", "a b", "$HOME", "*"])).wait()

    assert (result.status, result.stdout) == ("ok", "a b|$HOME|*|")


async def test_a_long_command_arrives_whole(session: SandboxSession) -> None:
    words = ["x" * 65_536] * 16
    result = await (await session.exec(["printf", "%s", *words])).wait()

    assert result.ok
    assert len(result.stdout_bytes) + result.truncated.stdout == 1 << 20


async def test_input_is_read_to_its_end(session: SandboxSession) -> None:
    data = bytes(range(256)) * 8192
    process = await session.exec(["sha256sum"], stdin=data)
    result = await process.wait()

    assert result.ok
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_input_and_output_go_on_together(session: SandboxSession) -> None:
    process = await session.exec(["cat"], stdin="pipe")
    output = process.output()
    with anyio.fail_after(30):
        await process.write(b"one\n")
        assert await anext(output) == ("stdout", b"one\n")
        await process.write(b"two\n")
        assert await anext(output) == ("stdout", b"two\n")
        await process.close_stdin()
        assert [piece async for piece in output] == []
        assert (await process.wait()).ok
    with pytest.raises(InvalidInputError, match="no open input"):
        await process.write(b"three")


async def test_nothing_to_read_is_the_end_of_input(session: SandboxSession) -> None:
    assert (await (await session.exec(["cat"])).wait()).stdout == ""


async def test_the_environment_and_the_folder(session: SandboxSession) -> None:
    await session.write_file("inner/file.txt", "here")
    process = await session.exec(
        "pwd; cat file.txt; echo $WHO; id -u", cwd="inner", env={"WHO": "me"}
    )
    result = await process.wait()

    folder, rest = result.stdout.split("\n", 1)
    assert folder.endswith("/inner")
    assert rest == "hereme\n10001\n"


async def test_commands_and_bash_know_that_there_is_no_network(
    session: SandboxSession,
) -> None:
    """npx and uv else try for minutes."""
    line = "echo $npm_config_offline $UV_OFFLINE"
    usual = await (await session.exec(line)).wait()
    named = await (await session.exec(line, env={"UV_OFFLINE": "0"})).wait()
    program = await session.run(line, language="bash")

    assert [usual.stdout, named.stdout] == ["true 1\n", "true 0\n"]
    assert program.stdout == "true 1\n"


@pytest.mark.namespaces
async def test_the_configuration_says_more_than_the_mode_of_the_network() -> None:
    line = "echo $npm_config_offline $UV_OFFLINE"
    config = SUBPROCESS.config(env={"UV_OFFLINE": "0"})
    async with SandboxManager(config) as manager, manager.session() as session:
        usual = await (await session.exec(line)).wait()
        named = await (await session.exec(line, env={"UV_OFFLINE": "2"})).wait()
        program = await session.run(line, language="bash")

    stdouts = [result.stdout for result in (usual, program, named)]
    assert stdouts == ["true 0\n", "true 0\n", "true 2\n"]


async def test_commands_and_runs_share_files_and_go_on_together(
    session: SandboxSession,
) -> None:
    await session.run("x = 41")
    waiting = await session.exec("until [ -e go ]; do sleep 0.05; done; echo went")
    result = await session.run("open('go', 'w').close()\nx + 1")
    with anyio.fail_after(30):
        ended = await waiting.wait()

    assert (result.value, ended.stdout) == (42, "went\n")


async def test_a_command_starts_while_a_run_is_on(session: SandboxSession) -> None:
    results = []

    async def run() -> None:
        code = (
            "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n'went'"
        )
        results.append((await session.run(code)).value)

    async with anyio.create_task_group() as tasks:
        first = await session.exec(["true"])
        await first.wait()
        tasks.start_soon(run)
        with anyio.fail_after(30):
            ended = await (await session.exec("sleep 0.2; touch go; echo done")).wait()

    assert (ended.stdout, results) == ("done\n", ["went"])


def counts(argument: str) -> list[str]:
    """Return a command that prints how many processes have this last argument."""
    code = (
        "import glob\n"
        "lines = [open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline')]\n"
        f"print(sum(line.endswith(b'sleep\\0{argument}\\0') for line in lines))"
    )
    return ["python3", "-c", code]


async def test_a_run_does_not_end_commands_or_what_they_left(
    session: SandboxSession, backend: BackendRow
) -> None:
    left = await session.exec("(sleep 600; echo x) & echo $!")
    pid = int((await left.wait()).stdout)
    running = await session.exec(["sleep", "600"])
    await session.run(
        "import subprocess\nsubprocess.Popen(['sleep', '601']).pid", fresh=True
    )
    strays = await (await session.exec(counts("601"))).wait()
    there = await (await session.exec(f"kill -0 {pid}")).wait()

    assert strays.stdout == "0\n"
    # gVisor has no subreapers.
    assert there.ok is (backend.name != "runsc")
    assert running.running
    assert session.processes() == (running,)


@pytest.mark.parametrize(
    ("command", "status", "name"),
    [
        ("kill -SEGV $$", "crashed", "SIGSEGV"),
        ("kill -TERM $$", "crashed", "SIGTERM"),
        ("kill -XCPU $$", "cpu_limit", "SIGXCPU"),
        ("kill -KILL $$", "killed", "SIGKILL"),
    ],
)
async def test_signals_that_end_a_command_as_they_end_a_run(
    session: SandboxSession, command: str, status: str, name: str
) -> None:
    result = await (await session.exec(command)).wait()
    number = getattr(signal, name)
    run = await session.run(f"import os; os.kill(os.getpid(), {number})", fresh=True)

    assert (result.status, result.signal, result.exit_code) == (status, name, None)
    assert (run.status, run.signal, run.exit_code) == (status, name, None)


async def test_a_time_limit_ends_its_whole_session(session: SandboxSession) -> None:
    process = await session.exec("sleep 602 & sleep 602", timeout_seconds=0.3)
    with anyio.fail_after(30):
        result = await process.wait()
    left = await (await session.exec(counts("602"))).wait()

    assert (result.status, result.signal) == ("timeout", "SIGKILL")
    assert left.stdout == "0\n"


async def test_a_kill_is_cancelled_and_a_signal_can_be_caught(
    session: SandboxSession,
) -> None:
    killed = await session.exec(["sleep", "600"])
    await killed.kill()
    asked = await session.exec(
        "trap 'echo bye; exit 5' TERM; echo up; sleep 600 & wait"
    )
    output = asked.output()
    with anyio.fail_after(30):
        assert (await killed.wait()).status == "cancelled"
        assert await anext(output) == ("stdout", b"up\n")
        await asked.signal(signal.SIGTERM)
        result = await asked.wait()

    assert (result.exit_code, result.stdout) == (5, "up\nbye\n")


async def test_a_terminal(session: SandboxSession) -> None:
    process = await session.exec(["bash", "--norc", "-i"], pty=(30, 100))
    with anyio.fail_after(30):
        await process.write(b"stty size; tty; echo $((6*7)); [ -t 1 ] && echo yes\n")
        await process.resize(40, 120)
        await process.write(b"stty size; exit 4\n")
        result = await process.wait()

    assert result.exit_code == 4
    lines = result.stdout.replace("\r", "").split("\n")
    assert "30 100" in lines or "40 120" in lines
    assert "40 120" in lines
    assert {"42", "yes"} <= set(lines)
    assert any(line.startswith("/dev/pts/") for line in lines)


async def test_ctrl_c_on_a_terminal_interrupts(
    session: SandboxSession, backend: BackendRow
) -> None:
    process = await session.exec("echo up; sleep 600", pty=(24, 80))
    output = process.output()
    with anyio.fail_after(30):
        assert (await anext(output))[1].startswith(b"up")
        await process.write(b"\x03")
        if backend.name == "runsc":
            # Terminals of gVisor pass the character on and send no signal.
            await process.kill()
        result = await process.wait()

    if backend.name == "runsc":
        assert result.status == "cancelled"
    else:
        assert result.signal == "SIGINT" or result.exit_code == 130


async def test_output_beyond_the_limit_loses_its_middle(
    session: SandboxSession,
) -> None:
    cap = session.limits.output_bytes
    result = await (await session.exec(f"yes | head -c {cap * 3}; echo end")).wait()

    assert len(result.stdout_bytes) == cap
    assert result.truncated.stdout == cap * 2 + 4
    assert result.stdout.endswith("y\nend\n")


async def test_a_reader_holds_the_command_up_and_loses_nothing(
    session: SandboxSession,
) -> None:
    size = 3_000_000
    process = await session.exec(f"yes | head -c {size}; echo end")
    seen = 0
    with anyio.fail_after(60):
        async for _, data in process.output():
            seen += len(data)
        assert (await process.wait()).ok

    assert seen >= size


async def test_output_waits_for_its_first_reader(session: SandboxSession) -> None:
    size = 3_000_000
    process = await session.exec(f"yes | head -c {size}; echo end")
    idle = await session.exec("yes | head -c 3000000; touch done", background=True)
    with anyio.fail_after(60):
        assert (await idle.wait()).ok
        # The first one had as much time, and waits.
        assert process.running
        seen = b"".join([data async for _, data in process.output()])
        latest = b"".join([data async for _, data in idle.output()])

    assert len(seen) == size + 4
    assert len(latest) <= 65_536


async def test_a_later_reader_begins_with_what_came_last(
    session: SandboxSession,
) -> None:
    process = await session.exec("seq 100000; echo up; cat", stdin="pipe")
    with anyio.fail_after(60):
        async for _, data in process.output():
            if data.endswith(b"up\n"):
                break
        output = process.output()
        first = (await anext(output))[1]
        await process.close_stdin()
        rest = b"".join([data async for _, data in output])

    assert first + rest and (first + rest).endswith(b"99999\n100000\nup\n")
    assert len(first + rest) <= 65_536


async def test_what_cannot_be_started_says_why(session: SandboxSession) -> None:
    with pytest.raises(InvalidInputError, match="no-such-program"):
        await session.exec(["no-such-program"])
    with pytest.raises(InvalidInputError, match="nowhere"):
        await session.exec(["true"], cwd="nowhere")
    with pytest.raises(InvalidInputError, match="NUL"):
        await session.exec(["echo", "\0"])
    with pytest.raises(InvalidInputError, match="1572864"):
        await session.exec(["echo", "x" * 2_000_000])
    for command, reason in (("/etc/passwd", "denied"), ("no-such", "missing")):
        with pytest.raises(InvalidInputError) as caught:
            await session.exec([command])
        assert caught.value.details == {"reason": reason}
    with pytest.raises(InvalidInputError, match="timeout"):
        await session.exec(["true"], timeout_seconds=0)
    with pytest.raises(InvalidInputError, match="terminal"):
        await session.exec(["true"], pty=(0, 80))

    assert (await (await session.exec(["true"])).wait()).ok


async def test_the_end_of_a_session_ends_its_commands(backend: BackendRow) -> None:
    config = backend.config()
    async with SandboxManager(config) as manager:
        async with manager.session() as session:
            process = await session.exec(["sleep", "600"])
        with anyio.fail_after(30), pytest.raises(CellLostError):
            await process.wait()
        with pytest.raises(CellLostError):
            await session.exec(["true"])


async def test_many_at_once_and_no_more(session: SandboxSession) -> None:
    processes = [await session.exec(["sleep", "600"]) for _ in range(40)]
    assert len(session.processes()) == 40
    async with anyio.create_task_group() as tasks:
        for process in processes:
            tasks.start_soon(process.kill)
    with anyio.fail_after(60):
        statuses = {(await process.wait()).status for process in processes}

    assert statuses == {"cancelled"}


async def test_a_command_that_takes_too_much_memory(backend: BackendRow) -> None:
    config = backend.config(limits=Limits(memory_mib=128))
    async with SandboxManager(config) as manager, manager.session() as session:
        process = await session.exec(["python3", "-c", "x = b'x' * (1 << 30)"])
        with anyio.fail_after(60):
            result = await process.wait()
        assert result.status in ("out_of_memory", "exit"), result
        if result.status == "exit":
            assert "MemoryError" in result.stderr
        assert (await session.run("1 + 1")).value == 2
