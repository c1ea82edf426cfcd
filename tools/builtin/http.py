"""Fetches pages of the public internet, and of nothing else.

Each redirect starts from the beginning: its URL is read, looked up and checked anew.
"""

from __future__ import annotations

import http.client
from collections.abc import Collection
from urllib.parse import urljoin

from pydantic import JsonValue

from toolcell.core import ConfigError, ToolError
from toolcell.core.egress import EgressRules, Target
from toolcell.core.http_exchange import NoAnswerError, Request, exchange, read_body
from toolcell.core.text.charsets import decoded

from ..definition.context import ToolContext
from ..definition.tool import Tool, tool

MAX_REDIRECTS = 5
"""Redirects that are followed. When it is reached the call fails."""

_REDIRECTS = (301, 302, 303, 307, 308)
_TEXT = ("json", "xml", "javascript", "x-www-form-urlencoded", "yaml")
_PAGE = Request(
    headers={"Accept": "text/*, application/json, application/xml;q=0.9"},
)


def http_get_tool(
    hosts: Collection[str],
    *,
    ports: Collection[int] = (80, 443),
    networks: Collection[str] = (),
    max_bytes: int = 1_048_576,
    timeout_seconds: float = 20.0,
) -> Tool:
    """Return `http_get`, which fetches text from the hosts that are named.

    Args:
        hosts: Names such as `example.com`; `*.example.com` for all below it; `*` for
            every public host. Empty: none.
        ports: Ports that may be connected to.
        networks: Addresses that may be reached although they are not public, as
            `10.1.0.0/16`.
        max_bytes: Bytes of a body; default 1 MiB. When it is reached the rest is not
            read, and `truncated` says so.
        timeout_seconds: Seconds of the whole call, redirects included; default 20. When
            it is reached the call ends as `timeout`.

    Raises:
        ConfigError: A network or a number cannot be used.
    """
    rules = EgressRules.of("http_get", hosts, ports, networks)
    if max_bytes < 1:
        raise ConfigError(
            "max_bytes must be at least 1", hint="leave it out for the default"
        )

    @tool(tags={"net"}, timeout=timeout_seconds, cost={"bytes": max_bytes})
    def http_get(url: str, context: ToolContext) -> dict[str, JsonValue]:
        """Fetch a text from the web.

        Args:
            url: The whole address, http or https.
        """
        for _ in range(MAX_REDIRECTS + 1):
            target = rules.target(url)
            response = _fetch(target, rules, max_bytes, context)
            if isinstance(response, dict):
                return response
            url = urljoin(target.url, response)
            if target.secure and not url.lower().startswith("https:"):
                raise ToolError(
                    "a redirect leads from https to http",
                    hint="ask for the https address that it really has",
                )
        raise ToolError(
            f"more than {MAX_REDIRECTS} redirects",
            hint="ask for the address that it leads to",
        )

    return http_get


def _fetch(
    target: Target, rules: EgressRules, max_bytes: int, context: ToolContext
) -> dict[str, JsonValue] | str:
    """Return the answer, or where it redirects to."""

    def read(response: http.client.HTTPResponse) -> dict[str, JsonValue] | str:
        return _content(target, response, max_bytes)

    try:
        answer = exchange(target, rules, _PAGE, _seconds_left(context), read)
        # What was cut off at the deadline looks like an end.
        context.check_cancelled()
        return answer
    except NoAnswerError as error:
        context.check_cancelled()
        raise ToolError(
            f"{target.host} did not answer well",
            hint="try again later, or ask another host",
        ) from error


def _seconds_left(context: ToolContext) -> float:
    """Return the seconds that are left.

    Raises:
        ToolTimeoutError: There are none.
    """
    context.check_cancelled()
    remaining = context.remaining()
    return 20.0 if remaining is None else max(0.001, remaining)


def _content(
    target: Target, response: http.client.HTTPResponse, max_bytes: int
) -> dict[str, JsonValue] | str:
    location = response.getheader("Location")
    if response.status in _REDIRECTS and location is not None:
        return location
    kind = response.headers.get_content_type()
    if response.getheader("Content-Encoding", "identity") != "identity":
        raise ToolError(
            f"{target.host} answered with compressed content",
            hint="ask for another address",
        )
    if not kind.startswith("text/") and not kind.endswith(_TEXT):
        raise ToolError(
            f"{target.host} answered with {kind}, which is no text",
            hint="ask for a page of text, JSON or XML",
        )
    body = read_body(response, max_bytes)
    charset = response.headers.get_content_charset() or "utf-8"
    return {
        "url": target.url,
        "status": response.status,
        "content_type": kind,
        "text": decoded(body[:max_bytes], charset),
        "truncated": len(body) > max_bytes,
    }
