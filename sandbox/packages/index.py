"""The index of packages, and the password that goes to it alone."""

from __future__ import annotations

import base64
import urllib.request
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pydantic import SecretStr

from ..config.host_rules import DEFAULT_PORTS

_NAME = "toolcell"
_HIDDEN = "****"


class PackageIndex:
    """An index, for uv and for what fetches sources.

    Args:
        url: Its address, in which a user may be; None takes uv's own.
        password: Its password, if it wants one.
    """

    def __init__(self, url: str | None, password: SecretStr | None = None) -> None:
        self._url = url or ""
        self._parts = urlsplit(self._url)
        self._user = unquote(self._parts.username or "")
        self._password = password.get_secret_value() if password else ""

    @property
    def is_folder(self) -> bool:
        """True if it is a folder of this machine."""
        return self._parts.scheme == "file"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that lead uv here; arguments would show it to every user."""
        if not self._password:
            return {"UV_DEFAULT_INDEX": self._url} if self._url else {}
        plain = self._parts._replace(netloc=self._parts.netloc.rpartition("@")[2])
        prefix = f"UV_INDEX_{_NAME.upper()}"
        return {
            "UV_DEFAULT_INDEX": f"{_NAME}={plain.geturl()}",
            f"{prefix}_USERNAME": self._user,
            f"{prefix}_PASSWORD": self._password,
        }

    @property
    def opener(self) -> urllib.request.OpenerDirector:
        """It fetches addresses, those of the index with its password."""
        return urllib.request.build_opener(_Authorization(self))

    def authorization(self, url: str) -> str | None:
        """Return the header for an address; None if it is not on this index's host."""
        if not self._password or _origin(urlsplit(url)) != _origin(self._parts):
            return None
        pair = f"{self._user}:{self._password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"

    def without_password(self, text: str) -> str:
        """Return a text that may show the password, such as a server's answer."""
        if self._password:
            for spelling in (self._password, quote(self._password, safe="")):
                text = text.replace(spelling, _HIDDEN)
        return text


class _Authorization(urllib.request.BaseHandler):
    """Sees each request on its way, also those that redirects lead to."""

    def __init__(self, index: PackageIndex) -> None:
        self._index = index

    def http_request(self, request: urllib.request.Request) -> urllib.request.Request:
        header = self._index.authorization(request.full_url)
        if header is not None:
            # A header that is not marked so goes to the host of a redirect, too.
            request.add_unredirected_header("Authorization", header)
        return request

    https_request = http_request


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
