"""Programs that take all there is, and programs that will not end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import Limits, SandboxManager

from ..conftest import PROCESSES, BackendRow

pytestmark = pytest.mark.anyio

IN_A_CELL = (
    "import os\nassert {'MPLBACKEND', 'TMPDIR'} <= set(os.environ)\n"
    "assert 'PYTEST_CURRENT_TEST' not in os.environ\n"
)


async def innocent(sandbox: SandboxManager) -> None:
    assert (await sandbox.run("6 * 7")).value == 42


@pytest.mark.promise("E-45")
@pytest.mark.smoke
async def test_a_fork_bomb_meets_the_limit(sandbox: SandboxManager) -> None:
    code = f"""{IN_A_CELL}
import signal
made, stopped = 0, False
for _ in range(1000):
    try:
        if os.fork() == 0:
            while True: signal.pause()
    except OSError:
        stopped = True
        break
    made += 1
[made, stopped]
"""
    async with sandbox.session() as session:
        result = await session.run(code, fresh=True)
        await innocent(sandbox)
        after = await session.run(PROCESSES, fresh=True)

    if result.status == "out_of_memory":
        # A fork takes 4 MiB of memory in gVisor, which has less to share.
        assert result.usage.enforced_by["memory_mib"] == "watchdog"
    else:
        assert isinstance(result.value, list), result.stderr
        made, stopped = result.value
        assert stopped is True
        assert isinstance(made, int) and made <= 64
    # The supervisor, what forks for it, and the program that looks.
    assert after.value == 3


@pytest.mark.promise("E-45", "E-55", "E-56")
async def test_children_that_breed_end_at_the_deadline(sandbox: SandboxManager) -> None:
    code = f"""{IN_A_CELL}
import signal
for number in range(1, 32):
    if number not in (9, 19):
        signal.signal(number, signal.SIG_IGN)
while True:
    try: os.fork(), os.setsid()
    except OSError: pass
"""
    result = await sandbox.run(code, limits=Limits(wall_seconds=1))

    assert result.status == "timeout"
    await innocent(sandbox)


MEMORY = {
    "list": "x = []\nwhile True: x.append(b'x' * (1 << 20))",
    "bytearray": "x = bytearray(700 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1",
    "mmap": "import mmap\nx = mmap.mmap(-1, 700 << 20)\n"
    "for i in range(0, len(x), 4096): x[i] = 1",
    "text": "x = 'x'\nwhile True: x += x",
    "dict": "x = {}\nwhile True: x[len(x)] = str(len(x)) * 10",
}


@pytest.mark.promise("E-46", "E-63")
@pytest.mark.parametrize("name", MEMORY)
async def test_a_memory_bomb_is_out_of_memory(
    sandbox: SandboxManager, backend: BackendRow, name: str
) -> None:
    async with sandbox.session() as session:
        result = await session.run(MEMORY[name], fresh=True)
        # The supervisor was not the one that the kernel chose.
        after = await session.run("'alive'", fresh=True)

    assert (result.status, result.self_reported) == ("out_of_memory", False)
    assert after.value == "alive"


@pytest.mark.promise("E-46", "E-63")
async def test_memory_of_many_processes_is_summed(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = f"""{IN_A_CELL}
import time
for _ in range(20):
    if os.fork() == 0:
        x = bytearray(60 << 20)
        for i in range(0, len(x), 4096): x[i] = 1
        time.sleep(600)
time.sleep(600)
"""
    async with sandbox.session() as session:
        limits = Limits(wall_seconds=4 if backend.held_by_kernel else 40)
        result = await session.run(code, fresh=True, limits=limits)
        after = await session.run("'alive'", fresh=True)

    # The kernel picks the children one by one; the program itself may be left.
    assert result.status in ("out_of_memory", "timeout")
    if not backend.held_by_kernel:
        assert result.status == "out_of_memory"
    assert after.value == "alive"


@pytest.mark.promise("E-58")
async def test_what_the_kernel_counts_by_user_is_not_the_hosts(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    if backend.name != "subprocess":
        pytest.skip("an engine's containers have a user of their own")
    code = """
import ctypes, os, signal, resource
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, {40})
sent = 0
while sent < 100_000 and libc.sigqueue(os.getpid(), 40, None) == 0: sent += 1
queues = 0
while libc.mq_open(b"/q%d" % queues, os.O_CREAT | os.O_RDWR, 0o600, None) >= 0:
    queues += 1
locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
[sent, queues, locked]
"""
    result = await sandbox.run(code)

    assert isinstance(result.value, list), result.stderr
    for used, most in zip(result.value, (4096, 6, 65_536), strict=True):
        assert isinstance(used, int)
        assert used <= most


@pytest.mark.promise("E-63")
async def test_programs_go_before_the_host(sandbox: SandboxManager) -> None:
    result = await sandbox.run("int(open('/proc/self/oom_score_adj').read())")

    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert isinstance(result.value, int)
    assert result.value > own


FILL = """
import os
sizes = {}
for folder in ("/work", "/tmp", "/dev/shm"):
    path, size = f"{folder}/big", 0
    try:
        with open(path, "wb", buffering=0) as file:
            while size < 400 << 20:
                size += file.write(bytes(1 << 20))
    except OSError:
        pass
    os.unlink(path)
    place = os.statvfs(folder)
    sizes[folder] = [size >> 20, place.f_blocks * place.f_frsize >> 20]
sizes
"""


@pytest.mark.promise("E-19", "E-47", "E-48")
async def test_scratch_space_is_capped(sandbox: SandboxManager) -> None:
    result = await sandbox.run(FILL)

    sizes: Any = result.value
    assert isinstance(sizes, dict), result.stderr
    assert sizes.keys() == {"/work", "/tmp", "/dev/shm"}
    # Each is a file system of its own, and none is the host's.
    assert all(0 < filled <= whole <= 64 for filled, whole in sizes.values()), sizes


@pytest.mark.promise("E-48")
async def test_reserved_space_is_capped(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = """
import os
said = {}
with open("/work/sparse", "wb") as file:
    try:
        os.posix_fallocate(file.fileno(), 0, 1 << 32)
        said["fallocate"] = "done"
    except OSError as error:
        said["fallocate"] = error.strerror
    os.truncate("/work/sparse", 1 << 34)
said["blocks"] = os.stat("/work/sparse").st_blocks * 512
said
"""
    result = await sandbox.run(code)

    assert result.status in ("ok", "error", "out_of_memory", "disk_limit", "killed")
    if isinstance(result.value, dict):
        assert result.value["fallocate"] != "done"
        # gVisor counts the holes of a sparse file, too.
        sparse = backend.name != "runsc"
        assert not sparse or int(str(result.value["blocks"])) <= 64 << 20
    await innocent(sandbox)


@pytest.mark.promise("E-49")
async def test_a_million_files_meet_the_limit(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = """
made = 0
try:
    for number in range(20_000):
        open(f"/work/{number}", "x").close()
        made += 1
except OSError:
    pass
made
"""
    result = await sandbox.run(code)

    assert isinstance(result.value, int), result.stderr
    if backend.name != "runsc":
        # gVisor ignores nr_inodes; there the sum of memory is the limit.
        assert result.value <= 64 * 256


@pytest.mark.promise("E-50", "E-51", "E-52")
@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor _ in range(64): os.write(1, b'x' * (1 << 20))",
        "import os\nfor _ in range(160):\n"
        "    os.write(1, b'o' * 65536); os.write(2, b'e' * 65536)",
        "import os\nos.write(1, bytes(range(256)) * 40_000)",
        "import sys\nsys.stdout.write('\\udcff' * (4 << 20))",
    ],
)
async def test_a_flood_is_cut_and_counted(sandbox: SandboxManager, code: str) -> None:
    result = await sandbox.run(code)

    assert result.status == "ok", result.stderr[:200]
    cap = sandbox.config.limits.output_bytes
    assert len(result.stdout_bytes) == cap
    assert result.truncated.stdout > 0
    assert len(result.stderr_bytes) <= cap


@pytest.mark.promise("E-52")
@pytest.mark.parametrize(
    "data",
    [b"\0" * 1000, b"\xff\xfe\x80", b"\xed\xa0\x80", b"\r\n\x1b[2J", b"no newline"],
)
async def test_odd_bytes_come_back_as_they_were(
    sandbox: SandboxManager, data: bytes
) -> None:
    result = await sandbox.run(
        f"import os\nos.write(1, {data!r})\nos.write(2, {data!r})"
    )

    assert (result.status, result.stdout_bytes, result.stderr_bytes) == (
        "ok", data, data
    )  # fmt: skip


STUBBORN = {
    "lock held in C": "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')",
    "power": "x = pow(3, 1 << 40)",
    "sort": "sorted(range(10**7), key=lambda x: sum(range(10**6)))",
    "sleep": "import time\ntime.sleep(600)",
    "forever": "import threading\nthreading.Event().wait()",
    "ignores": "import signal, time\nfor n in range(1, 65):\n"
    "    try: signal.signal(n, 1)\n    except (OSError, ValueError): pass\n"
    "while True: time.sleep(1)",
    "blocks": "import signal, time\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: time.sleep(1)",
    "stops": "import os\nos.kill(os.getpid(), 19)",
    "at exit": "import atexit, time\natexit.register(time.sleep, 600)",
    "thread at exit": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,)).start()",
    "in repr": "import time\nclass A:\n    def __repr__(self): time.sleep(600)\nA()",
}


@pytest.mark.promise("E-53", "E-54", "E-55")
@pytest.mark.parametrize("name", STUBBORN)
async def test_the_deadline_is_kept_from_outside(
    sandbox: SandboxManager, name: str
) -> None:
    begun = time.monotonic()
    result = await sandbox.run(STUBBORN[name], limits=Limits(wall_seconds=0.5))

    assert result.status in ("timeout", "out_of_memory"), result.status
    # Not what a busy machine takes to start a cell: all of them go on for minutes.
    assert time.monotonic() - begun < 60


DAEMON = f"""{IN_A_CELL}
import signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)
        os.closerange({{close}}, 64)
        time.sleep(600)
    os._exit(0)
