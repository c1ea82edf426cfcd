"""The name of a driver, and the proof that it has that name."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Literal

from toolcell.core import ConfigError

from .handshake import checked_token

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """The name of a driver, and the key that it has to prove it.

    Whoever has the cluster's token can be a driver without a name. Credentials of a
    node are for agents of drivers with one.

    Args:
        name: A small letter, and up to 63 small letters, digits, `_` and `-`.
        key: 64 hex digits, which this driver and the nodes alone have.

    Raises:
        ConfigError: One of them cannot be used.
    """

    name: str
    key: str = field(repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} is no name of a driver",
                hint="use a small letter, then small letters, digits, _ and -",
            )
        checked_token(self.key, f"the key of the driver {self.name}")

    def proof(self, fingerprint: str, role: Literal["driver", "node"]) -> str:
        """Return the proof of one end of a link, which no other link takes.

        Args:
            fingerprint: That of the node's certificate.
            role: The end that has it; sent back, it proves nothing.
        """
        text = f"toolcell {role} 1|{self.name}|{fingerprint}".encode()
        return hmac.new(bytes.fromhex(self.key), text, hashlib.sha256).hexdigest()

    def accepts(
        self, proof: object, fingerprint: str, role: Literal["driver", "node"]
    ) -> bool:
        """Return True if the other end has sent the proof of its role."""
        return (
            isinstance(proof, str)
            and proof.isascii()
            and hmac.compare_digest(self.proof(fingerprint, role), proof)
        )
