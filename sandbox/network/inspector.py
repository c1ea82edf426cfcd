"""The hosts whose HTTPS is inspected, and the certificates for that."""

from __future__ import annotations

import ssl

from toolcell.core import ConfigError

from ..config.host_rules import HostRules
from ..config.network import Network


class Inspector:
    """Knows whose HTTPS is inspected, and has the TLS settings for both ends.

    Args:
        network: The network of the configuration.

    Raises:
        ConfigError: The package `cryptography` is missing, or the file of `server_ca`
            cannot be read.
    """

    def __init__(self, network: Network) -> None:
        from .authority import authority_for

        self._rules = HostRules(network.inspect)
        self.for_programs = authority_for(network.inspect).context
        """Returns the TLS settings towards programs that ask for a host."""

        self.for_servers = ssl.create_default_context()
        """The TLS settings towards servers, whose certificates have to verify."""

        self.for_servers.set_alpn_protocols(["http/1.1"])
        self.for_servers.minimum_version = ssl.TLSVersion.TLSv1_2
        if network.server_ca:
            try:
                self.for_servers.load_verify_locations(network.server_ca)
            except OSError as error:
                raise ConfigError(
                    f"network.server_ca: {network.server_ca} cannot be read: "
                    f"{error.strerror or error}",
                    hint="name a file of certificates in PEM",
                ) from None

    def inspects(self, host: str, port: int) -> bool:
        """Return True if the HTTPS of a host and port is inspected."""
        return self._rules.names(host, port)
