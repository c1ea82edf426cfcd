"""The file of certificates that programs trust where the host inspects HTTPS."""

from __future__ import annotations

import os

FOLDER = "/python/trust"
"""The folder of the file, in cells with their own file systems."""

_BUNDLE, _WGET = "ca.pem", "wgetrc"
_WGETRC = "WGETRC"
STORES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""The files that systems keep the certificates in that they trust."""
# No one of these is enough: most clients look at one of them alone.
VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    _WGETRC,
)


def bundle(authority: str) -> str:
    """Return the certificates of this system, and another one; empty without that."""
    return _store() + authority if authority else ""


def make(folder: str, text: str, root: str = "") -> None:
    """Write certificates to a new folder.

    Args:
        folder: Its path for programs.
        text: The certificates, from `bundle`.
        root: The place of the programs' root.
    """
    os.makedirs(root + folder, mode=0o755, exist_ok=True)
    named = os.path.join(folder, _BUNDLE)
    _write(root + named, text)
    # wget knows no variable for it.
    _write(os.path.join(root + folder, _WGET), "ca_certificate = %s\n" % named)


def variables(folder: str) -> dict[str, str]:
    """Return the variables that lead programs to the file; none if there is none."""
    named = os.path.join(folder, _BUNDLE)
    if not folder or not os.path.exists(named):
        return {}
    found = dict.fromkeys(VARIABLES, named)
    found[_WGETRC] = os.path.join(folder, _WGET)
    return found


def _store() -> str:
    for path in STORES:
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                return file.read().rstrip() + "\n"
        except OSError:
            continue
    return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii", errors="replace") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(text)
