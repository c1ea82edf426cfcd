"""Writes the arguments of a call into a request, as the styles of OpenAPI say.

What a model gives stays where it belongs: a value in a path stays one segment of it, a
value in a query one value, and a value in a header one line. A value that cannot is
refused as the arguments are checked, before anything is decided or sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ..definition.validation import Problem, refusal
from .definition import (
    FORM,
    FormField,
    OpenAPIDefinition,
    OperationBody,
    OperationParameter,
)

_SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_MARKS = {"spaceDelimited": " ", "pipeDelimited": "|"}
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


class _MisplacedError(Exception):
    """A value cannot stand where it would have to."""

    def __init__(self, argument: str, expected: str) -> None:
        super().__init__(argument, expected)
        self.problem = Problem(argument, "value", expected)


def draft(
    tool: str, definition: OpenAPIDefinition, arguments: Mapping[str, Any]
) -> Draft:
    """Return the request of a call without its secrets; of bodies it has forms alone.

    Args:
        tool: The tool's name, for the error.
        definition: What is called.
        arguments: They fit the schema.

    Raises:
        ToolValidationError: A value cannot stand where it would have to.
    """
    try:
        return _draft(definition, arguments)
    except _MisplacedError as error:
        raise refusal(tool, [error.problem]) from None


def _draft(definition: OpenAPIDefinition, arguments: Mapping[str, Any]) -> Draft:
    made = Draft(definition.method.upper(), "")
    segments: dict[str, str] = {}
    for parameter in definition.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.is_json:
            value = json.dumps(value, separators=(",", ":"))
        _check_parts(parameter, value)
        match parameter.location:
            case "path":
                segments[parameter.name] = _segment(parameter, value)
            case "query":
                made.query += _pairs(
                    parameter.name, parameter.style, value, parameter.explode
                )
            case "cookie":
                made.cookies += _pairs(
                    parameter.name, parameter.style, value, parameter.explode
                )
            case "header":
                made.headers[parameter.name] = _header(parameter, value)
    for location in ("query", "cookie"):
        _check_names(definition, location, arguments)
    made.path = _path(definition.path, segments)
    body, fields = definition.body, arguments.get("body")
    if body is not None and _is_form(body) and isinstance(fields, dict):
        made.body = _form(body, fields, _declared_fields(definition))
    return made


def _check_names(
    definition: OpenAPIDefinition, location: str, arguments: Mapping[str, Any]
) -> None:
    """Refuse members of an object that would be sent as another parameter.

    An object that is exploded gives its members as their own parameters, which rules
    on the parameters of those names would not see.
    """
    placed = [
        parameter
        for parameter in definition.parameters
        if parameter.location == location
    ]
    taken = {_base(parameter.name) for parameter in placed}
    for parameter in placed:
        value = arguments.get(parameter.argument)
        if not isinstance(value, dict) or parameter.is_json or not parameter.explode:
            continue
        if parameter.style == "deepObject":
            continue
        bases = [_base(name) for name in value]
        if len(set(bases)) < len(bases) or not taken.isdisjoint(bases):
            raise _MisplacedError(
                parameter.argument, "members with names that no other parameter has"
            )
        taken.update(bases)


def _base(name: str) -> str:
    """Return the name that a server may read, such as `a` of `a[]`."""
    return name.partition("[")[0].strip().casefold()


def add_body(
    request: Draft, definition: OpenAPIDefinition, arguments: Mapping[str, Any]
) -> None:
    """Write the body, which any value can stand in: a large one is written once."""
    if definition.body is not None and "body" in arguments:
        media_type = definition.body.media_type
        request.headers["Content-Type"] = media_type
        if request.body is None:
            request.body = _body(media_type, arguments["body"])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, separators=(",", ":"))


def _parts(value: Any, *, explode: bool) -> Iterator[str]:
    """Yield the parts of a value in the style `simple`."""
    if isinstance(value, list):
        yield from map(_text, value)
    elif isinstance(value, dict) and explode:
        yield from (f"{name}={_text(item)}" for name, item in value.items())
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from (name, _text(item))
    else:
        yield _text(value)


def _check_parts(parameter: OperationParameter, value: Any) -> None:
    """Refuse parts of a list or object in which a server would see the end of one.

    Marks that are percent-encoded both inside of a part and between two are the same
    once they are decoded (OpenAPI 3.1.1, appendix E), and headers have no encoding. A
    `,` of a path or query is safe: it is encoded inside of a part alone.
    """
    if not isinstance(value, list | dict):
        return
    names = value if isinstance(value, dict) else ()
    parts = list(_parts(value, explode=False))
    if parameter.location == "header":
        _check_without(",", parts, parameter)
        _check_without("=" if parameter.explode else "", names, parameter)
    elif parameter.style == "deepObject":
        _check_without("[]", names, parameter)
    elif not parameter.explode:
        _check_without(_MARKS.get(parameter.style, ""), parts, parameter)


def _check_without(
    marks: str, texts: Iterable[str], parameter: OperationParameter
) -> None:
    if any(set(marks) & set(text) for text in texts):
        shown = " or ".join("space" if mark == " " else mark for mark in marks)
        raise _MisplacedError(
            parameter.argument, f"parts without {shown}, which ends a part"
        )


def _segment(parameter: OperationParameter, value: Any) -> str:
    parts = list(_parts(value, explode=False))
    # Servers decode a path before they look where it leads: an encoded `/` is one.
    if not any(parts) or any(set(part) & set("/\\") for part in parts):
        raise _MisplacedError(
            parameter.argument, "a segment of a path: some text, without / and \\"
        )
    quoted = [_quoted(parameter, part) for part in parts]
    if isinstance(value, dict) and parameter.explode:
        quoted = [
            "=".join(pair) for pair in zip(quoted[::2], quoted[1::2], strict=True)
        ]
    return ",".join(quoted)


def _quoted(parameter: OperationParameter, text: str) -> str:
    if not text.isprintable():
        raise _MisplacedError(parameter.argument, "characters that can be seen")
    return quote(text, safe="")


def _path(template: str, segments: Mapping[str, str]) -> str:
    path = quote(template, safe="/{}%:@!$&'()*+,;=~")
    for name, text in segments.items():
        path = path.replace("{" + quote(name, safe="%:@!$&'()*+,;=~") + "}", text)
    if {".", ".."} & set(path.split("/")):
        raise _MisplacedError("", "an id or name alone: dots lead to another path")
    return path


def _pairs(name: str, style: str, value: Any, explode: bool) -> _Pairs:
    key = quote(name, safe="")
    if isinstance(value, dict):
        if style == "deepObject":
            return [
                (quote(f"{name}[{inner}]", safe=""), quote(_text(item), safe=""))
                for inner, item in value.items()
            ]
        if explode:
            return [
                (quote(inner, safe=""), quote(_text(item), safe=""))
                for inner, item in value.items()
            ]
    if isinstance(value, list) and (explode or style == "deepObject"):
        return [(key, quote(_text(item), safe="")) for item in value]
    parts = (quote(part, safe="") for part in _parts(value, explode=False))
    return [(key, _SEPARATORS.get(style, ",").join(parts))]


def _header(parameter: OperationParameter, value: Any) -> str:
    text = ",".join(_parts(value, explode=parameter.explode))
    if not _HEADER.fullmatch(text):
        raise _MisplacedError(parameter.argument, "one line of ASCII")
    return text


def _is_form(body: OperationBody) -> bool:
    return body.media_type.strip().lower() == FORM


def _declared_fields(definition: OpenAPIDefinition) -> Collection[str]:
    """Return the names that the schema of the body lists."""
    known: Any = definition.input_schema
    schema: Any = known["properties"].get("body")
    while isinstance(schema, dict) and "$ref" in schema:
        schema = known.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"))
    listed = schema.get("properties") if isinstance(schema, dict) else None
    return listed.keys() if isinstance(listed, dict) else ()


def _form(
    body: OperationBody, fields: Mapping[str, Any], declared: Collection[str]
) -> bytes:
    """Return a form in which each field holds what the argument of its name holds.

    An object is one field, in JSON or with its members in brackets: flat, they would be
    fields of the top, which rules on those fields would not see.
    """
    styles = {each.name: each for each in body.fields}
    pairs: _Pairs = []
    for name, value in fields.items():
        if name not in declared and set(name) & set("[]"):
            raise _MisplacedError("body", "names of fields without [ or ]")
        style = styles.get(name)
        if style is not None and style.style == "deepObject":
            pairs += _in_brackets(name, value)
        elif style is None or isinstance(value, str):
            values = value if isinstance(value, list) else [value]
            pairs += [
                (quote(name, safe=""), quote(_text(text), safe="")) for text in values
            ]
        elif isinstance(value, dict) and style.explode:
            raise _MisplacedError(
                "body", f"no object in {name[:64]}: it would become several fields"
            )
        else:
            place = _as_parameter(style)
            _check_parts(place, value)
            pairs += _pairs(name, style.style, value, style.explode)
    return "&".join(f"{name}={text}" for name, text in pairs).encode()


def _in_brackets(name: str, value: Any) -> _Pairs:
    if not isinstance(value, dict | list):
        return [(quote(name, safe=""), quote(_text(value), safe=""))]
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    pairs: _Pairs = []
    for key, item in inner:
        if set(str(key)) & set("[]"):
            raise _MisplacedError("body", "parts without [ or ], which ends a part")
        pairs += _in_brackets(f"{name}[{key}]", item)
    return pairs


def _as_parameter(style: FormField) -> OperationParameter:
    return OperationParameter(
        argument="body",
        name=style.name,
        location="query",
        style=style.style,
        explode=style.explode,
    )


def _body(media_type: str, value: Any) -> bytes:
    if media_type == "text/plain":
        return _text(value).encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
