"""Memory where no cgroup holds it: what is used counts, address space does not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio
import pytest

from toolcell.sandbox import Limits, Sandbox, SandboxManager
from toolcell.sandbox.cell.accounting.memory_watch import MemoryWatch
from toolcell.sandbox.machine import host_cgroups

from ...conftest import (
    RUNSC,
    SUBPROCESS,
    BackendRow,
    missing,
    need_shared_memory,
    why_no_docker,
)
from ...support.ordinary_user import SYSTEM_PYTHON, need_users_of_cells

MIB = 1 << 20
LIMITS = Limits(memory_mib=128, pids=256, disk_mib=64, wall_seconds=60)
CONFINED = BackendRow(
    name="confined",
    options={"backend": "subprocess", "strongest_isolation": "confined"},
)
OWN_USER = BackendRow(
    name="own-user",
    options={**CONFINED.options, "python": SYSTEM_PYTHON},
)
"""As root, with an interpreter that other users may run."""

ROWS = [
    pytest.param(SUBPROCESS, id="subprocess"),
    pytest.param(CONFINED, id="confined"),
    pytest.param(OWN_USER, id="own-user"),
    pytest.param(
        RUNSC,
        id="runsc",
        marks=[pytest.mark.docker, pytest.mark.runsc, pytest.mark.full],
    ),
]

pytestmark = pytest.mark.anyio


def refuse_cgroups() -> dict[str, str]:
    raise OSError("no cgroups here")


@pytest.fixture(scope="module", params=ROWS)
async def unheld(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    """A manager whose cells have no cgroup that holds their memory."""
    row: BackendRow = request.param
    if row is OWN_USER:
        need_users_of_cells()
    if row is RUNSC and (why := why_no_docker("runsc")):
        missing(why)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_cgroups, "create", refuse_cgroups)
        async with SandboxManager(row.config(limits=LIMITS)) as manager:
            yield manager


FORKS = """
import os, time
def forks(count, child):
    pids = []
    for _ in range(count):
        pids.append(os.fork())
        if not pids[-1]:
            child()
            os._exit(0)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
"""
SMALL = {
    "200 threads": """
import threading
done = threading.Event()
threads = [threading.Thread(target=done.wait) for _ in range(200)]
for each in threads: each.start()
done.set()
for each in threads: each.join()
len(threads)
""",
    "address space": """
import mmap
space = mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
space[:4096] = b"x" * 4096
len(space) >> 30
""",
    "forks share": FORKS
    + """
shared = bytearray(60 << 20)
sum(forks(4, lambda: time.sleep(0.3)))
""",
    "files are mapped": FORKS
    + """
import mmap
def mapped(fd):
    os.ftruncate(fd, 40 << 20)
    space = mmap.mmap(fd, 40 << 20)
    for at in range(0, 40 << 20, 4096): space[at] = 1
    return space
kept = mapped(os.memfd_create("m"))
time.sleep(0.3)
kept.close()
path = f"/dev/shm/m{time.time_ns()}"
kept = mapped(os.open(path, os.O_RDWR | os.O_CREAT))
sum(forks(2, lambda: (kept[::4096], time.sleep(0.3))))
os.unlink(path)
""",
}


@pytest.mark.promise("FP3")
@pytest.mark.parametrize("name", SMALL)
async def test_what_takes_little_memory_runs(unheld: Sandbox, name: str) -> None:
    if "/dev/shm" in SMALL[name]:
        need_shared_memory()
    result = await unheld.run(SMALL[name])

    assert result.status == "ok", (result.status, result.stderr)
    assert result.usage.enforced_by["memory_mib"] == "watchdog"


async def test_what_others_keep_in_segments_is_theirs(unheld: Sandbox) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    size, private, remove = 200 * MIB, 0, 0
    segment = libc.shmget(private, size, 0o600)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        address = ctypes.c_void_p(libc.shmat(segment, None, 0))
        ctypes.memset(address, 1, size)
        result = await unheld.run("import time\ntime.sleep(0.3)")
        libc.shmdt(address)
    finally:
        libc.shmctl(segment, remove, None)

    assert result.status == "ok"


@pytest.mark.promise("FP3")
async def test_what_forks_programs_counts_as_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Users of programs cannot look at it: it is not one that hides its memory."""
    need_users_of_cells()
    monkeypatch.setattr(host_cgroups, "create", refuse_cgroups)
    config = OWN_USER.config(limits=LIMITS, programs_per_cell=9)
    async with SandboxManager(config) as manager:
        result = await manager.run("import time\ntime.sleep(1.3)")

    assert result.status == "ok"


