"""What a program finds around it is what it would find on a plain machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolcell.sandbox import Limits, SandboxManager
from toolcell.sandbox.backends.docker_hosts import HostsFile

from ...conftest import CONFINED, SUBPROCESS, BackendRow, run_apart

pytestmark = pytest.mark.anyio

SIGNALS = """
import signal
each = {n: str(signal.getsignal(n)) for n in range(1, signal.NSIG)}
each = {n: 'handler' if 'default_int' in how else how for n, how in each.items()}
# A program hears by this signal, which nothing sends else, that it will be killed.
if 'function' in each[signal.SIGURG]: each[signal.SIGURG] = '0'
print(sorted(each.items()), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
CHILD = f"""
import subprocess, sys
print(subprocess.check_output([sys.executable, '-I', '-c', {SIGNALS!r}], text=True))
"""

OWN_PROCESS = """
import os
own, pid = {}, os.getpid()
for name in ("cmdline", "maps", "stat", "statm", "status"):
    with open(f"/proc/self/{name}", "rb") as file:
        own[name] = file.read()
print(b".so" in own["maps"], own["stat"].split()[0] == b"%d" % pid, all(own.values()))
print(b"Pid:\\t%d\\n" % pid in own["status"], sorted(os.listdir("/proc/self/fd"))[:3])
"""
ALL_OF_A_PROCESS = """
import json, os
names = "auxv cgroup cmdline environ fd fdinfo io limits maps mem mountinfo mounts"
names += " net net/tcp oom_score_adj pagemap root smaps stat statm status task"
def found():
    opened = []
    for name in names.split():
        try:
            os.close(os.open(f"/proc/self/{name}", os.O_RDONLY))
            opened.append(name)
        except OSError:
            pass
    return opened
own, (read, write) = found(), os.pipe()
if os.fork() == 0:
    os.write(write, json.dumps(found()).encode())
    os._exit(0)
os.wait()
[own, json.loads(os.read(read, 4096))]
"""


def plain_signals() -> str:
    """Return what a python3 finds that nobody has prepared."""
    command = ["env", "--default-signal", sys.executable, "-I", "-c", SIGNALS]
    return subprocess.check_output(command, text=True).strip()


@contextmanager
def ignoring(*numbers: int) -> Iterator[None]:
    """Ignore signals, as what starts a host may."""
    ours = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


async def test_a_process_finds_itself_as_a_plain_one(sandbox: SandboxManager) -> None:
    command = [sys.executable, "-I", "-c", OWN_PROCESS]
    plain = subprocess.check_output(command, text=True)
    async with sandbox.session() as session:
        process = await session.exec(["python3", "-I", "-c", OWN_PROCESS])
        printed = [
            (await sandbox.run(OWN_PROCESS)).stdout,
            (await session.run(OWN_PROCESS)).stdout,
            (await session.run(OWN_PROCESS, fresh=True)).stdout,
            (await process.wait()).stdout,
        ]
    assert printed == [plain] * 4


async def test_a_confined_process_finds_no_more_of_itself_and_its_forks_nothing() -> (
    None
):
    async with (
        SandboxManager(CONFINED.config()) as manager,
        manager.session() as session,
    ):
        result = await session.run(ALL_OF_A_PROCESS)
        branch = await session.fork()
        forked = await branch.run(ALL_OF_A_PROCESS)
    own = ["cmdline", "fd", "maps", "stat", "statm", "status"]
    assert result.value == [own, []], result.stderr
    assert forked.value == [[], []], forked.stderr


@pytest.mark.full
async def test_a_confined_process_finds_itself_when_the_kernel_forgot_files() -> None:
    caches = Path("/proc/sys/vm/drop_caches")
    if not os.access(caches, os.W_OK):
        pytest.skip("this user cannot have the kernel forget files")
    async with (
        SandboxManager(CONFINED.config()) as manager,
        manager.session() as session,
    ):
        await session.run("1")
        wait = "import sys; sys.stdin.read()\n"
        command = ["python3", "-I", "-c", wait + OWN_PROCESS]
        process = await session.exec(command, stdin="pipe")
        # Files of /proc that nobody has open.
        caches.write_text("2")
        await process.close_stdin()
        run, ended = await session.run(OWN_PROCESS), await process.wait()
    assert (run.status, ended.exit_code) == ("ok", 0), run.stderr + ended.stderr


async def test_signals_are_those_of_a_plain_python(sandbox: SandboxManager) -> None:
    plain = plain_signals()
    async with sandbox.session() as session:
        for code in (SIGNALS, CHILD):
            runs = [
                await sandbox.run(code),
                await session.run(code),
                await session.run(code, fresh=True),
            ]
            assert [run.stdout.strip() for run in runs] == [plain] * 3


async def test_ctrl_c_is_heard_by_programs_and_their_children(
    sandbox: SandboxManager,
) -> None:
    code = """
import _thread, os, signal, subprocess, sys
heard = []
for how in (_thread.interrupt_main, lambda: os.kill(os.getpid(), signal.SIGINT)):
    try:
        how()
        for _ in range(1000): pass
    except KeyboardInterrupt:
        heard.append('here')
pipes = {name: subprocess.PIPE for name in ('stdin', 'stdout', 'stderr')}
says = 'print(input(), flush=True); input()'
for command in ([sys.executable, '-I', '-c', says], ['cat']):
    child = subprocess.Popen(command, bufsize=0, **pipes)
    # An interpreter that is interrupted while it starts ends with 1.
    child.stdin.write(b'up\\n')
    child.stdout.readline()
    # Python misses one that comes just before it begins to read.
    while child.poll() is None:
        child.send_signal(signal.SIGINT)
        try: child.wait(3)
        except subprocess.TimeoutExpired: pass
    heard.append(child.poll())
    child.communicate()
heard
"""
    bash = "trap 'echo heard' INT; kill -INT $$; echo and on"
    async with sandbox.session() as session:
        for run in (await sandbox.run(code), await session.run(code)):
            assert run.value == ["here", "here", -2, -2], run.stderr
        assert (await sandbox.run(bash, language="bash")).stdout == "heard\nand on\n"
        left = await sandbox.run("import os, signal\nos.kill(os.getpid(), 2)")
        assert left.exception is not None
        assert left.exception.type == "KeyboardInterrupt"


def test_what_the_host_blocks_and_ignores_stays_with_the_host() -> None:
    async def seen() -> list[object]:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        async with SandboxManager(SUBPROCESS.config()) as manager:
            found: list[object] = []
            for code in (SIGNALS, CHILD):
                found.append((await manager.run(code)).stdout.strip())
            async with manager.session() as session:
                short = Limits(wall_seconds=1)
                # A busy machine may not let it end within half a second.
                for _ in range(8):
                    spun = await session.run("while True: pass", limits=short)
                    if spun.state == "kept":
                        break
                return [*found, spun.status, spun.state]

    plain = plain_signals()
    with ignoring(signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        assert run_apart(seen) == [plain, plain, "timeout", "kept"]


@pytest.mark.namespaces
async def test_a_program_holds_no_module_that_only_other_cells_need() -> None:
    others = ("toolcell_cell.launcher.confined", "toolcell_cell.notifier.main")
    code = (
        f"import sys; [n for n in {(*others, 'hashlib', 'random')} if n in sys.modules]"
    )
    async with SandboxManager(SUBPROCESS.config()) as manager:
        result = await manager.run(code)

    assert result.value == [], result


async def test_the_machine_s_own_names_lead_to_itself(sandbox: SandboxManager) -> None:
    code = """
import socket
found = {}
for name in ('localhost', socket.gethostname()):
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.create_server((name, 0), family=family) as server:
            where = (name, server.getsockname()[1])
            with socket.create_connection(where, 5), server.accept()[0]:
                found[f'{name} {family.name}'] = server.getsockname()[0]
found
"""
    result = await sandbox.run(code)

    assert result.value == {
        "localhost AF_INET": "127.0.0.1",
        "localhost AF_INET6": "::1",
        "cell AF_INET": "127.0.0.1",
        "cell AF_INET6": "::1",
    }, result.stderr


async def test_an_engine_that_cannot_see_the_names_does_without(
    backend: BackendRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.name != "docker":
        pytest.skip("only Docker engines are asked for a file")
    monkeypatch.setattr(HostsFile, "_path", "/nowhere/hosts")
    async with SandboxManager(backend.config()) as manager:
        assert (await manager.run("1")).value == 1


async def test_python_is_the_program_s_own(sandbox: SandboxManager) -> None:
    code = """
import json, os, subprocess, sys
ask = 'import json, sys; print(json.dumps([sys.version, sys.prefix, sys.path[1:]]))'
names = ['python', 'python3', 'python%d.%d' % sys.version_info[:2]]
said = [json.loads(subprocess.check_output([name, '-c', ask])) for name in names]
pip = subprocess.run(['pip', '--version'], capture_output=True, text=True)
try:
    import pip as own
    fits = pip.returncode == 0 and os.path.dirname(own.__file__) in pip.stdout
except ImportError:
    fits = pip.returncode != 0 and 'No module named pip' in pip.stderr
[[each[:2] == [sys.version, sys.prefix] for each in said], fits,
 os.access('/python/bin', os.W_OK)]
"""
    result = await sandbox.run(code)
    assert result.value == [[True, True, True], True, False], result.stderr
    bash = await sandbox.run(
        "python -c 'print(1)'; python3 -c 'print(2)'", language="bash"
    )
    assert bash.stdout == "1\n2\n"


async def test_pythonpath_leads_imports(backend: BackendRow) -> None:
    env = {"PYTHONPATH": "lib:/work/other::", "PYTHONHASHSEED": "0"}
    files = {"lib/mine.py": "name = 'mine'", "other/its.py": "name = 'its'"}
    code = """
import subprocess, sys
import its, mine
child = 'import sys, its; print(sys.flags.hash_randomization, its.name)'
said = subprocess.check_output([sys.executable, '-c', child], text=True)
[sys.path[:4], [mine.name, its.name], said]
"""
    paths = ["/work", "/work/lib", "/work/other", "/work"]
    async with SandboxManager(backend.config(env=env)) as manager:
        fresh = await manager.run(code, files=files)
        assert fresh.value == [paths, ["mine", "its"], "0 its\n"], fresh.stderr
        async with manager.session() as session:
            for path, text in files.items():
                await session.write_file(path, text)
            first = await session.run("import sys\n'mine' in sys.modules")
            branch = await session.fork()
            await branch.write_file("lib/mine.py", "name = 'the branch'")
            kept = await branch.run("import mine\nmine.name")
            assert (first.value, kept.value) == (False, "the branch"), kept.stderr


async def test_output_streams_are_what_they_lead_to(sandbox: SandboxManager) -> None:
    code = """
import sys
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors='backslashreplace', line_buffering=True)
    print('seen', file=stream)
[sys.stdout.seekable(), sys.stderr.seekable()]
"""
    async with sandbox.session() as session:
        for run in (
            await sandbox.run(code),
            await session.run(code),
            await session.run(code, fresh=True),
        ):
            assert (run.value, run.stdout, run.stderr) == (
                [False, False],
                "seen\n",
                "seen\n",
            )


LOW_PORT = """
import socket
with socket.socket() as server:
    server.bind(("127.0.0.1", 80))
    server.listen()
    with socket.create_connection(("127.0.0.1", 80)) as way:
        print(way.getpeername()[1])
"""


@pytest.mark.promise("QX12")
async def test_programs_serve_at_any_port(sandbox: SandboxManager) -> None:
    result = await sandbox.run(LOW_PORT)

    assert (result.status, result.stdout) == ("ok", "80\n"), result.stderr


@pytest.mark.promise("QX12")
@pytest.mark.namespaces
async def test_a_cell_that_is_used_again_has_all_ports() -> None:
    async with SandboxManager(SUBPROCESS.config(programs_per_cell=4)) as sandbox:
        said = [(await sandbox.run(LOW_PORT)).stdout for _ in range(4)]

    assert said == ["80\n"] * 4
