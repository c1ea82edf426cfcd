"""Nodes that have the token, and lie."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from toolcell.cluster.node import agent as agent_module
from toolcell.cluster.node.driver_connection import DriverConnection
from toolcell.cluster.spi import NodeRecord
from toolcell.cluster.wire.link import Exchange, Kind
from toolcell.cluster.wire.message import WireMessage

from .null_nodes import null_node

Lie = Callable[[Exchange, WireMessage], Awaitable[None]]
OPENED = {"session": 1, "warnings": [], "limits": {}, "network": None}
SLOTS = 4


@asynccontextmanager
async def lying_node(
    monkeypatch: pytest.MonkeyPatch, lie: Lie
) -> AsyncIterator[NodeRecord]:
    """Yield a node that greets drivers; a test answers all else."""

    class Liar(DriverConnection):
        async def serve(self, exchange: Exchange, message: WireMessage) -> None:
            if message.fields["op"] == "hello":
                await super().serve(exchange, message)
            else:
                await lie(exchange, message)

    monkeypatch.setattr(agent_module, "DriverConnection", Liar)
    async with null_node("liar", SLOTS) as (_, record):
        yield record


def ends_with(fields: dict[str, Any], *blobs: bytes) -> Lie:
    """Return a lie that opens sessions, and ends all else with one message."""

    async def lie(exchange: Exchange, message: WireMessage) -> None:
        if message.fields["op"] == "session":
            exchange.send_soon(OPENED)
            await anyio.sleep_forever()
        exchange.finish(Kind.END, fields, *blobs)

    return lie
