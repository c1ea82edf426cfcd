"""The stores of records, and a clock for those of keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.tools import Records, SQLiteRecords
from toolcell.tools.spi import MemoryRecords


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    if request.param == "memory":
        yield MemoryRecords()
    else:
        store = SQLiteRecords(tmp_path / "records.db")
        yield store
        store.close()
