"""The table `[console]` of the configuration."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from toolcell.core.secrets import SecretReference

from .base import Model


def _checked_origin(url: str) -> str:
    parts = urlsplit(url)
    name = parts.hostname or ""
    if parts.scheme == "http" and not is_loopback_name(name):
        raise ValueError("an address that others reach has to be of https")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return url.lower()
    raise ValueError("passkeys need a name: write localhost, not an IP address")


def is_loopback_name(name: str) -> bool:
    """Return True for `localhost` and the names below it."""
    return name == "localhost" or name.endswith(".localhost")


Origin = Annotated[
    str,
    Field(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?$", max_length=256),
    AfterValidator(_checked_origin),
]
"""`https://NAME` or `https://NAME:PORT`; http for `localhost` and the names below."""


_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
_Text = Annotated[str, Field(min_length=1, max_length=256)]


def _checked_issuer(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback_name(parts.hostname or ""):
        raise ValueError("an issuer has to be of https")
    return url


def _checked_network(text: str) -> str:
    if ipaddress.ip_network(text).prefixlen == 0:
        raise ValueError("that is every address: name the proxy's own")
    return text


Network = Annotated[str, Field(max_length=64), AfterValidator(_checked_network)]
"""An IP address, or a network as `10.0.0.0/24`."""


class OIDCPerson(Model):
    """A person whom the issuer knows."""

    name: _Name
    """The name that records have."""

    role: Literal["viewer", "approver", "operator", "admin"]
    """The rights; each role has those of the roles before it."""

    agents: tuple[_Text, ...] | None = None
    """The agents whose requests the person may answer. None: all."""


class OIDCConfig(Model):
    """An issuer of OpenID Connect that people may sign in with, beside passkeys."""

    issuer: Annotated[
        str,
        Field(pattern=r"^https?://[^\s?#@]+$", max_length=256),
        AfterValidator(_checked_issuer),
    ]
    """The URL of the issuer, as its metadata has it."""

    client_id: _Text
    """The id of the console there. The address to come back to is `/oidc/callback` of
    the console."""

    client_secret: SecretReference | None = None
    """The secret of the console there. None: it has none, and PKCE alone protects."""

    people: Annotated[dict[_Text, OIDCPerson], Field(min_length=1)]
    """The people who may sign in, by the `sub` that the issuer has for each. Others are
    refused. They are read at the start."""


class ConsoleConfig(Model):
    """The web console of `toolcell console` and `toolcell serve --console`."""

    public_url: Origin | None = None
    """The address that people open, such as `https://console.example.com`, where a
    proxy with TLS is before the console. None: `http://localhost` with the port."""

    trusted_proxies: tuple[Network, ...] = ()
    """Addresses and networks of proxies before the console, such as `127.0.0.1`. The
    header `X-Forwarded-For` of these alone says whose address counts for limits and
    records. Empty: the address of the connection counts, which behind a proxy is one
    for all people."""

    session_hours: Annotated[float, Field(gt=0, le=24 * 7)] = 12.0
    """Hours after which a person has to sign in again."""

    idle_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 30.0
    """Minutes without a request after which a person has to sign in again; an open page
    alone does not count."""

    oidc: OIDCConfig | None = None
    """An issuer to sign in with. None: passkeys alone."""
