"""Files of a cell are counted as often as that costs a tenth of a CPU."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from toolcell.sandbox.cell.accounting import disk, looks


@pytest.mark.promise("R25")
def test_a_folder_that_takes_long_to_count_is_counted_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the clock is a second later, so to count takes a second.
    clock = count(100.0)
    for module in (disk, looks):
        still = SimpleNamespace(monotonic=lambda: next(clock))
        monkeypatch.setattr(module, "time", still)
    watch = disk.DiskWatch([str(tmp_path)], 64, None)

    assert watch.used() == 0
    (tmp_path / "new").write_bytes(b"x" * 100_000)
    assert [watch.used() for _ in range(9)] == [0] * 9
    assert watch.used() >= 100_000


@pytest.mark.promise("R25")
def test_what_filled_a_folder_stays_and_cannot_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks.Pace, "due_in", lambda _: 0.0)
    watch = disk.DiskWatch([str(tmp_path)], 1, None)
    (tmp_path / "old").write_bytes(b"x" * (3 << 20))
    assert watch.exceeded()

    for _ in range(2):
        watch.begin()
        assert not watch.exceeded()
    (tmp_path / "new").write_bytes(b"x" * (2 << 20))
    assert watch.exceeded()