HIDDEN = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
FILE = """
import os, time
piece = b"x" * (1 << 20)
def fill(fd, count):
    for _ in range(count): os.write(fd, piece)
def fill_files():
    for _ in range(30): fill(os.memfd_create("m"), 30)
    time.sleep(30)
"""
FIRST_THREAD_ENDS = """
import ctypes, os, threading, time
def last(action):
    # The kernel shows nothing of a process in the place of a thread that has ended.
    threading.Thread(target=lambda: (time.sleep(0.1), action(), time.sleep(30))).start()
    exit_thread = 60 if os.uname().machine == "x86_64" else 93
    ctypes.CDLL(None).syscall(exit_thread, 0)
"""
LARGE = {
    "heap": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "at once": "x = bytearray(1 << 30)",
    "populated": "import mmap\nx = mmap.mmap(-1, 1 << 30, flags=0x8022)\n",
    "shared mapping": "import mmap\nx = mmap.mmap(-1, 1 << 30)\n"
    "for i in range(0, len(x), 4096): x[i] = 1",
    "forks": FORKS + "forks(12, lambda: (bytearray(40 << 20), time.sleep(30)))",
    "shared no more": FORKS
    + """
x = bytearray(60 << 20)
def write():
    for at in range(0, len(x), 4096): x[at] = 1
    time.sleep(30)
forks(12, write)
""",
    "files of no folder": FILE + "fill_files()",
    "hidden ones": HIDDEN + FILE + "fill_files()",
    "of what its first thread has left": FIRST_THREAD_ENDS
    + "x = []\nlast(lambda: [x.append(bytearray(1 << 20)) for _ in range(900)])",
    "files of what its first thread has left": FIRST_THREAD_ENDS
    + FILE
    + "last(fill_files)",
    "files of a thread alone": FILE
    + """
import ctypes, mmap
libc = ctypes.CDLL(None)
pause, stacks = ctypes.cast(libc.pause, ctypes.c_void_p), []
def thread_without_ours():
    stacks.append(ctypes.c_char.from_buffer(mmap.mmap(-1, 1 << 16)))
    top = ctypes.addressof(stacks[-1]) + (1 << 16)
    # CLONE_VM, _FS, _SIGHAND, _THREAD and _SYSVSEM, but not CLONE_FILES.
    return libc.clone(pause, ctypes.c_void_p(top), 0x50B00, None)
for _ in range(30):
    fd = os.memfd_create("m")
    fill(fd, 30)
    if thread_without_ours() > 0: os.close(fd)
time.sleep(30)
""",
    "files of other threads alone": FILE
    + """
import ctypes, threading
libc = ctypes.CDLL(None)
for _ in range(30):
    fd = os.memfd_create("m")
    fill(fd, 30)
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    # close_range with CLOSE_RANGE_UNSHARE: those threads keep what they have open.
    libc.syscall(436, fd, fd, 2)
time.sleep(30)
""",
    "a mapping hides no file": FILE
    + """
import mmap
x = mmap.mmap(-1, 90 << 20)
for i in range(0, len(x), 4096): x[i] = 1
fill_files()
""",
    "files of every folder": FILE
    + """
for folder in (".", "/tmp", "/dev/shm"):
    fill(os.open(folder + "/f", os.O_WRONLY | os.O_CREAT), 60)
time.sleep(30)
""",
}


@pytest.mark.promise("E-46", "E-63")
@pytest.mark.parametrize("name", LARGE)
async def test_what_takes_much_memory_is_ended(unheld: Sandbox, name: str) -> None:
    result = await unheld.run(LARGE[name], limits=Limits(wall_seconds=20))

    assert result.isolation is not None
    if name == "files of every folder" and result.isolation.level == "confined":
        pytest.skip("its folders are the machine's, and no memory")
    assert (result.status, result.self_reported) == ("out_of_memory", False), (
        result.stderr
    )


GOES_ON = """
import threading, time
x = []
def fill():
    time.sleep(0.5)
    while True: x.append(bytearray(1 << 20))
threading.Thread(target=fill, daemon=True).start()
"""


@pytest.mark.promise("E-46", "E-63")
async def test_memory_is_watched_between_runs(unheld: Sandbox) -> None:
    async with unheld.session() as session:
        await session.run(GOES_ON)
        with anyio.fail_after(60):
            # Mostly between two runs; it may happen in one.
            while True:
                result = await session.run("len(x)")
                if result.warnings or result.status != "ok":
                    break
                await anyio.sleep(0.1)
        lost = "the session's variables were lost before this run"
        ended = (result.status, result.state) == ("out_of_memory", "lost")
        assert ended or any(lost in warning for warning in result.warnings), result


