"""Servers in one loop, one after another."""

from __future__ import annotations

import anyio
import httpx2
import pytest
from starlette.responses import PlainTextResponse

from toolcell.host.http.listening import listen
from toolcell.host.http.serving import serving

pytestmark = pytest.mark.anyio


async def test_a_server_that_was_cancelled_leaves_nothing_to_the_next() -> None:
    numbers = []
    for _ in range(2):
        with listen("127.0.0.1:0") as listening, anyio.CancelScope() as scope:
            numbers.append(listening.fileno())
            async with (
                serving(PlainTextResponse("here"), listening, 8) as url,
                httpx2.AsyncClient(timeout=60) as http,
            ):
                with anyio.fail_after(60):
                    answer = await http.get(url)
                scope.cancel()

        assert answer.text == "here"
    # The loop knows sockets by their numbers.
    assert numbers[0] == numbers[1]
