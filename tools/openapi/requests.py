"""Writes the arguments of a call into a request, as the styles of OpenAPI say.

What a model gives stays where it belongs: a value in a path stays one segment of it, a
value in a query one value, and a value in a header one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from toolcell.core import ToolExecutionError

from .definition import OpenAPIDefinition, OperationParameter

_SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
# What RFC 9110 lets a value of a header be, but for what is not ASCII.
_HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?|")
_Pairs = list[tuple[str, str]]


@dataclass(slots=True)
class Draft:
    """A request that is being written; the pairs are percent-encoded."""

    method: str
    path: str
    query: _Pairs = field(default_factory=list)
    cookies: _Pairs = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None

    @property
    def target(self) -> str:
        """The path with the query."""
        query = "&".join(f"{name}={value}" for name, value in self.query)
        return f"{self.path}?{query}" if query else self.path


def draft(definition: OpenAPIDefinition, arguments: Mapping[str, Any]) -> Draft:
    """Return the request of a call, without its secrets.

    Raises:
        ToolExecutionError: A value cannot stand where it would have to.
    """
    made = Draft(definition.method.upper(), "")
    segments: dict[str, str] = {}
    for each in definition.parameters:
        if each.argument not in arguments:
            continue
        value = arguments[each.argument]
        if each.is_json:
            value = json.dumps(value, separators=(",", ":"))
        match each.location:
            case "path":
                segments[each.name] = _segment(each, value)
            case "query":
                made.query += _pairs(each.name, each.style, value, each.explode)
            case "cookie":
                made.cookies += _pairs(each.name, each.style, value, each.explode)
            case "header":
                made.headers[each.name] = _header(each, value)
    made.path = _path(definition.path, segments)
    if definition.body is not None and "body" in arguments:
        media_type = definition.body.media_type
        made.headers["Content-Type"] = media_type
        made.body = _body(media_type, arguments["body"])
    return made


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, separators=(",", ":"))


def _parts(value: Any, *, explode: bool) -> Iterator[str]:
    """Yield the parts of a value in the style `simple`."""
    if isinstance(value, list):
        yield from map(_text, value)
    elif isinstance(value, dict) and explode:
        yield from (f"{name}={_text(each)}" for name, each in value.items())
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from (name, _text(each))
    else:
        yield _text(value)


def _segment(parameter: OperationParameter, value: Any) -> str:
    parts = list(_parts(value, explode=parameter.explode))
    # Servers decode a path before they look where it leads: an encoded `/` is one.
    if not any(parts) or any(set(each) & set("/\\") for each in parts):
        raise _refused(parameter, "it must not be empty, nor have a / or \\ in it")
    return ",".join(_quoted(parameter, each) for each in parts)


def _quoted(parameter: OperationParameter, text: str) -> str:
    if not text.isprintable():
        raise _refused(parameter, "it has a character that cannot be seen")
    return quote(text, safe="")


def _path(template: str, segments: Mapping[str, str]) -> str:
    path = quote(template, safe="/{}%:@!$&'()*+,;=~")
    for name, text in segments.items():
        path = path.replace("{" + quote(name, safe="%:@!$&'()*+,;=~") + "}", text)
    if {".", ".."} & set(path.split("/")):
        raise ToolExecutionError(
            "an argument would lead to another path",
            hint="give the id or name alone, without dots",
        )
    return path


def _pairs(name: str, style: str, value: Any, explode: bool) -> _Pairs:
    key = quote(name, safe="")
    if isinstance(value, dict):
        if style == "deepObject":
            return [
                (quote(f"{name}[{inner}]", safe=""), quote(_text(each), safe=""))
                for inner, each in value.items()
            ]
        if explode:
            return [
                (quote(inner, safe=""), quote(_text(each), safe=""))
                for inner, each in value.items()
            ]
    if isinstance(value, list) and (explode or style == "deepObject"):
        return [(key, quote(_text(each), safe="")) for each in value]
    parts = (quote(each, safe="") for each in _parts(value, explode=False))
    return [(key, _SEPARATORS.get(style, ",").join(parts))]


def _header(parameter: OperationParameter, value: Any) -> str:
    text = ",".join(_parts(value, explode=parameter.explode))
    if not _HEADER.fullmatch(text):
        raise _refused(parameter, "a header is one line of ASCII")
    return text


def _body(media_type: str, value: Any) -> bytes:
    if media_type == "application/x-www-form-urlencoded" and isinstance(value, dict):
        pairs = [
            pair
            for name, each in value.items()
            for pair in _pairs(name, "form", each, True)
        ]
        return "&".join(f"{name}={text}" for name, text in pairs).encode()
    if media_type == "text/plain":
        return _text(value).encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _refused(parameter: OperationParameter, reason: str) -> ToolExecutionError:
    return ToolExecutionError(
        f"the argument {parameter.argument} cannot be sent: {reason}",
        hint="give another value for it",
    )
