"""The drivers that a node knows by name, and whose agents have its credentials."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from toolcell.core import ConfigError, SandboxError
from toolcell.sandbox import SandboxConfig

from ..wire.driver_identity import DriverIdentity

_log = logging.getLogger(__name__)


class KnownDrivers:
    """Knows which drivers have a name at a node.

    Args:
        keys: Their keys by their names.
        token: The cluster's token, which all drivers have, and so no key.
        config: The configuration of the node's sandbox.

    Raises:
        ConfigError: A name or a key cannot be used, or a credential is for others.
    """

    def __init__(
        self, keys: Mapping[str, str], token: str, config: SandboxConfig
    ) -> None:
        self._drivers = {name: DriverIdentity(name, key) for name, key in keys.items()}
        if len({token, *keys.values()}) <= len(keys):
            raise ConfigError(
                "two drivers have the same key, or one has the cluster's token",
                hint="give each driver another key: new_token()",
            )
        for credential in config.credentials:
            for agent in credential.agents:
                driver, _, name = agent.partition("/")
                if driver not in self._drivers or not name:
                    raise ConfigError(
                        f"the credential {credential.name} is for {agent!r}, which is "
                        "no agent of a driver that this node knows",
                        hint="write DRIVER/AGENT, and give the node the driver's key",
                    )

    def name_of(
        self, greeting: Mapping[str, Any], fingerprint: str
    ) -> tuple[str | None, str | None]:
        """Return the name that a driver has proved, and this node's proof for it.

        Both are None if it says none.

        Args:
            greeting: The driver's first message.
            fingerprint: That of the node's certificate.

        Raises:
            SandboxError: It does not have the name that it says.
        """
        if "driver" not in greeting:
            return None, None
        known = self._drivers.get(str(greeting["driver"]))
        proof = greeting.get("proof")
        if known is None or not known.accepts(proof, fingerprint, "driver"):
            _log.warning("a driver was refused: it did not prove its name")
            raise SandboxError(
                "it does not know this driver by its name and key",
                hint="give the nodes the name and the key of this driver",
            )
        return known.name, known.proof(fingerprint, "node")
