"""Credentials that programs use and never have."""

import re
from collections.abc import Collection, Iterable
from typing import Annotated

from pydantic import Field, field_validator

from toolcell.core.secrets import SecretReference

from ..cell.wire import trust
from .base import SettingsModel
from .host_rules import LOOPBACK_NAMES, HostRules, is_address, read_rule

_HEADER = re.compile(r"header:[A-Za-z0-9-]{1,100}")
_QUERY = re.compile(r"query:[A-Za-z0-9._~-]{1,100}")
# They say where a request goes and ends, or are made anew.
_NO_PLACE = (
    *("connection", "content-length", "content-type", "expect", "host", "te"),
    *("trailer", "transfer-encoding", "upgrade"),
)


class Credential(SettingsModel):
    """A credential for inspected hosts, of which programs have a placeholder.

    The proxy of this machine writes the value into requests to `hosts`, in the places
    of `where`. A placeholder anywhere else is refused. Placeholders in cells are as
    long as the value, and of one agent, for as long as the sandbox is open.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
    """Its name in records."""

    value: SecretReference
    """The place of the value: `env:NAME` or `file:/path`, which is read again
    when it changes. It is 20 to 4,096 letters, digits or `._~+/=:-`."""

    hosts: Annotated[tuple[str, ...], Field(min_length=1, max_length=100)]
    """Rules as in `Network.inspect`, which has to name each of them."""

    agents: Annotated[tuple[str, ...], Field(max_length=1_000)] = ()
    """The agents whose programs have it; `*` is every program, also one of no agent."""

    variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
    """The environment variable in which programs find the placeholder; none of those
    that lead to the proxy, such as `HTTPS_PROXY` and `SSL_CERT_FILE`."""

    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{0,32}$")] = ""
    """The beginning of the placeholder, such as `ghp_`, where a client checks it."""

    where: Annotated[tuple[str, ...], Field(min_length=1, max_length=16)] = (
        "header:Authorization",
        "basic",
    )
    """The places of requests that get the value: `header:NAME` anywhere in that header,
    `basic` as the user or the password of HTTP's basic authentication, `query:NAME` as
    all of that parameter."""

    @field_validator("hosts")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for rule in value:
            host, port = read_rule(rule)
            if is_address(host) or host in LOOPBACK_NAMES or port == 80:
                raise ValueError(f"{rule!r}: credentials go to names, by HTTPS alone")
        return value

    @field_validator("variable")
    @classmethod
    def _free(cls, value: str) -> str:
        if value.lower().endswith("_proxy") or value in trust.VARIABLES:
            raise ValueError(f"{value!r} leads programs to the proxy, and to its trust")
        return value

    @field_validator("where")
    @classmethod
    def _places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for place in value:
            known = place == "basic" or _QUERY.fullmatch(place)
            if known or _HEADER.fullmatch(place):
                if place.removeprefix("header:").lower() not in _NO_PLACE:
                    continue
            raise ValueError(
                f"{place!r} is not served: header:NAME, basic and query:NAME are"
            )
        return value

    def is_of(self, agent_id: str | None) -> bool:
        """Return True if programs of an agent have it."""
        return "*" in self.agents or agent_id in self.agents

    def within(self, hosts: Collection[str]) -> "Credential | None":
        """Return it for those of its hosts that rules name; None if they name none."""
        theirs, named = HostRules(hosts), HostRules(self.hosts)
        both = [host for host in self.hosts if theirs.names(*read_rule(host))]
        both += [host for host in hosts if named.names(*read_rule(host))]
        found = tuple(dict.fromkeys(both))
        return self.model_copy(update={"hosts": found}) if found else None


def why_not_together(credentials: Iterable[Credential], inspect: Iterable[str]) -> str:
    """Return why a sandbox cannot have these credentials; empty if it can.

    Args:
        credentials: They.
        inspect: The rules of its inspected hosts.
    """
    rules, taken = HostRules(inspect), set[str]()
    for credential in credentials:
        outside = [
            rule for rule in credential.hosts if not rules.names(*read_rule(rule))
        ]
        if outside:
            return (
                f"the credential {credential.name} is for {outside[0]}, which "
                "`network.inspect` does not name"
            )
        for name in (f"name {credential.name}", f"variable {credential.variable}"):
            if name in taken:
                return f"two credentials have the {name}"
            taken.add(name)
    return ""
