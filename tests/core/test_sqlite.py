"""SQLite files that several openings share, in one process and in several."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError, StoreUnavailableError
from toolcell.core.storage.sqlite import FORMAT, open_sqlite
from toolcell.guard import ApprovalStore, SQLiteStore
from toolcell.guard.stores.base import Charge, Reservation
from toolcell.host.http.tokens import TokenStore
from toolcell.tools import SQLiteIdempotency, SQLiteRecords
from toolcell.tools.stores.idempotency import CallBody

from ..conftest import run_apart
from ..support.concurrent_processes import all_at_once, start

Make = Callable[[Path], Any]
HOLD = 3_600_000_000
STORES = pytest.mark.parametrize(
    "make",
    [ApprovalStore, SQLiteStore, SQLiteRecords, SQLiteIdempotency, TokenStore],
)


@contextmanager
def made(make: Make, path: Path) -> Iterator[Any]:
    store = make(path)
    yield store
    if isinstance(store, SQLiteStore):
        run_apart(store.aclose)
    elif isinstance(store, TokenStore):
        store.__exit__()
    else:
        store.close()


def nothing(_: sqlite3.Connection) -> None:
    """Make no tables."""


def opened(path: Path) -> sqlite3.Connection:
    return open_sqlite(path, nothing, synchronous="NORMAL", busy_seconds=0.5)


@STORES
def test_many_processes_open_a_new_file_at_once(tmp_path: Path, make: Make) -> None:
    name = make.__name__
    script = f"""
import sys
from {make.__module__} import {name}
sys.stdin.readline()
for number in range(20):
    {name}(f"{{sys.argv[1]}}/{{number}}.db")
print("opened")
"""
    processes = [start(script, str(tmp_path)) for _ in range(4)]

    assert all_at_once(processes) == ["opened\n"] * 4


def test_who_opens_waits_for_others_who_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.core.storage.sqlite.OPEN_SECONDS", 60)
    path = tmp_path / "state.db"
    found: list[sqlite3.Connection] = []
    # Not in the mode of a log yet: its lock is the one that SQLite does not wait for.
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE things (name)")
        reader = other.execute("SELECT 1 FROM things")
        other.execute("BEGIN IMMEDIATE")
        opening = threading.Thread(target=lambda: found.append(opened(path)))
        opening.start()
        opening.join(0.1)
        waited = opening.is_alive()
        reader.close()
        other.execute("ROLLBACK")
        opening.join(60)

    with closing(found[0]) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert waited


def test_who_opens_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.core.storage.sqlite.OPEN_SECONDS", 0.05)
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            opened(path)


def test_a_fork_while_another_thread_opens_can_open(tmp_path: Path) -> None:
    script = """
import os, signal, sqlite3, sys, threading
from toolcell.guard import ApprovalStore

connect, inside, go_on = sqlite3.connect, threading.Event(), threading.Event()
def waits(*args, **options):
    inside.set()
    go_on.wait()
    return connect(*args, **options)

sqlite3.connect = waits
opening = threading.Thread(target=ApprovalStore, args=[sys.argv[1]])
opening.start()
inside.wait()
child = os.fork()
sqlite3.connect = connect
if child == 0:
    signal.alarm(30)
    ApprovalStore(sys.argv[1]).close()
    os._exit(0)
status = os.waitpid(child, 0)[1]
go_on.set()
opening.join()
print(status)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path / "state.db")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "0\n", done.stderr


@STORES
def test_a_second_opening_leaves_the_locks_of_the_first(
    tmp_path: Path, make: Make
) -> None:
    path = tmp_path / "state.db"
    # The last one that closes a file puts the log into it, and takes the log away.
    script = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT * FROM sqlite_schema").fetchall()
