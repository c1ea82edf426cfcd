"""Reads an OpenAPI document: plain values of a bounded size, whatever its author sent.

JSON and YAML are read. Nothing that it refers to is opened or fetched.
"""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from typing import Any

import yaml

from toolcell.core import ConfigError
from toolcell.core.egress import EgressRules
from toolcell.core.http_exchange import NoAnswerError, Request, exchange, read_body
from toolcell.core.text.json_size import count_values
from toolcell.core.text.strict_json import read_json

MAX_DOCUMENT_BYTES = 16_777_216
"""Size of a document. A larger one is refused."""

MAX_DOCUMENT_VALUES = 1_000_000
"""Values of a document, aliases of YAML counted each time, and empty lists and objects
of JSON twice. With more it is refused."""

MAX_YAML_EVENTS = 400_000
"""Values of a document in YAML, and beginnings and ends of lists and objects. With more
it is refused: JSON is read faster by far."""

MAX_DEPTH = 100
"""Lists and objects inside each other. A deeper document is refused."""

_QUOTES = ("'", '"')
_MEND = "look at the document, and at the path or URL that leads to it"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML with the types of JSON: `no` is a text, and so is a date."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if any(key.value == "<<" and key.style not in _QUOTES for key in keys):
            raise ConfigError(
                "the OpenAPI document has a merge key (`<<`), which is not JSON",
                hint="write what it merges where it is merged, or convert it to JSON",
            )
        if len({key.value for key in keys}) < len(keys):
            raise ConfigError(
                "the OpenAPI document has a key twice in one object", hint=_MEND
            )
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    ("int", r"-?(0|[1-9][0-9]*)", list("-0123456789")),
    (
        "float",
        r"-?[0-9]+(\.[0-9]*([eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)",
        list("-0123456789"),
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), _first
    )


_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq")}


def read_document(text: str | bytes) -> dict[str, Any]:
    """Return the plain values of a document.

    Raises:
        ConfigError: It is too large or too deep, is neither JSON nor YAML, or is not
            OpenAPI 3.0 or 3.1.
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            f"an OpenAPI document has at most {MAX_DOCUMENT_BYTES:,} bytes", hint=_MEND
        )
    try:
        value = _plain(_parsed(text))
    except RecursionError:
        raise ConfigError(
            "the OpenAPI document has too many values, or levels",
            hint=f"it may have {MAX_DEPTH} levels; JSON may be larger than YAML",
        ) from None
    except (yaml.YAMLError, ValueError):
        # What it says may come from anywhere, so no message repeats it.
        raise ConfigError(
            "the OpenAPI document is neither JSON nor YAML", hint=_MEND
        ) from None
    version = str(value.get("openapi", "")) if isinstance(value, dict) else ""
    if version not in ("3.0", "3.1") and not version.startswith(("3.0.", "3.1.")):
        found = " but Swagger" if isinstance(value, dict) and "swagger" in value else ""
        raise ConfigError(
            f"the document is not OpenAPI 3.0 or 3.1{found}",
            hint="convert it, or ask its author for such a one",
        )
    if not isinstance(value.get("paths", {}), dict):
        raise ConfigError("the OpenAPI document has no paths", hint=_MEND)
    document: dict[str, Any] = value
    return document


def _parsed(text: str | bytes) -> Any:
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    if text.lstrip().startswith("{"):
        if count_values(text.encode(), MAX_DOCUMENT_VALUES) > MAX_DOCUMENT_VALUES:
            raise RecursionError
        return read_json(text)
    _check_yaml(text)
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader


def _check_yaml(text: str) -> None:
    """Raise RecursionError for YAML that is too deep: its C parser would crash."""
    depth = 0
    for number, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TAGS:
            # Some make values that are not JSON, and `!!int` takes quadratic time.
            raise ValueError("a tag that JSON has no type for")
        if depth > MAX_DEPTH or number > MAX_YAML_EVENTS:
            raise RecursionError


def _plain(value: Any) -> Any:
    """Return JSON values only; each alias becomes its own value."""
    left = MAX_DOCUMENT_VALUES

    def copied(each: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise RecursionError
        if isinstance(each, dict):
            return {
                _key(name): copied(inner, depth + 1) for name, inner in each.items()
            }
        if isinstance(each, list):
            return [copied(inner, depth + 1) for inner in each]
        if each is None or isinstance(each, str | bool | int):
            return each
        if isinstance(each, float) and abs(each) < float("inf"):
            return each
        raise ValueError("no value of JSON")

    return copied(value, 0)


def _key(name: Any) -> str:
    # YAML reads the statuses of responses as numbers.
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError("a key that is no text")
    return str(name)


def read_file(path: Path) -> bytes:
    """Return the text of a file. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"the OpenAPI document {path} cannot be read: {error.strerror}",
            hint="name a file that this user may read",
        ) from None


def fetch(url: str, rules: EgressRules, seconds: float) -> bytes:
    """Return the text at a URL.

    Raises:
        ConfigError: It cannot be had there.
        ToolError: The URL leads where no request may go.
    """
    target = rules.target(url)

    def read(response: http.client.HTTPResponse) -> tuple[int, bytes]:
        return response.status, read_body(response, MAX_DOCUMENT_BYTES)

    accept = {"Accept": "application/json, application/yaml, text/yaml;q=0.9"}
    try:
        status, body = exchange(target, rules, Request(headers=accept), seconds, read)
    except NoAnswerError:
        raise ConfigError(
            f"{target.host} did not answer with the OpenAPI document",
            hint="try again later, or name a file",
        ) from None
    if status != 200:
        raise ConfigError(
            f"{target.host} answered with HTTP status {status}"
            " instead of the OpenAPI document",
            hint="redirects are not followed: name the URL where it really is",
        )
    return body
