"""`sandbox.network`: the hosts that a sandbox reaches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toolcell.core import ConfigError
from toolcell.sandbox import Network

from ..protocol.errors import APIError
from .action import Action, ActionArguments, SandboxArguments, Scene

ALL_HOSTS = {"0.0.0.0/0", "*"}


class NetworkArguments(ActionArguments):
    """Hosts, within those of the configuration."""

    allow_internet_access: bool | None = None
    """False: none. Else those of `allow_out`, or all of the configuration."""

    allow_out: list[str] | None = None

    def network(self) -> Network | None:
        """Return the network; None: that of the configuration. Raises APIError."""
        if self.allow_internet_access is False:
            return Network.none
        if not self.allow_out or set(self.allow_out) & ALL_HOSTS:
            return None
        hosts = [host if ":" in host else f"{host}:443" for host in self.allow_out]
        try:
            return Network.allow(hosts)
        except ConfigError as error:
            raise APIError(400, error.message) from None


class SetNetworkArguments(NetworkArguments, SandboxArguments):
    """The network that a sandbox has from now on."""


@asynccontextmanager
async def _set_network(
    scene: Scene, arguments: SetNetworkArguments
) -> AsyncIterator[None]:
    network = scene.sandboxes.narrowed(arguments.network())
    await scene.sandbox(arguments).session.set_network(network)
    yield


SET_NETWORK = Action("sandbox.network", SetNetworkArguments, _set_network)
