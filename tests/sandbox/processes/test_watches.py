"""Watched folders of a session, on every backend."""

from __future__ import annotations

import anyio
import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import SandboxManager, SandboxSession
from toolcell.sandbox.spi import SandboxWatch

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

MANY_FOLDERS = (
    "import os; [os.makedirs(f'{i}/{j}') for i in range(10) for j in range(99)]"
)
# The seconds that the process server has used, and that it has lived.
TIMES_OF_LOOKS = """
import os
def fields_of(pid):
    return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()
host = fields_of(os.getppid())
tick = os.sysconf('SC_CLK_TCK')
now = float(open('/proc/uptime').read().split()[0])
print((int(host[11]) + int(host[12])) / tick, now - int(host[19]) / tick)
"""


async def shell(session: SandboxSession, script: str) -> None:
    result = await (await session.exec(script)).wait()
    assert result.ok, result.stderr


async def told(watch: SandboxWatch) -> list[str]:
    """Return the changes as texts such as `created a`."""
    with anyio.fail_after(30):
        found = await watch.changes()
    return [
        f"{each.kind} {each.path}{each.new_path and ' ' + each.new_path}"
        for each in found
    ]


async def test_each_kind_of_change_is_told(session: SandboxSession) -> None:
    await shell(
        session, "mkdir old; echo 1 > old/in; echo 1 > a; echo 1 > b; echo 1 > m"
    )
    async with await session.watch(recursive=True) as watch:
        assert await told(watch) == []
        await session.write_file("new", b"x")
        await session.write_file("empty", b"")
        assert await told(watch) == ["created empty", "created new", "written new"]
        await session.write_file("a", b"12345")
        await session.remove("b")
        await shell(session, "chmod 700 m; mkdir d; ln -s nowhere d/l; mv old newer")
        assert await told(watch) == [
            "removed b",
            "renamed old newer",
            "written a",
            "created d",
            "created d/l",
            "chmod m",
        ]
        await shell(session, "rm -r newer d; mv a d")
        assert await told(watch) == [
            "removed newer/in",
            "removed newer",
            "removed d/l",
            "removed d",
            "renamed a d",
        ]


async def test_a_file_replaced_by_another_counts_as_written(
    session: SandboxSession,
) -> None:
    await session.write_file("a", b"1")
    async with await session.watch() as watch:
        await shell(session, "echo 2 > $TMPDIR/next; mv $TMPDIR/next a")
        assert await told(watch) == ["written a"]


async def test_changes_are_told_while_a_run_is_under_way(
    session: SandboxSession,
) -> None:
    code = "import time\nopen('made', 'w').write('1')\ntime.sleep(600)"
    async with (
        await session.watch() as watch,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(session.run, code)
        with anyio.fail_after(30):
            change = await anext(watch)
        assert (change.kind, change.path, change.entry) == ("created", "made", "file")
        await session.interrupt()


async def test_only_a_recursive_watch_looks_into_folders(
    session: SandboxSession,
) -> None:
    await shell(session, "mkdir -p d/e")
    async with (
        await session.watch("d") as flat,
        await session.watch("d", recursive=True) as deep,
    ):
        await session.write_file("d/e/f", b"")
        await session.write_file("beside", b"")
        assert await told(flat) == []
        assert await told(deep) == ["created e/f"]


async def test_a_folder_that_comes_back_is_watched_on(session: SandboxSession) -> None:
    await shell(session, "mkdir d; touch d/a")
    async with await session.watch("d") as watch:
        await shell(session, "rm -r d")
        assert await told(watch) == ["removed a"]
        await shell(session, "mkdir d; touch d/b")
        assert await told(watch) == ["created b"]


async def test_absolute_paths_are_the_cells(session: SandboxSession) -> None:
    async with await session.watch("/tmp") as watch:
        await shell(session, "touch /tmp/here")
        assert "created here" in await told(watch)


async def test_a_fork_watches_its_own_work_dir(session: SandboxSession) -> None:
    await session.run("x = 1")
    fork = await session.fork()
    async with await fork.watch() as watch:
        await session.write_file("theirs", b"")
        await fork.write_file("ours", b"")
        assert await told(watch) == ["created ours"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "missing"),
        ("file", "not_folder"),
        ("link", "link"),
        ("closed", "denied"),
        ("/proc", "denied"),
        ("/proc/self/fd", "denied"),
        ("../tmp", "invalid_path"),
        ("/tmp/../etc", "invalid_path"),
        ("a\0b", "invalid_path"),
    ],
)
async def test_what_is_no_folder_is_refused(
    session: SandboxSession, path: str, reason: str
) -> None:
    if path in ("file", "link", "closed"):
        await shell(session, "touch file; ln -s /tmp link; mkdir -m 0 closed")
    with pytest.raises(InvalidInputError) as caught:
        await session.watch(path)
    found = caught.value.details["reason"]
    # The kernel may say of a link that is not followed that it is no folder.
    assert found == reason or (path == "link" and found == "not_folder")
    assert session.alive


