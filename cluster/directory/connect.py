"""Opens a link to a node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ..wire.handshake import (
    HANDSHAKE_SECONDS,
    HandshakeRefusedError,
    driver_context,
    fingerprint_of,
    meet_node,
)
from ..wire.link import Link
from ..wire.sockets import Address, addresses_of, connected
from ..wire.tls import TLSSocket
from .records import NodeRecord

# As in RFC 8305, Happy Eyeballs.
_NEXT_SECONDS = 0.25


async def connect(record: NodeRecord, key: bytes, lost_seconds: float) -> Link:
    """Return a link to a node, which has to be run.

    Args:
        record: The node.
        key: The cluster's token, as bytes.
        lost_seconds: Seconds without a sign of life until the node is given up.

    Raises:
        OSError: Nobody answers there, or not in time.
        HandshakeRefusedError: It is not the node, or one of both does not have the
            token.
    """
    connection = await meet(record, key)
    return Link(connection, name=record.name, lost_seconds=lost_seconds)


async def meet(record: NodeRecord, key: bytes) -> TLSSocket:
    """Return a connection to a node that has proved to be it. Raises as `connect`.

    Where its name has several addresses the next one is tried, too, as soon as one
    fails, or after a quarter of a second.
    """

    async def meet_at(address: Address) -> TLSSocket:
        return await _meet(address, key, record.fingerprint)

    race = _Race(meet_at)
    try:
        with anyio.move_on_after(HANDSHAKE_SECONDS):
            await race.run(await addresses_of(record.host, record.port))
    except BaseException:
        race.close()
        raise
    return race.winner()


async def _meet(address: Address, key: bytes, fingerprint: str) -> TLSSocket:
    """Return a connection to a node, at one of its addresses. Raises as `connect`."""
    plain = await connected(address)
    connection = TLSSocket(plain, driver_context(), server_side=False)
    try:
        await connection.shake_hands()
        if fingerprint_of(connection.certificate) != fingerprint:
            raise HandshakeRefusedError("it shows another certificate")
        await meet_node(connection, key, fingerprint)
    except BaseException:
        connection.close()
        raise
    return connection


class _Race:
    """Tries addresses, one soon after the other, until one of them is the node's."""

    def __init__(self, meet: Callable[[Address], Awaitable[TLSSocket]]) -> None:
        self._meet = meet
        self._won: TLSSocket | None = None
        self._open: list[Address] = []
        self._refusal: HandshakeRefusedError | None = None
        self._failures: list[str] = []

    async def run(self, addresses: list[Address]) -> None:
        """Try them all, until one answers."""
        async with anyio.create_task_group() as tasks:
            for address in addresses:
                self._open.append(address)
                over = anyio.Event()
                tasks.start_soon(self._try, address, over, tasks.cancel_scope)
                with anyio.move_on_after(_NEXT_SECONDS):
                    await over.wait()

    async def _try(
        self, address: Address, over: anyio.Event, race: anyio.CancelScope
    ) -> None:
        try:
            connection = await self._meet(address)
        except HandshakeRefusedError as error:
            self._refusal = error
        except OSError as error:
            self._failures.append(f"{address}: {error.strerror or error}")
        else:
            if self._won is None:
                self._won = connection
                race.cancel()
            else:
                connection.close()
        self._open.remove(address)
        over.set()

    def close(self) -> None:
        """Close the connection to the node, if there is one."""
        if self._won is not None:
            self._won.close()

    def winner(self) -> TLSSocket:
        """Return the connection to the node. Raises as `connect`."""
        if self._won is not None:
            return self._won
        if self._refusal is not None:
            raise self._refusal
        silent = f"no answer in {HANDSHAKE_SECONDS:g} seconds"
        silent_ones = [f"{each}: {silent}" for each in self._open]
        raise OSError("; ".join([*self._failures, *silent_ones]) or silent)
