"""Sandboxes have a home of their own, which cells without namespaces cannot have."""

from __future__ import annotations

import pytest

from ...conftest import missing, why_no_namespaces


@pytest.fixture(autouse=True)
def cells_with_a_home() -> None:
    if why := why_no_namespaces():
        missing(why)
