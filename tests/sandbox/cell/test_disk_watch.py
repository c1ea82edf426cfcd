"""Files of a cell are counted as often as that costs a tenth of a CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from toolcell.sandbox.cell.accounting import disk, looks


@pytest.mark.promise("R25")
def test_a_folder_that_takes_long_to_count_is_counted_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    counted = disk._measured

    def measured(folder: int, depth: int) -> int:
        clock[0] += 2
        return counted(folder, depth)

    monkeypatch.setattr(disk, "_measured", measured)
    for module in (disk, looks):
        still = SimpleNamespace(monotonic=lambda: clock[0])
        monkeypatch.setattr(module, "time", still)
    watch = disk.DiskWatch([str(tmp_path)], 64, None)

    assert watch.used() == 0
    (tmp_path / "new").write_bytes(b"x" * 100_000)
    clock[0] += 19
    assert watch.used() == 0
    clock[0] += 1
    assert watch.used() >= 100_000
