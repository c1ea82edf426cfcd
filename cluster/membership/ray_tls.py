"""TLS between the processes of Ray, as Ray's variables say."""

from __future__ import annotations

import os
import ssl

import anyio
from anyio.streams.tls import TLSStream

from toolcell.core import ConfigError

FAILURES = (OSError, anyio.EndOfStream, anyio.BrokenResourceError)
"""What a connection raises that comes to nothing; errors of TLS are some of them."""


def ray_tls() -> ssl.SSLContext | None:
    """Return the TLS of this process towards Ray; None without `RAY_USE_TLS`.

    Raises:
        ConfigError: A file that its variables name is missing, or cannot be used.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    found = {
        name: os.environ.get(f"RAY_TLS_{name}", "")
        for name in ("CA_CERT", "SERVER_CERT", "SERVER_KEY")
    }
    try:
        context = ssl.create_default_context(cafile=found["CA_CERT"])
        context.load_cert_chain(found["SERVER_CERT"], found["SERVER_KEY"])
    except OSError as error:
        raise ConfigError(
            f"RAY_USE_TLS is set, and its certificates cannot be read: {error}",
            hint="set RAY_TLS_CA_CERT, RAY_TLS_SERVER_CERT and RAY_TLS_SERVER_KEY",
        ) from None
    context.set_alpn_protocols(["h2"])
    return context


async def speaks_tls(host: str, port: int) -> bool:
    """Return True if a server begins TLS, whatever its certificate is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with await anyio.connect_tcp(host, port) as stream:
            await TLSStream.wrap(stream, ssl_context=context, server_side=False)
    except FAILURES:
        return False
    return True


def tls_problem(
    address: str, *, ours: bool, theirs: bool, why: Exception
) -> ConfigError:
    """Return the error of a process and a cluster whose TLS does not fit.

    Args:
        address: `host:port` of the cluster.
        ours: True if this process has `RAY_USE_TLS`.
        theirs: True if the cluster has.
        why: How the connection failed.
    """
    if ours and theirs:
        text = f"the TLS certificates do not fit the Ray cluster at {address}: {why!r}"
        hint = "use the RAY_TLS_* files of its machines"
    elif theirs:
        text = f"the Ray cluster at {address} speaks TLS, and this process does not"
        hint = "set RAY_USE_TLS=1 and RAY_TLS_* as on its machines"
    else:
        text = f"the Ray cluster at {address} speaks no TLS, and this process does"
        hint = "start Ray on each machine with RAY_USE_TLS=1, or unset it here"
    return ConfigError(text, hint=hint, details={"reason": "tls"})