async def test_a_link_put_in_its_place_leads_nowhere(session: SandboxSession) -> None:
    await shell(session, "mkdir d; touch d/a")
    async with await session.watch("d", recursive=True) as watch:
        await shell(session, "mv d e; ln -s / d; ln -s / e/root")
        assert await told(watch) == ["removed a"]


async def test_a_flood_of_files_ends_the_watch_and_nothing_else(
    session: SandboxSession,
) -> None:
    watch = await session.watch(recursive=True)
    await shell(session, "touch $(seq 11000)")
    for _ in range(2):
        with pytest.raises(InvalidInputError) as caught:
            await told(watch)
        assert caught.value.details["reason"] == "too_many"
    with pytest.raises(InvalidInputError):
        await session.watch()
    assert (await session.run("40 + 2")).value == 42


async def test_many_changes_come_in_pieces(session: SandboxSession) -> None:
    async with await session.watch() as watch:
        await shell(session, "touch f{1000..1999}")
        assert await told(watch) == [
            f"created f{number}" for number in range(1000, 2000)
        ]
        await shell(session, "rm f*")
        first = await anext(watch)
        assert (first.kind, first.path) == ("removed", "f1999")
        # What is left of a look waits in the cell.
        assert await told(watch) == [f"removed f{n}" for n in range(1998, 999, -1)]


async def test_a_name_that_is_no_text_is_left_out(session: SandboxSession) -> None:
    async with await session.watch(recursive=True) as watch:
        code = "import os; os.mkdir(b'\\xff'); open(b'\\xff/a', 'w'); open('ok', 'w')"
        await session.run(code)
        assert await told(watch) == ["created ok"]


async def test_a_seventeenth_watch_is_refused_until_one_ends(
    session: SandboxSession,
) -> None:
    watches = [await session.watch() for _ in range(16)]
    with pytest.raises(InvalidInputError) as caught:
        await session.watch()
    assert caught.value.details["reason"] == "too_many"
    await watches[0].aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await watches[0].changes()
    assert [each async for each in watches[0]] == []
    await session.watch()


async def test_a_reader_may_give_up_and_come_back(session: SandboxSession) -> None:
    async with await session.watch() as watch:
        with anyio.move_on_after(0.05) as scope:
            await anext(watch)
        assert scope.cancelled_caught
        await session.write_file("a", b"")
        assert await told(watch) == ["created a"]
        await session.write_file("b", b"")
        with anyio.fail_after(30):
            assert (await anext(watch)).path == "b"


async def test_a_watch_ends_with_its_session(backend: BackendRow) -> None:
    async with SandboxManager(backend.config()) as manager:
        async with manager.session() as session:
            watch = await session.watch()
            idle = await session.watch()
            assert session.alive

            async def wait() -> None:
                with pytest.raises(CellLostError):
                    await anext(watch)
                ended.set()

            ended = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await session._shared.cell.kill()
                with anyio.fail_after(60):
                    await ended.wait()
        with pytest.raises(CellLostError):
            await idle.changes()
        await idle.aclose()


async def test_a_pause_holds_the_watch(session: SandboxSession) -> None:
    async with await session.watch() as watch:
        await session.pause()
        with pytest.raises(InvalidInputError):
            await session.watch()
        with anyio.move_on_after(0.05) as scope:
            await watch.changes()
        assert scope.cancelled_caught
        await session.resume()
        await session.write_file("a", b"")
        assert await told(watch) == ["created a"]


async def test_looks_take_a_bounded_part_of_the_time(session: SandboxSession) -> None:
    await shell(session, f'python3 -c "{MANY_FOLDERS}"')
    async with await session.watch(recursive=True) as watch:
        used, lived = await times_of_looks(session)
        with anyio.move_on_after(2):
            await anext(watch)
        used_then, lived_then = await times_of_looks(session)
        assert used_then - used < 0.3 * (lived_then - lived)


async def times_of_looks(session: SandboxSession) -> tuple[float, float]:
    result = await (await session.exec(["python3", "-c", TIMES_OF_LOOKS])).wait()
    assert result.ok, result.stderr
    used, lived = map(float, result.stdout.split())
    return used, lived
