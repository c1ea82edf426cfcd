"""A watched folder, whose changes a driver asks for."""

from __future__ import annotations

from typing import Any

import anyio

from toolcell.sandbox.spi import SandboxWatch

from ..wire.link import Exchange
from ..wire.tasks import tasks_beside


async def tell_changes(exchange: Exchange, watch: SandboxWatch) -> None:
    """Answer questions of a driver until it has no more.

    A question takes the place of an earlier one that has no answer yet.
    """
    turn, waiting = anyio.Lock(), anyio.CancelScope()

    async def answer(asked: dict[str, Any], waiting: anyio.CancelScope) -> None:
        async with turn:
            with waiting:
                if asked["at_once"]:
                    found = await watch.changes()
                else:
                    found = (await anext(watch),)
                changes = [each.model_dump() for each in found]
                exchange.send_soon({"number": asked["number"], "changes": changes})

    async with tasks_beside() as tasks:
        while True:
            _, message = await exchange.receive()
            waiting.cancel()
            waiting = anyio.CancelScope()
            tasks.start_soon(answer, message.fields, waiting)