async def test_the_greatest_ends_a_command_or_the_run(unheld: Sandbox) -> None:
    async with unheld.session() as session:
        alone = await session.exec(["python3", "-c", LARGE["heap"]])
        with anyio.fail_after(60):
            assert (await alone.wait()).status == "out_of_memory"

        beside = await session.exec(
            ["sh", "-c", f"sleep 0.3; python3 -c '{LARGE['heap']}'"]
        )
        run = await session.run("import time\ntime.sleep(1.5)\n'alive'")
        assert (await beside.wait()).status in ("out_of_memory", "exit")
        assert (run.status, run.value) == ("ok", "alive")

        small = await session.exec(["sleep", "60"])
        run = await session.run(LARGE["heap"])
        assert (run.status, small.running) == ("out_of_memory", True)


DIES_TOO_LARGE = """
import mmap, os
x = mmap.mmap(-1, 140 << 20, flags=0x8022)
os.abort()
"""


@pytest.mark.promise("E-46")
async def test_what_dies_too_large_ran_out_of_memory(unheld: Sandbox) -> None:
    # It mostly dies before anybody looks.
    async with unheld.session() as session:
        run = await session.run(DIES_TOO_LARGE)
        command = await session.exec(["python3", "-c", DIES_TOO_LARGE])
        command_end = await command.wait()
    alone = await unheld.run(DIES_TOO_LARGE)

    ends = [run.status, command_end.status, alone.status]
    assert ends == ["out_of_memory"] * 3


SEEMS_LARGE = """
import mmap, os
fd, size = os.memfd_create("m"), 20 << 20
os.ftruncate(fd, size)
maps = [mmap.mmap(fd, size, flags=mmap.MAP_SHARED | 0x8000) for _ in range(7)]
os.abort()
"""
"""Its peak is above the limit, and it uses too little to be ended for it."""


WAITS = """
import os, signal, time
while not os.path.exists("go"): time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_no_run_ends_by_the_kill_of_a_child_of_a_command(
    unheld: Sandbox,
) -> None:
    async with unheld.session() as session, anyio.create_task_group() as tasks:

        async def let_go() -> None:
            await (await session.exec("tail /dev/zero; true")).wait()
            await session.write_file("go", b"")

        tasks.start_soon(let_go)
        run = await session.run(WAITS)

    assert run.status == "killed"


@pytest.mark.parametrize("unheld", ROWS[:1], indirect=True)
async def test_what_gives_up_takes_the_kill_of_no_other(unheld: Sandbox) -> None:
    async with unheld.session() as session:
        killed = await session.exec("tail /dev/zero; echo; sleep 600")
        async with aclosing(killed.output()) as output:
            await anext(output)
        # That of its child stands for its own, counted and not yet collected.
        gives_up = await session.exec(["python3", "-c", SEEMS_LARGE])
        ends = [await gives_up.wait()]
        await session.exec(f"kill -9 {killed.pid}")
        ends.append(await killed.wait())

    assert [(end.status, end.signal) for end in ends] == [
        ("out_of_memory", "SIGABRT"),
        ("out_of_memory", "SIGKILL"),
    ]


class Counter:
    """A count of memory that is told what to say."""

    used = 0
    looks = 0

    def begin(self) -> None: ...

    def count(self, limit: int) -> int:
        self.looks += 1
        return self.used


@pytest.mark.parametrize(
    ("before", "used", "between", "least", "most"),
    [
        (0, 10, False, 0.02, 0.02),
        (10, 120, False, 0.001, 0.0021),
        (120, 120, False, 0.0015, 0.006),
        (10, 10, True, 0.03, 0.2),
    ],
    ids=["far", "near", "near and at rest", "between runs"],
)
def test_looks_are_more_frequent_near_the_limit(
    before: int,
    used: int,
    between: bool,
    least: float,
    most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What a look costs counts, too, and is more on a machine at work.
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    counter = Counter()
    watch = MemoryWatch(counter, 128 * MIB)
    if not between:
        watch.begin(128 * MIB)
    for counter.used in (before * MIB, used * MIB):
        now = watch._next
        assert not watch.exceeded(now)

    assert counter.looks == 2
    assert least <= watch._wait <= most
