"""The table `[cluster]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from toolcell.core.secrets import SecretReference

from .base import ADDRESS, Model, Seconds

DriverName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
_OF_MACHINES = {
    *("token", "node", "listen", "public_host", "public_port", "drain_seconds"),
    *("driver", "drivers"),
}


class ClusterConfig(Model):
    """A cluster of machines. Where the table is, this host is a driver of the cluster:
    its programs run on the nodes. `toolcell cluster up` makes this machine a node, with
    cells of `[sandbox]`.

    Nodes are found in a directory in Redis, or are the machines of a Ray cluster: one
    of `directory` and `address` is set."""

    directory: SecretReference | None = None
    """The Redis server where nodes and drivers find each other."""

    address: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """`HOST:PORT` of the head of a Ray cluster, or `auto`: that of this machine.
    `toolcell cluster up` then starts a node on each machine that has the resource
    `toolcell`, and returns."""

    token: SecretReference | None = None
    """The cluster's token, 64 hex digits (`openssl rand -hex 32` makes one), the same
    at all nodes and drivers. Whoever has it may run programs on all nodes, and drain
    them. With `address`, Ray's token is used."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = "toolcell"
    """The cluster, so that several can share a server."""

    node: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] | None = (
        None
    )
    """The name of this node, unique in the cluster. None: that of the machine."""

    driver: DriverName | None = None
    """The name of this host as a driver; `drivers` has its key. Nodes that do not have
    this name and key are not used. Hosts with the same name are one driver: their
    agents with the same name are one agent at a node. None: it has no name, and no
    credentials on nodes."""

    drivers: Annotated[dict[DriverName, SecretReference], Field(max_length=256)] = (
        Field(default_factory=dict)
    )
    """The keys of drivers by their names, 64 hex digits each, made like the token. A
    driver has its own alone; a node has those of all drivers that `agents` of its
    `[[sandbox.credentials]]` name, as `DRIVER/AGENT`."""

    listen: Annotated[str, Field(pattern=ADDRESS)] = "127.0.0.1:0"
    """`HOST:PORT` where this node takes links; port 0 is any. Of a name, all addresses
    that this machine has; `0.0.0.0` is IPv4 alone, and `[::]` IPv6."""

    public_host: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The address, or the name, that drivers reach this node at. None: the host of
    `listen`, unless that is `0.0.0.0` or `[::]`."""

    public_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """The port that drivers reach this node at, where a container (`-p 9000:8470`) or a
    router publishes it as another. None: the port of `listen`."""

    drain_seconds: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds that runs of this node have when a signal ends it. When it
    is reached they are given up."""

    check_seconds: Seconds = 30.0
    """Seconds between two tries of a cell on this node. When two fail the node is sick,
    and takes nothing new until three in a row are good."""

    wait_seconds: Seconds = 5.0
    """Seconds that a run waits while no node can take any. When it is reached the run
    fails as `no_nodes`."""

    lost_seconds: Seconds = 10.0
    """Seconds without a sign of life. When it is reached a node, or a driver, is given
    up, with its runs."""

    image: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The image that cells of a program must have, as the nodes' `[sandbox]` names it.
    None: that of any node."""

    retry_lost: bool = False
    """If true, a program whose node is lost is run again once, on another node, unless
    it has called a tool or its output was passed on."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.driver is not None and self.driver not in self.drivers:
            raise ValueError(f"`drivers` has no key of the driver {self.driver}")
        if (self.directory is None) == (self.address is None):
            raise ValueError("set one of `directory` and `address`")
        if self.directory is not None and self.token is None:
            raise ValueError("`directory` needs `token`")
        if self.address is not None and (wrong := _OF_MACHINES & self.model_fields_set):
            raise ValueError(f"`address` excludes {', '.join(sorted(wrong))}")
        return self
