"""Why sessions ended is known after their host has ended, too."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, StoreUnavailableError
from toolcell.sandbox.backends.docker_engine import QUICK_SECONDS
from toolcell.tools.code import session_ends, sessions
from toolcell.tools.code.session_ends import HOST_ENDED, SessionEnds
from toolcell.tools.spi import SQLiteSessionEnds

KEY = ("agent", "session")
OTHER = (None, "session")


def test_sessions_of_a_living_host_have_not_ended(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with closing(SQLiteSessionEnds(path)) as here:
        there = SQLiteSessionEnds(path)
        there.note_open(KEY)
        assert (here.why(KEY), there.why(KEY)) == ("", "")
        there.close()
        assert (here.why(KEY), here.why(OTHER)) == (HOST_ENDED, "")
        here.note_open(KEY)
        assert here.why(KEY) == ""


@pytest.mark.parametrize("starts_later", [False, True])
def test_sessions_of_a_killed_host_have_ended(
    tmp_path: Path, starts_later: bool
) -> None:
    path = tmp_path / "sessions.db"
    killed = SQLiteSessionEnds(path)
    other = None if starts_later else SQLiteSessionEnds(path)
    killed.note_open(KEY)
    # As the kernel does for a process that ends.
    os.close(killed._owner._fd)
    with closing(other or SQLiteSessionEnds(path)) as here:
        assert here.why(KEY) == HOST_ENDED
        here.note_open(KEY)
        here.note_end(KEY, "")
        assert here.why(KEY) == ""


def test_an_end_is_kept_of_a_session_that_was_never_noted_as_open(
    tmp_path: Path,
) -> None:
    with closing(SQLiteSessionEnds(tmp_path / "sessions.db")) as stored:
        for ends in (stored, SessionEnds()):
            ends.note_end(KEY, "why")
            assert ends.why(KEY) == "why"
            ends.note_end(KEY, "another")
            assert ends.why(KEY) == "another"


def test_the_oldest_ends_of_the_same_agent_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_ends, "_MAX_ROWS", 2)
    monkeypatch.setattr(session_ends, "_MAX_ENDS", 2)
    with closing(SQLiteSessionEnds(tmp_path / "sessions.db")) as stored:
        for ends in (stored, SessionEnds()):
            ends.note_end(OTHER, "another agent's")
            for number in range(3):
                ends.note_open(("agent", str(number)))
                ends.note_end(("agent", str(number)), f"why {number}")
            whys = [ends.why(("agent", str(number))) for number in range(3)]
            assert whys == ["", "why 1", "why 2"]
            ends.note_end(("agent", "3"), "why 3")
            assert ends.why(("agent", "1")) == ""
            assert ends.why(OTHER) == "another agent's"


def test_a_file_that_is_gone_ends_no_session(tmp_path: Path) -> None:
    """A new one is refused, as nobody could say how the last one ended."""
    path = tmp_path / "sessions.db"
    with closing(SQLiteSessionEnds(path)) as ends:
        ends.note_open(KEY)
        path.unlink()
        ends.note_end(KEY, "why")
        with pytest.raises(StoreUnavailableError):
            ends.why(KEY)
        with pytest.raises(StoreUnavailableError):
            ends.note_open(KEY)


def test_reading_waits_for_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with closing(SQLiteSessionEnds(path, busy_seconds=0)) as ends:
        ends.note_end(KEY, "why")
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            assert ends.why(KEY) == "why"


def test_an_own_session_is_open_while_the_file_of_its_owner_is_gone(
    tmp_path: Path,
) -> None:
    with closing(SQLiteSessionEnds(tmp_path / "sessions.db")) as ends:
        ends.note_open(KEY)
        [lease] = tmp_path.glob("sessions.db-owner-*")
        lease.unlink()
        assert ends.why(KEY) == ""


def test_the_file_has_no_key_of_a_client(tmp_path: Path) -> None:
    with closing(SQLiteSessionEnds(tmp_path / "sessions.db")) as ends:
        ends.note_open(("an agent", "a secret key"))
    assert b"a secret key" not in (tmp_path / "sessions.db").read_bytes()


@pytest.mark.anyio
async def test_the_reason_of_a_loss_is_awaited_as_long_as_an_engine_may_take() -> None:
    class Lost:
        until = 0.0

        async def usage(self) -> None:
            self.until = anyio.current_effective_deadline()
            raise CellLostError("the session ended: the cell ran out of memory")

    began = anyio.current_time()
    gone: Any = SimpleNamespace(session=Lost(), fault="")
    await sessions.ask_fault(gone)

    assert gone.fault == "the session ended: the cell ran out of memory"
    assert gone.session.until > began + QUICK_SECONDS
