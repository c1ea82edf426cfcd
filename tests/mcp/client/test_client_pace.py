"""What a server sends takes a bounded share of the event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from toolcell.tools.mcp_client import message_limits
from toolcell.tools.mcp_client.http_bodies import read_events, read_message
from toolcell.tools.mcp_client.message_limits import MESSAGE_VALUES, Pace, parse
from toolcell.tools.mcp_client.offers import mcp_offer

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R19")]

LARGE = b'{"jsonrpc":"2.0","id":1,"result":{"a":[' + b"1," * 40_000 + b"1]}}"
SMALL = b'{"jsonrpc":"2.0","id":1,"result":{}}'
EVENT = b"data: " + LARGE + b"\n\n"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits of a server's messages, while no time passes."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))

    still = SimpleNamespace(current_time=lambda: 7.0, sleep=sleep)
    monkeypatch.setattr(message_limits, "anyio", still)
    return waits


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_large_messages_wait_for_those_before_and_small_ones_do_not(
    waits: list[float],
) -> None:
    pace = Pace()
    for _ in range(3):
        assert not isinstance(await parse(LARGE, pace), Exception)
        assert not isinstance(await parse(SMALL, pace), Exception)
    assert waits == [0, 0.78, 1.56]


async def test_answers_of_one_server_share_a_pace(waits: list[float]) -> None:
    pace = Pace()
    for read in (
        read_message(pieces(LARGE), 10**7, pace),
        read_events(pieces(EVENT), 10**7, pace),
    ):
        assert [each async for each in read]
    assert waits == [0, 0.78]


async def test_comments_are_left_out_and_wait(waits: list[float]) -> None:
    flood = pieces(b":\n\n" * 50_000, b": data\n\n", b":\n\n" * 50_000, b"data: 1\n\n")
    events = [event async for event in read_events(flood, 100, Pace())]

    assert events == [b": data\n\n", b"data: 1\n\n", b""]
    assert waits == [0, 0.98]


async def test_what_is_too_much_is_refused_before_it_waits(waits: list[float]) -> None:
    many = b"[" + b"1," * MESSAGE_VALUES + b"1]"
    assert isinstance(await parse(many, Pace()), Exception)
    assert waits == []


@pytest.mark.promise("R66")
async def test_a_uri_is_compared_with_a_template_in_linear_time() -> None:
    """Attack: there are ten million ways to part the words of this URI."""
    address = "note://desk/{a}-{b}-{c}-{d}"
    template = mcp_offer("template", {"uri_template": address, "name": "x"})
    start = time.thread_time()

    assert not template.covers(f"note://desk/{'-' * 400}!")
    assert template.covers("note://desk/2026-11-29-x.y")
    assert time.thread_time() - start < 1