os.wait()
print("parent ends")
"""


@pytest.mark.promise("E-56", "E-57")
@pytest.mark.parametrize("close", [0, 64])
async def test_a_daemon_does_not_outlive_its_run(
    sandbox: SandboxManager, close: int
) -> None:
    code = DAEMON.replace("{close}", str(close))
    async with sandbox.session() as session:
        begun = time.monotonic()
        result = await session.run(code, fresh=True)
        took = time.monotonic() - begun
        after = await session.run(PROCESSES, fresh=True)

    assert (result.status, result.stdout) == ("ok", "parent ends\n")
    # It sleeps for ten minutes.
    assert took < 60
    # The supervisor, what forks for it, and the program that looks.
    assert after.value == 3


@pytest.mark.promise("E-58")
async def test_descriptors_are_capped(sandbox: SandboxManager) -> None:
    code = """
import os, socket
held = []
try:
    while len(held) < 5000: held.append(os.dup(0))
except OSError as error:
    first = error.errno
for each in held: os.close(each)
held = []
try:
    while len(held) < 5000: held.append(socket.socket())
except OSError as error:
    second = error.errno
[first, second, len(held)]
"""
    result = await sandbox.run(code)

    assert isinstance(result.value, list), result.stderr
    first, second, held = result.value
    assert (first, second) == (24, 24)
    assert isinstance(held, int) and held < 256


@pytest.mark.promise("E-59")
@pytest.mark.smoke
async def test_threads_count_as_processes(sandbox: SandboxManager) -> None:
    code = """
import threading
stop, made = threading.Event(), []
try:
    while len(made) < 1000:
        thread = threading.Thread(target=stop.wait)
        thread.start()
        made.append(thread)
except RuntimeError:
    pass
stop.set()
len(made)
"""
    result = await sandbox.run(code)

    assert isinstance(result.value, int), result.stderr
    assert result.value <= 64
    await innocent(sandbox)


@pytest.mark.promise("E-60")
async def test_one_too_many_waits_and_then_is_refused(backend: BackendRow) -> None:
    config = backend.config(max_concurrency=2, max_queue=1)
    async with SandboxManager(config) as manager:
        done: list[object] = []

        async def wait_in_line() -> None:
            done.append((await manager.run("'in turn'")).value)

        async with anyio.create_task_group() as tasks:
            async with manager.session() as first, manager.session():
                await first.run("1", fresh=True)
                tasks.start_soon(wait_in_line)
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(SandboxUnavailableError, match="1 run in the queue"):
                    await manager.run("2")
                assert done == []

    assert done == ["in turn"]


@pytest.mark.promise("E-64")
@pytest.mark.parametrize("wish", ["resource.RLIM_INFINITY", "0"])
async def test_a_crash_leaves_no_core(sandbox: SandboxManager, wish: str) -> None:
    code = f"""
import os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, ({wish}, {wish}))
print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    async with sandbox.session() as session:
        result = await session.run(code, fresh=True)
        left = await session.run("import os\nos.listdir('/work')", fresh=True)

    assert (result.status, result.signal) == ("crashed", "SIGSEGV"), result.stderr
    # With 0 the kernel would start the machine's handler of cores.
    assert result.stdout == "(1, 1)\n"
    assert left.value == []
    assert not [path for path in Path().glob("core*") if path.is_file()]
