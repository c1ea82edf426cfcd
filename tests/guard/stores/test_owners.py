"""Holds of processes that died, as the next process that opens the file finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolcell.guard import SQLiteStore
from toolcell.guard.stores.base import Charge, Reservation

from ...support.guard.builders import FakeClock

pytestmark = pytest.mark.anyio

HOUR = 3_600_000_000
SLOT = Charge("slots", 1, 1, refund=True)


async def test_an_owner_that_dies_while_another_process_opens_the_file_is_found_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "guard.db", FakeClock()
    dying = SQLiteStore(path, clock=clock)
    look, steps = SQLiteStore._owners, list[str]()

    def look_while_it_dies(self: SQLiteStore) -> set[str]:
        found = look(self)
        if not steps:
            steps.append("died")
            dying._as_one(lambda: dying._reserve(Reservation("1", [], [SLOT], HOUR)))
            dying._db.close()
            dying._owner.close(holds=True)
        return found

    monkeypatch.setattr(SQLiteStore, "_owners", look_while_it_dies)
    store = SQLiteStore(path, clock=clock)
    monkeypatch.undo()

    assert steps
    assert (await store.reserve(Reservation("2", [], [SLOT], HOUR))).admitted
    await store.aclose()
