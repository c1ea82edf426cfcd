"""Time for what a slow machine does late, and a host would count as gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolcell.guard import RedisStore


@pytest.fixture(autouse=True, scope="module")
def patient_stores() -> Iterator[None]:
    """Let hosts wait for Redis; a server that is gone refuses them at once."""
    defaults = vars(RedisStore)["__init__"].__kwdefaults__
    with pytest.MonkeyPatch.context() as patience:
        patience.setitem(defaults, "deadline", 30.0)
        yield
