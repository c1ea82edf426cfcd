"""The latest output of a call: bounded, in order, and told where some is missing."""

from __future__ import annotations

import random

import anyio
import pytest
from anyio.abc import TaskStatus

from toolcell.host.operator.live_calls import MAX_BYTES, OutputRing

pytestmark = pytest.mark.anyio


def test_a_reader_gets_each_byte_once_and_in_order() -> None:
    chance, ring = random.Random(7), OutputRing()
    printed, seen, place = b"", b"", 0
    for _ in range(2_000):
        stream = chance.choice(["stdout", "stderr"])
        data = chance.randbytes(chance.choice([0, 1, 5, 200, 5_000]))
        printed += data
        ring.add(stream, data)
        if chance.random() < 0.2:
            missing, found = ring.read(place)
            assert missing == 0
            seen += b"".join(data for _, data in found)
            place = ring.size
            assert seen == printed


def test_a_reader_that_lags_is_told_what_is_missing() -> None:
    ring = OutputRing()
    for number in range(100):
        ring.add("stdout", bytes([number]) * 1_000)
    missing, found = ring.read()
    text = b"".join(data for _, data in found)

    assert missing == ring.size - len(text) == 100_000 - MAX_BYTES
    assert text[-1_000:] == bytes([99]) * 1_000
    assert ring.read(99_999) == (0, [("stdout", bytes([99]))])
    assert ring.read(100_000) == (0, [])


@pytest.mark.parametrize("size", [1, 10, 100_000])
def test_what_is_kept_has_a_bound_however_it_is_printed(size: int) -> None:
    ring = OutputRing()
    for number in range(200_000 // size):
        ring.add(["stdout", "stderr"][number % 2], b"x" * size)
    missing, found = ring.read()

    kept = sum(len(data) for _, data in found)
    assert missing + kept == ring.size
    assert 0 < kept <= MAX_BYTES
    assert sum(len(piece.data) for piece in ring._pieces) <= MAX_BYTES + 4_096
    assert len(ring._pieces) <= 513


async def test_readers_that_wait_are_woken() -> None:
    ring, told = OutputRing(), []

    async def follow(*, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await ring.changed()
        told.append(ring.size)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            await tasks.start(follow)
        ring.add("stdout", b"x")
    assert told == [1, 1, 1]
