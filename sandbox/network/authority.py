"""The certificates that cells get for hosts whose HTTPS is inspected.

The authority's key never leaves this process, and dies with it. Its certificate may
name the inspected hosts alone, and only cells of this process trust it.

Sources: RFC 5280 section 4.2.1.
"""

from __future__ import annotations

import datetime
import functools
import secrets
import ssl
import tempfile
from collections.abc import Iterable
from ipaddress import ip_network

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from ..config.host_rules import read_rule

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise ConfigError(
        "`network.inspect` needs the package cryptography", hint=install_hint("https")
    ) from None

_DAY = datetime.timedelta(days=1)
# The keys end with this process, so nothing is renewed.
_DAYS = 3_650
_MAX_LEAVES = 1_024
_ADDRESSES = ("0.0.0.0/0", "::/0")


class CertificateAuthority:
    """Makes certificates for hosts, in memory.

    Args:
        names: The host names that it may name, and all names below them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, "toolcell inspection")]
        )
        self._certificate = self._signed(
            self._name,
            self._key.public_key(),
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_usage(signs_certificates=True), True),
                (_only(names), True),
            ],
        )
        self.pem = _pem(self._certificate).decode()
        """The text that its clients have to trust."""

        self.context = functools.lru_cache(_MAX_LEAVES)(self._context)
        """Returns the TLS settings of a server that has a certificate for a host."""

    def _context(self, host: str) -> ssl.SSLContext:
        leaf = self._signed(
            x509.Name([]),
            self._leaf_key.public_key(),
            [
                (x509.SubjectAlternativeName([x509.DNSName(host)]), True),
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (_usage(signs_certificates=False), True),
                (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            ],
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        password = secrets.token_bytes(32)
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password),
        )
        # OpenSSL reads files alone; nobody else has the password.
        with tempfile.NamedTemporaryFile() as file:
            file.write(key + _pem(leaf))
            file.flush()
            context.load_cert_chain(file.name, password=password)
        return context

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extensions: Iterable[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        own = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAYS * _DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(own), False
            )
        )
        for extension, is_critical in extensions:
            builder = builder.add_extension(extension, is_critical)
        return builder.sign(self._key, hashes.SHA256())


@functools.lru_cache(maxsize=32)
def authority_for(inspect: tuple[str, ...]) -> CertificateAuthority:
    """Return this process's authority for the rules of inspected hosts.

    Raises:
        ConfigError: The package `cryptography` is missing.
    """
    hosts = (read_rule(rule)[0] for rule in inspect)
    return CertificateAuthority(sorted({host.removeprefix("*.") for host in hosts}))


def _only(names: Iterable[str]) -> x509.NameConstraints:
    return x509.NameConstraints(
        permitted_subtrees=[x509.DNSName(name) for name in names],
        excluded_subtrees=[
            x509.IPAddress(ip_network(address)) for address in _ADDRESSES
        ],
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
