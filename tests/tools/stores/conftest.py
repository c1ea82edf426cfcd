"""The stores of records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.tools import Records, SQLiteRecords
from toolcell.tools.spi import MemoryRecords


@pytest.fixture(params=["memory", "sqlite"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    if request.param == "memory":
        yield MemoryRecords()
    else:
        store = SQLiteRecords(tmp_path / "records.db")
        yield store
        store.close()
