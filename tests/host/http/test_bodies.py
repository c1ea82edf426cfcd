"""Bodies of requests that do not arrive."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.types import Message

from toolcell.host.http.bodies import BodyError, whole

pytestmark = pytest.mark.anyio


async def test_a_client_that_goes_away_in_its_body_is_told_apart() -> None:
    messages: list[Message] = [
        {"type": "http.disconnect"},
        {"type": "http.request", "body": b"{", "more_body": True},
    ]

    async def receive() -> Message:
        return messages.pop()

    request = Request({"type": "http", "headers": []}, receive)
    with pytest.raises(BodyError) as error:
        await whole(request, 100)

    assert (error.value.details["reason"], error.value.status) == ("gone", 499)
