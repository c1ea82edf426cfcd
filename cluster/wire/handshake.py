"""Proves to both ends of a new connection that the other one has the token.

A node shows its own certificate, which it makes when it starts; a driver knows the
fingerprint from the directory. Both answer the other's challenge by an HMAC with the
cluster's token and that fingerprint, so that no one in the middle can pass it on. All
of it has fixed sizes: nothing that a stranger sends is parsed.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import re
import secrets
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from .tls import TLSSocket

HANDSHAKE_SECONDS = 5.0
"""Seconds for the whole hand-shake. When it is reached the connection is closed."""

_NONCE_BYTES = 32
_CERTIFICATE_DAYS = 365
_TOKEN = re.compile(r"[0-9a-f]{64}")


class HandshakeRefusedError(Exception):
    """The other end does not have the token, or is not a node of the cluster."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A node's certificate, ready to serve, and its fingerprint (SHA-256, hex)."""

    context: ssl.SSLContext = field(repr=False)
    fingerprint: str


def new_token() -> str:
    """Return a new token for a cluster: 256 random bits, as 64 hex digits."""
    return secrets.token_hex(32)


def checked_token(token: str, what: str = "a cluster's token") -> bytes:
    """Return a token as a key. Raises ConfigError, which says what it is."""
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{what} is 64 hex digits", hint="make one: new_token()")
    return bytes.fromhex(token)


def new_identity() -> Identity:
    """Make a certificate that lives as long as this process.

    Raises:
        ConfigError: The package `cryptography` is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            "the cryptography package is missing", hint=install_hint("cluster")
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "toolcell node")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_CERTIFICATE_DAYS))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # ssl reads files only.
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "node.pem")
        place.touch(mode=0o600)
        place.write_bytes(private + certificate.public_bytes(pem))
        context.load_cert_chain(place)
    return Identity(context, certificate.fingerprint(hashes.SHA256()).hex())


def driver_context() -> ssl.SSLContext:
    """Return the TLS settings of a driver: it checks the fingerprint by itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def fingerprint_of(certificate: bytes) -> str:
    """Return the fingerprint of a certificate in DER."""
    return hashlib.sha256(certificate).hexdigest()


async def admit_driver(connection: TLSSocket, key: bytes, fingerprint: str) -> None:
    """Let a driver in, at the node.

    Raises:
        HandshakeRefusedError: It does not have the token.
    """
    ours = os.urandom(_NONCE_BYTES)
    with anyio.move_on_after(HANDSHAKE_SECONDS):
        try:
            await connection.send(ours)
            answer = await connection.receive_exactly(2 * _NONCE_BYTES)
            theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
            if hmac.compare_digest(
                proof, _proof(key, b"driver", ours, theirs, fingerprint)
            ):
                await connection.send(_proof(key, b"node", ours, theirs, fingerprint))
                return
        except (OSError, EOFError):
            raise HandshakeRefusedError("the connection ended") from None
    raise HandshakeRefusedError("it does not have the token")


async def meet_node(connection: TLSSocket, key: bytes, fingerprint: str) -> None:
    """Convince a node, and be convinced, at the driver.

    The caller has compared the certificate with the fingerprint.

    Raises:
        HandshakeRefusedError: The node, or this driver, does not have the token.
    """
    ours = os.urandom(_NONCE_BYTES)
    with anyio.move_on_after(HANDSHAKE_SECONDS):
        try:
            theirs = await connection.receive_exactly(_NONCE_BYTES)
            proof = _proof(key, b"driver", theirs, ours, fingerprint)
            await connection.send(ours + proof)
            answer = await connection.receive_exactly(_NONCE_BYTES)
        except (OSError, EOFError):
            raise HandshakeRefusedError("the node refused this token") from None
        right = _proof(key, b"node", theirs, ours, fingerprint)
        if hmac.compare_digest(answer, right):
            return
        raise HandshakeRefusedError("the node does not have the token")
    raise HandshakeRefusedError("the node did not answer in time")


def _proof(
    key: bytes, role: bytes, node_nonce: bytes, driver_nonce: bytes, fingerprint: str
) -> bytes:
    text = b"toolcell link 1|" + role + node_nonce + driver_nonce + fingerprint.encode()
    return hmac.new(key, text, hashlib.sha256).digest()
