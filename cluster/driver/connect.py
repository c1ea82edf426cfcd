"""Opens a link to a node."""

from __future__ import annotations

import anyio

from ..directory.records import NodeRecord
from ..wire.handshake import (
    HANDSHAKE_SECONDS,
    RefusedError,
    driver_context,
    fingerprint_of,
    meet_node,
)
from ..wire.link import Link
from ..wire.tls import TLSSocket, connected


async def connect(record: NodeRecord, key: bytes, lost_seconds: float) -> Link:
    """Return a link to a node, which has to be run.

    Args:
        record: The node.
        key: The cluster's token, as bytes.
        lost_seconds: Seconds without a sign of life until the node is given up.

    Raises:
        OSError: Nobody answers there.
        TimeoutError: The hand-shake took too long.
        RefusedError: It is not the node, or one of both does not have the token.
    """
    with anyio.fail_after(HANDSHAKE_SECONDS):
        plain = await connected(record.host, record.port)
        connection = TLSSocket(plain, driver_context(), server_side=False)
        try:
            await connection.shake_hands()
            if fingerprint_of(connection.certificate) != record.fingerprint:
                raise RefusedError("it shows another certificate")
            await meet_node(connection, key, record.fingerprint)
        except BaseException:
            connection.close()
            raise
    return Link(connection, name=record.name, lost_seconds=lost_seconds)
