"""Where the questions of threads are asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...support.flow.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.close()
