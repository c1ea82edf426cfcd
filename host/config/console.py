"""The table `[console]` of the configuration."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

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


class ConsoleConfig(Model):
    """The web console of `toolcell console` and `toolcell serve --console`."""

    public_url: Origin | None = None
    """The address that people open, such as `https://console.example.com`, where a
    proxy with TLS is before the console. None: `http://localhost` with the port."""

    session_hours: Annotated[float, Field(gt=0, le=24 * 7)] = 12.0
    """Hours after which a person has to sign in again."""

    idle_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 30.0
    """Minutes without a request after which a person has to sign in again; an open page
    alone is none."""
