"""Finds a Ray cluster and its token, and makes sure that it asks for that token.

Ray without authentication lets everybody who reaches a port run code on all machines.
So its control service (GCS) is asked before Ray itself is: once without the token,
which it must refuse, and once with it. That also ends what Ray would wait for without
end: a port where nobody listens, and a token that does not fit.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import ssl
import tempfile
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.tls import TLSStream

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.core.text.install_hint import install_hint

FAILURES = (OSError, anyio.EndOfStream, anyio.BrokenResourceError)
"""Errors of a connection that fails; those of TLS are among them."""


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


_AUTO = "auto"
_REFUSED = "16"
_PATH = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_READ_BYTES = 65_536


def ray_address(address: str) -> str:
    """Return `host:port` of a cluster.

    Args:
        address: `host:port`, or `auto`: that of the variable `RAY_ADDRESS`, or the
            cluster that `ray start` started or joined last on this machine.

    Raises:
        ConfigError: It is no address.
        SandboxUnavailableError: There is no cluster on this machine.
    """
    found = address
    if address == _AUTO:
        found = os.environ.get("RAY_ADDRESS", "")
    if not found or found == _AUTO:
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        place = Path(folder, "ray", "ray_current_cluster")
        try:
            found = place.read_text().strip()
        except OSError:
            raise SandboxUnavailableError(
                "there is no Ray cluster on this machine",
                hint="`ray start`, or name its address: host:port",
                details={"reason": "no_ray"},
            ) from None
    host, colon, port = found.rpartition(":")
    if not (colon and host and port.isdecimal()) or "/" in host:
        raise ConfigError(
            f"{found!r} is not the address of a Ray cluster",
            hint="write host:port of its head, or auto; ray:// is not supported",
        )
    return found


def ray_token() -> str:
    """Return the token of Ray, from where Ray itself takes it.

    That is the variable `RAY_AUTH_TOKEN`, or the file that `RAY_AUTH_TOKEN_PATH` names,
    or `~/.ray/auth_token`.

    Raises:
        ConfigError: There is none.
    """
    token = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if token:
        return token
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    place = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        token = place.read_text().strip()
    except OSError:
        token = ""
    if not token:
        raise ConfigError(
            f"there is no token of Ray in RAY_AUTH_TOKEN or {place}",
            hint="`ray get-auth-token --generate`, and bring it to all machines",
        )
    return token


def link_token(token: str) -> str:
    """Return the token of links, which is derived from that of Ray."""
    return hmac.new(token.encode(), b"toolcell links 1", hashlib.sha256).hexdigest()


async def require_guarded(address: str, token: str, seconds: float) -> None:
    """Make sure that a Ray cluster asks for a token, and takes this one.

    Args:
        address: `host:port` of its head.
        token: Its token.
        seconds: Seconds for the answers. When they are over it counts as not there.

    Raises:
        ConfigError: It lets everybody in, or its token or TLS does not fit.
        SandboxUnavailableError: Nobody, or something else, answers.
    """
    tls = ray_tls()
    try:
        with anyio.fail_after(seconds):
            without = await _status(address, None, tls)
            having = await _status(address, token, tls)
    except FAILURES as error:
        theirs = await _has_tls(address, seconds)
        if theirs is not None and (tls or theirs):
            raise tls_problem(
                address, ours=tls is not None, theirs=theirs, why=error
            ) from None
        raise SandboxUnavailableError(
            f"no Ray cluster answers at {address}: {type(error).__name__}",
            hint="look whether its head runs: `ray status`",
            details={"reason": "no_ray"},
        ) from None
    if without != _REFUSED:
        raise ConfigError(
            f"the Ray cluster at {address} lets everybody in who reaches it",
            hint="start Ray on each machine with RAY_AUTH_MODE=token",
            details={"reason": "open_cluster"},
        )
    if having == _REFUSED:
        raise ConfigError(
            f"the token of Ray does not fit the cluster at {address}",
            hint="bring the token of its head to this machine: `ray get-auth-token`",
            details={"reason": "wrong_token"},
        )


async def _connect(
    host: str, port: int, tls: ssl.SSLContext | None
) -> anyio.abc.ByteStream:
    if tls is None:
        return await anyio.connect_tcp(host, port)
    return await anyio.connect_tcp(
        host, port, ssl_context=tls, tls_standard_compatible=False
    )


async def _has_tls(address: str, seconds: float) -> bool | None:
    """Return whether a cluster speaks TLS; None if nobody there speaks at all."""
    host, port = _host_and_port(address)
    with anyio.move_on_after(seconds):
        if await speaks_tls(host, port):
            return True
        with contextlib.suppress(*FAILURES):
            await _status(address, None, None)
            return False
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


async def _status(address: str, token: str | None, tls: ssl.SSLContext | None) -> str:
    """Return the status of gRPC with which a cluster answers a call without effect."""
    try:
        from h2.config import H2Configuration
        from h2.connection import H2Connection
        from h2.events import ResponseReceived, StreamEnded, TrailersReceived
        from h2.exceptions import ProtocolError
    except ImportError:
        raise ConfigError(
            "the h2 package is missing", hint=install_hint("cluster-ray")
        ) from None
    host, port = _host_and_port(address)
    http = H2Connection(H2Configuration(header_encoding=None))
    http.initiate_connection()
    headers = [
        (":method", "POST"),
        (":scheme", "http" if tls is None else "https"),
        (":path", _PATH),
        (":authority", address),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    if token is not None:
        headers.append(("authorization", f"Bearer {token}"))
    http.send_headers(1, headers)
    # One message of no bytes.
    http.send_data(1, bytes(5), end_stream=True)
    status = b""
    async with await _connect(host, port, tls) as stream:
        while True:
            await stream.send(http.data_to_send())
            try:
                events = http.receive_data(await stream.receive(_READ_BYTES))
            except ProtocolError:
                raise anyio.EndOfStream from None
            for event in events:
                if isinstance(event, (ResponseReceived, TrailersReceived)):
                    status = dict(event.headers).get(b"grpc-status", status)
                elif isinstance(event, StreamEnded):
                    return status.decode()
