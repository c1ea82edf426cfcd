"""Operations of an OpenAPI document, as tools like any other.

Models read the definitions that were approved (`OpenAPIPins`), and requests are made of
them. The document of now is compared with them before the first call and once an hour,
and an operation that changed is not called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import anyio.to_thread
from pydantic import JsonValue

from toolcell.core import ConfigError, ToolError, ToolExecutionError
from toolcell.core.addresses import is_loopback_or_https
from toolcell.core.egress import EgressRules
from toolcell.core.http_exchange import NoAnswerError, Request, exchange

from ..definition.context import ToolContext
from ..definition.json_schema_tool import JSONSchemaTool
from ..definition.tool import Tool
from ..definition.validation import Arguments
from ..external.definition import model_description, model_schema, unknown_outcome
from ..external.selection import ToolSelection, check_prefix, offered_name
from .answers import content_of, read_answer
from .credentials import Credentials
from .definition import OpenAPIDefinition, OpenAPIPins
from .document import fetch, read_document, read_file
from .operations import list_operations
from .requests import add_body, draft
from .selection import Selection

DOCUMENT_SECONDS = 3_600.0
"""Seconds for which a document that was read counts. When it is reached the next call
reads it again."""

_SAFE_METHODS = frozenset({"get", "head", "options", "trace"})


class OpenAPITool(JSONSchemaTool):
    """An operation of an API; made by `OpenAPIToolset`."""

    def __init__(
        self, toolset: OpenAPIToolset, definition: OpenAPIDefinition, idempotent: bool
    ) -> None:
        self.toolset = toolset
        self.definition = definition
        self.schemes = toolset.credentials.chosen(definition)
        super().__init__(
            self._ask,
            name=offered_name(toolset.prefix, definition.name),
            description=model_description(f"API {toolset.name}", definition),
            parameters=model_schema(definition.input_schema),
            idempotent=idempotent,
            timeout=toolset.timeout_seconds,
            tags={
                "net",
                "openapi",
                f"openapi:{toolset.name}",
                f"http:{definition.method}",
            },
            cost={"bytes": toolset.max_bytes},
        )

    def validate(self, arguments: Mapping[str, Any]) -> Arguments:
        checked = super().validate(arguments)
        draft(self.name, self.definition, checked.values)
        return checked

    def _ask(self, arguments: dict[str, Any], context: ToolContext) -> JsonValue:
        return self.toolset.call(self, arguments, context)

    @property
    def definition_hash(self) -> str:
        """The hash of the whole definition, as it is pinned."""
        return self.definition.digest

    @property
    def source(self) -> str:
        return f"the API {self.toolset.name}"

    @property
    def usual_result(self) -> Mapping[str, Any]:
        schema = self.definition.output_schema
        return super().usual_result if schema is None else model_schema(schema)


class OpenAPIToolset:
    """The operations of one HTTP API, by its OpenAPI document.

    ```
    async with OpenAPIToolset("pets", Path("pets.json"), "https://pets.example.com/v1",
                              pins=pins) as pets:
        registry.register_many(pets.tools)
    ```
    The document and the API are untrusted. Operations are called like all other tools:
    validated, guarded and recorded. Requests go to the server that is named here, never
    to one that the document names, and no redirect is followed. Secrets are put into a
    request as it is sent, and hidden where an answer repeats them.

    Args:
        name: The API's name, here and in the pins.
        document: The document: a file, a text, or the URL to fetch it from, by the same
            rules as the requests.
        server: The URL that the paths of the document are below.
        pins: Approved definitions; operations that are not among them are left out.
            None approves those of the document as it is when the toolset is opened.
        prefix: The beginning of each name, as `prefix__name`; default: the name.
        operations: Patterns of the operations to offer, by their names, as `get*`;
            default all. Where a document is approved, each has to match.
        secrets: Secrets by the names of the document's security schemes.
        networks: Addresses that may be reached although they are not public, as
            `10.1.0.0/16`.
        idempotent: Operations, by their names, that may be called again when it is not
            known whether a call was made. Methods do not count.
        timeout_seconds: Seconds of one call, reading the document included; default 30.
            When it is reached the connection is cut, and the call ends as `timeout`.
        max_bytes: Bytes of an answer; default 1,000,000. When it is reached the call
            fails.

    Raises:
        ConfigError: A name, URL, network, number or secret cannot be used.
    """

    def __init__(
        self,
        name: str,
        document: Path | str,
        server: str,
        *,
        pins: OpenAPIPins | None,
        prefix: str | None = None,
        operations: Collection[str] = ("*",),
        secrets: Mapping[str, str] | None = None,
        networks: Collection[str] = (),
        idempotent: Collection[str] = (),
        timeout_seconds: float = 30.0,
        max_bytes: int = 1_000_000,
    ) -> None:
        self.name = name
        self.prefix = name if prefix is None else prefix
        check_prefix(self.prefix)
        if not min(timeout_seconds, max_bytes) > 0:
            raise ConfigError(
                "the limits of an API are above 0",
                hint="leave them out for the defaults",
            )
        self.timeout_seconds = timeout_seconds
        self.max_bytes = max_bytes
        self.credentials = Credentials(secrets or {})
        self._server = server.rstrip("/")
        self._rules = _rules(name, self._server, networks)
        if {"?", "#"} & set(server):
            raise ConfigError(
                f"the server of the API {name} has a query",
                hint='write it like "https://api.example.com/v1"',
            )
        if secrets and not is_loopback_or_https(server):
            raise ConfigError(
                f"the API {name} has secrets, and its server no https",
                hint="a secret is sent over https, or to a loopback address",
            )
        self._document = document
        self._is_url = isinstance(document, str) and document.startswith(
            ("http://", "https://")
        )
        if self._is_url:
            self._document_rules = _rules(name, str(document), networks)
        self._operations = tuple(operations)
        self._idempotent = frozenset(idempotent)
        self._lock = threading.Lock()
        self._read_at = -DOCUMENT_SECONDS
        self._selection: ToolSelection[OpenAPIDefinition, OpenAPITool] = ToolSelection(
            f"the API {name}", self._tool, None if pins is None else pins.of(name)
        )

    @property
    def tools(self) -> list[Tool]:
        """The tools, for a registry."""
        return list(self._selection.tools.values())

    @property
    def definitions(self) -> list[OpenAPIDefinition]:
        """The approved definitions of the tools."""
        return list(self._selection.definitions.values())

    @property
    def unusable(self) -> dict[str, str]:
        """The reason for each operation that cannot be called, by its name.

        It follows from the document as it was read last.
        """
        return self._selection.unusable

    @property
    def omitted(self) -> int:
        """The number of operations beyond the 1,000 that one API may have.

        It follows from the document as it was read last.
        """
        return self._selection.omitted

    async def __aenter__(self) -> Self:
        if self._selection.is_adopting:
            await anyio.to_thread.run_sync(self._compare, self.timeout_seconds)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is held open between calls."""

    def _tool(self, definition: OpenAPIDefinition) -> OpenAPITool:
        return OpenAPITool(self, definition, definition.name in self._idempotent)

    def _compare(self, seconds: float) -> None:
        """Read the document, and compare it with the approved operations."""
        if isinstance(self._document, Path):
            text: str | bytes = read_file(self._document)
        elif self._is_url:
            text = fetch(self._document, self._document_rules, seconds)
        else:
            text = self._document
        selection = Selection(self._operations)
        listing = list_operations(read_document(text), selection, self._server)
        if self._selection.is_adopting:
            selection.check(self.name)
        self._selection.compare(listing)
        self._read_at = time.monotonic()

    def call(
        self, tool: OpenAPITool, arguments: dict[str, Any], context: ToolContext
    ) -> JsonValue:
        """Make one call for a tool of this set. Blocks.

        Raises:
            ToolError: It was not made, it failed, or its outcome is unknown.
        """
        self._check_document(context)
        reason = self._selection.change_of(tool.definition.name)
        if reason is not None:
            raise ToolExecutionError(
                f"{tool.name} cannot be used: {reason}",
                hint=f"`toolcell tools pin {self.name}` shows it and approves it",
            )
        request = draft(tool.name, tool.definition, arguments)
        add_body(request, tool.definition, arguments)
        self.credentials.add_to(request, tool.schemes)
        if request.cookies:
            pairs = (f"{name}={value}" for name, value in request.cookies)
            request.headers["Cookie"] = "; ".join(pairs)
        request.headers["Accept"] = "application/json, text/*;q=0.9, */*;q=0.1"
        # Read before the secrets are in it: its errors may repeat it.
        target = self._rules.target(f"{self._server}/")
        path = urlsplit(self._server).path + request.target
        try:
            answer = exchange(
                target._replace(path=path),
                self._rules,
                Request(request.method, request.headers, request.body),
                self._seconds_left(context),
                lambda response: read_answer(response, self.max_bytes),
            )
        except NoAnswerError as error:
            context.check_cancelled()
            raise self._no_answer(tool, was_sent=error.was_sent) from error
        # What was cut off at the deadline looks like an end.
        context.check_cancelled()
        return content_of(tool.name, answer, self.max_bytes, self.credentials, context)

    def _check_document(self, context: ToolContext) -> None:
        seconds = self._seconds_left(context)
        if not self._lock.acquire(timeout=seconds):
            context.check_cancelled()
        try:
            if time.monotonic() - self._read_at >= DOCUMENT_SECONDS:
                self._compare(self._seconds_left(context))
        except ConfigError as error:
            raise ToolExecutionError(
                f"the document of {self.name} cannot be compared with what was "
                f"approved: {error.message}",
                hint="use another tool; who set this one up has to look at it",
            ) from error
        finally:
            self._lock.release()

    def _seconds_left(self, context: ToolContext) -> float:
        context.check_cancelled()
        remaining = context.remaining()
        return self.timeout_seconds if remaining is None else max(0.001, remaining)

    def _no_answer(self, tool: OpenAPITool, *, was_sent: bool) -> ToolExecutionError:
        if was_sent and tool.definition.method not in _SAFE_METHODS:
            return unknown_outcome(f"{tool.name} gave no answer")
        return ToolExecutionError(
            f"the server of {self.name} did not answer well",
            hint="try again later, or use another tool",
        )


def _rules(owner: str, url: str, networks: Collection[str]) -> EgressRules:
    """Return rules for the host and port of one URL alone."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        rules = EgressRules.of(owner, [parts.hostname or ""], [port], networks)
        rules.target(url)
    except (ToolError, ValueError):
        raise ConfigError(
            f"the URL of the API {owner} cannot be used",
            hint='write it like "https://api.example.com/v1"',
        ) from None
    return rules
