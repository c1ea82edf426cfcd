"""Files wait for others as long as a slow machine needs; tests of waiting set less."""

from __future__ import annotations

import pytest

from ..support.guard.patience import WAITS
from ..support.guard.worker import PATIENCE


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITS:
        monkeypatch.setattr(name, PATIENCE)
