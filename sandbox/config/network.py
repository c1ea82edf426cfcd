"""The network that programs may reach."""

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from toolcell.core import InvalidInputError

from .base import SettingsModel
from .host_rules import LOOPBACK_NAMES, HostRules, is_address, read_rule


class Network(SettingsModel):
    """The hosts that programs may reach beyond their cell's own loopback interface.

    `Network.none` allows no host. `Network.allow(["api.example.org:443"])` allows those
    of a list, through a proxy in the cell; the proxy variables of the environment lead
    there. `Network.guarded()` leaves it to the guard, for each connection and request.
    This machine looks names up and connects. Addresses that are not public
    (private, loopback, link-local, metadata) are refused whatever name leads there,
    unless the list names the address itself.
    """

    none: ClassVar["Network"]
    """A network without any host."""

    mode: Literal["none", "allow", "guarded"] = "none"
    """`none` allows the cell itself alone; `allow` also allows what `hosts` names. With
    `guarded` the guard judges each connection (`net.connect`) and each request in the
    clear (`http.request`) of a program as an act of its agent; `hosts`, where there are
    any, bound what it can allow. Where no guard is asked all are refused."""

    hosts: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    """At most 1,000 rules such as `api.example.org:443`, `*.example.org:443` for all
    names below one, `192.0.2.1:443` or `[2001:db8::1]:443`. Names outside ASCII are in
    `xn--` form; every rule has a port."""

    inspect: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """At most 100 rules, as in `hosts`, of names whose HTTPS is inspected: cells trust
    a certificate of this process, which reads each request, has it judged, and makes
    it anew. Only in the configuration of a sandbox, for all its runs."""

    server_ca: Annotated[str | None, Field(pattern="^/", max_length=4096)] = None
    """An absolute path of certificates in PEM. Servers of inspected hosts may prove
    their names by these, beside those that this machine trusts."""

    @classmethod
    def allow(cls, hosts: Iterable[str]) -> "Network":
        """Return a network of the hosts in a list of `host:port`; see `hosts`.

        Raises:
            ConfigError: One of them cannot be read.
        """
        return cls(mode="allow", hosts=tuple(hosts))

    @classmethod
    def guarded(cls, hosts: Iterable[str] = ()) -> "Network":
        """Return a network whose connections and requests the guard judges.

        Args:
            hosts: Rules that bound what it can allow; none: any public host.

        Raises:
            ConfigError: One of them cannot be read.
        """
        return cls(mode="guarded", hosts=tuple(hosts))

    @field_validator("hosts")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        HostRules(value)
        return value

    @field_validator("inspect")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for rule in value:
            host, _ = read_rule(rule)
            if is_address(host) or host in LOOPBACK_NAMES:
                raise ValueError(f"{rule!r}: hosts are inspected by their names")
        return value

    @model_validator(mode="after")
    def _clear(self) -> "Network":
        if (self.hosts or self.inspect) and self.mode == "none":
            raise ValueError("`hosts` are reached with mode='allow' or 'guarded'")
        rules = self.rules
        out = [host for host in self.inspect if not rules.allow(*read_rule(host))]
        if out:
            raise ValueError(f"`inspect` names what cannot be reached: {out[0]}")
        if self.server_ca and not self.inspect:
            raise ValueError("`server_ca` is for the hosts of `inspect`")
        return self

    @property
    def rules(self) -> HostRules:
        """The hosts that may be reached, before any guard is asked."""
        any_host = self.mode == "guarded" and not self.hosts
        return HostRules(self.hosts, any_host=any_host)

    def to(self, hosts: Iterable[str]) -> "Network":
        """Return the network to other hosts; it is guarded if this one is.

        Raises:
            ConfigError: One of them cannot be read.
        """
        if not (named := tuple(hosts)):
            return Network.none
        guarded = self.mode == "guarded"
        return Network.guarded(named) if guarded else Network.allow(named)

    def narrowed_by(self, other: "Network") -> "Network":
        """Return the other one; guarded if one of them is.

        Raises:
            InvalidInputError: It reaches further than this.
        """
        require_no_inspection(other)
        rules = self.rules
        wider = [host for host in other.hosts if not rules.allow(*read_rule(host))]
        if wider or (self.mode == "none" and other.mode != "none"):
            named = ", ".join(wider) or "there is no network"
            raise InvalidInputError(
                f"a run can only narrow the network; wider here: {named}",
                hint="name it in SandboxConfig(network=...), or use "
                "Session.set_network",
            )
        if other.mode == "guarded":
            hosts = other.hosts or self.hosts
            is_empty = self.mode == "allow" and not hosts
            return Network.none if is_empty else Network.guarded(hosts)
        if self.mode == "guarded" and other.hosts:
            return Network.guarded(other.hosts)
        return other


def require_no_inspection(network: Network) -> None:
    """Check that a network is one for a run or a session.

    Raises:
        InvalidInputError: It says whose HTTPS is inspected.
    """
    if network.inspect:
        raise InvalidInputError(
            "`inspect` holds for a whole sandbox, whose cells trust its certificate",
            hint="name it in SandboxConfig(network=...), and not here",
        )


# Defaults need no check, and no validator: it takes 0.3 ms of a start to make one.
Network.none = Network.model_construct()