other.close()
"""
    with made(make, path), made(make, path):
        subprocess.run([sys.executable, "-I", "-c", script, str(path)], check=True)
        assert (tmp_path / "state.db-wal").exists()


@STORES
def test_a_file_is_private(tmp_path: Path, make: Make) -> None:
    path, shown = tmp_path / "state.db", tmp_path / "shown.db"
    shown.touch(0o644)
    with made(make, path), made(make, shown):
        modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}

    assert modes == {0o600}


@STORES
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Make
) -> None:
    link, pipe, elsewhere = (tmp_path / name for name in ("link", "pipe", "elsewhere"))
    elsewhere.touch(0o600)
    link.symlink_to(elsewhere)
    os.mkfifo(pipe)

    for wrong in (link, pipe, tmp_path, tmp_path / "none" / "state.db"):
        with pytest.raises((ConfigError, StoreUnavailableError)):
            make(wrong)
    assert elsewhere.stat().st_size == 0


# --- files that are removed --------------------------------------------------


async def reserves(store: SQLiteStore, name: str, held: int = 1) -> bool:
    line = Charge("slots", held, held, refund=True)
    return (await store.reserve(Reservation(name, (), [line], HOLD))).admitted


def uses(make: Make, store: Any) -> None:
    """Use a store once."""
    if isinstance(store, ApprovalStore):
        store.check()
    elif isinstance(store, SQLiteStore):
        run_apart(partial(store.peek, Reservation("", (), (), 0)))
    elif isinstance(store, SQLiteRecords):
        store.query()
    elif isinstance(store, SQLiteIdempotency):
        store.take("key", CallBody("tool", {}), repeatable=True)
        store.forget("key")
    else:
        store.all()


@pytest.mark.promise("F6")
@STORES
@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
def test_a_store_whose_file_is_removed_is_of_no_use(
    tmp_path: Path, make: Make, part: str
) -> None:
    path, kept = tmp_path / "a.db", tmp_path / "kept"
    with made(make, path) as store:
        uses(make, store)
        (tmp_path / f"a.db{part}").rename(kept)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                uses(make, store)
            # Nor if there is another one in its place.
            (tmp_path / f"a.db{part}").write_bytes(kept.read_bytes())
        kept.rename(tmp_path / f"a.db{part}")
        uses(make, store)


@pytest.mark.promise("F6")
@pytest.mark.anyio
async def test_a_hold_outlives_the_file_that_says_who_holds_it(tmp_path: Path) -> None:
    mine, others = SQLiteStore(tmp_path / "a.db"), SQLiteStore(tmp_path / "a.db")
    assert await reserves(mine, "1")

    (tmp_path / f"a.db-owner-{mine._owner.name}").unlink()
    assert not await reserves(others, "2")
    # With the next thing it does it can be seen again, and that it has died.
    assert not await reserves(mine, "3")
    assert (tmp_path / f"a.db-owner-{mine._owner.name}").exists()
    os.close(mine._owner._fd)
    others._reaped = 0
    assert await reserves(others, "4")
    await others.aclose()


@pytest.mark.promise("F6")
@pytest.mark.anyio
async def test_holds_of_a_store_that_was_closed_end(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    first, second = SQLiteStore(path), SQLiteStore(path)
    assert await reserves(first, "1")
    await first.aclose()

    assert await reserves(second, "2")
    await second.settle("2", [0])
    await second.aclose()
    assert list(tmp_path.glob("*-owner-*")) == []


@STORES
def test_a_file_of_a_newer_version_is_refused_and_stays_as_it_is(
    tmp_path: Path, make: Make
) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("CREATE TABLE of_tomorrow (id)")
        newer.execute(f"PRAGMA user_version = {FORMAT + 1}")
    with pytest.raises((ConfigError, StoreUnavailableError)), made(make, path):
        pass

    with closing(sqlite3.connect(path)) as file:
        names = file.execute("SELECT name FROM sqlite_schema").fetchall()
        assert names == [("of_tomorrow",)]


@STORES
def test_a_file_says_its_version(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "state.db"
    with made(make, path):
        pass
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (FORMAT,)
