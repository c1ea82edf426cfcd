"""The gates that hold tools of a test."""

from __future__ import annotations

import pytest

from ...support.sample_tools import Gates


@pytest.fixture
def gates() -> Gates:
    return Gates()
