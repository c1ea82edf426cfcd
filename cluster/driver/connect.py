"""Opens a link to a node."""

from __future__ import annotations

import anyio
from anyio.streams.tls import TLSAttribute, TLSStream

from ..directory.records import NodeRecord
from ..wire.handshake import (
    HANDSHAKE_SECONDS,
    RefusedError,
    driver_context,
    fingerprint_of,
    meet_node,
)
from ..wire.link import Link


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
        plain = await anyio.connect_tcp(record.host, record.port)
        try:
            stream = await TLSStream.wrap(
                plain,
                server_side=False,
                ssl_context=driver_context(),
                standard_compatible=False,
            )
            shown = stream.extra(TLSAttribute.peer_certificate_binary)  # noqa: S610 - of a socket
            if shown is None or fingerprint_of(shown) != record.fingerprint:
                raise RefusedError("it shows another certificate")
            reader = await meet_node(stream, key, record.fingerprint)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.aclose_forcefully(plain)
            raise
    return Link(stream, reader, name=record.name, lost_seconds=lost_seconds)
