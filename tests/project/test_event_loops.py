"""Plain tests may begin an event loop, whichever tests ran before them."""

from __future__ import annotations

import anyio
import pytest


@pytest.fixture(scope="module")
async def kept(anyio_backend: str) -> str:
    """Something for which anyio keeps its event loop, as for the session's sandbox."""
    return anyio_backend


def test_a_plain_test_begins_an_event_loop(kept: str) -> None:
    anyio.run(anyio.sleep, 0)


@pytest.mark.anyio
async def test_the_loop_of_fixtures_goes_on(kept: str) -> None:
    await anyio.sleep(0)
