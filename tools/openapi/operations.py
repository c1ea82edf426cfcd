"""Makes definitions of tools out of the operations of a document."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from toolcell.core import ConfigError
from toolcell.core.text.install_hint import install_hint

from ..definition.json_schema import build_validator
from ..definition.validation import json_bytes
from ..external.definition import Listing, checked_definition
from .definition import (
    FORM,
    FormField,
    Method,
    OpenAPIDefinition,
    OperationBody,
    OperationParameter,
    SecurityScheme,
    Style,
)
from .schemas import MAX_ANSWER_SCHEMAS, Document, SchemaBundle, unfit
from .selection import Selection

MAX_ANSWER_SCHEMA_BYTES = 16_384
"""Size of the schema of an answer. When it is exceeded stubs say nothing of answers."""

# Set by HTTP itself or by us, whatever a document says of them.
_OUR_HEADERS = frozenset(
    "accept accept-encoding authorization connection content-encoding content-length"
    " content-type cookie expect forwarded host keep-alive proxy-authenticate"
    " proxy-authorization proxy-connection te trailer transfer-encoding upgrade"
    " user-agent via".split()
)
_STYLES = {"path": "simple", "header": "simple", "query": "form", "cookie": "form"}
_STYLE_KEYS = {"style", "explode", "allowReserved"}
_FORM_STYLES = ("form", "spaceDelimited", "pipeDelimited", "deepObject")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,64}/[\w.+-]{1,64}", re.ASCII)
_PLACEHOLDER = re.compile(r"\{([^{}/]+)\}")
_Raw = dict[str, Any]


def list_operations(
    values: _Raw, selection: Selection, server: str
) -> Listing[OpenAPIDefinition]:
    """Return the operations of a document, as tools.

    Args:
        values: The document.
        server: The URL that requests go to. An operation that names servers is a tool
            only if this is one of them.
        selection: The operations that are wanted. A path that cannot be read is
            reported in any case: nobody knows what is in it.

    Raises:
        ConfigError: The parser of OpenAPI is not installed.
    """
    parser = _Parser(Document(values), server)
    listing: Listing[OpenAPIDefinition] = Listing()
    for path, given in values.get("paths", {}).items():
        if path.startswith("x-"):
            continue
        try:
            item = parser.path_item(given)
        except ConfigError as error:
            selection.has(path)
            listing.refuse(path, error.message)
            continue
        for method in get_args(Method):
            if method not in item:
                continue
            name = operation_name(item[method], method, path)
            if selection.has(name):
                make = functools.partial(parser.definition, name, method, path, item)
                listing.add(name, make)
    return listing


def operation_name(operation: Any, method: str, path: str) -> str:
    """Return the name of an operation: its id, or else its method and path."""
    given = operation.get("operationId") if isinstance(operation, dict) else None
    text = given if isinstance(given, str) else f"{method}{path}"
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.-")
    return name or method


class _Parser:
    """Reads the parts of one document; the library knows how each has to look."""

    def __init__(self, document: Document, server: str) -> None:
        try:
            from openapi_pydantic.v3 import v3_0, v3_1
        except ImportError:
            raise ConfigError(
                "the parser of OpenAPI is not installed", hint=install_hint("openapi")
            ) from None
        self._document = document
        self._server = _spelled(server)
        self._models: Any = v3_0 if document.is_30 else v3_1
        known = document.values.get("components", {})
        schemes = known.get("securitySchemes") if isinstance(known, dict) else None
        self._schemes: _Raw = schemes if isinstance(schemes, dict) else {}

    def path_item(self, given: Any) -> _Raw:
        """Return a path item, with what it refers to. Raises ConfigError."""
        item: _Raw = self._document.followed(given)
        if not isinstance(item, dict):
            raise unfit("it is no object")
        if "$ref" not in given:
            return item
        beside: _Raw = {name: value for name, value in given.items() if name != "$ref"}
        if "$ref" in item or item.keys() & beside.keys():
            raise unfit("the path item and what it refers to disagree")
        return item | beside

    def definition(
        self, name: str, method: str, path: str, item: _Raw
    ) -> OpenAPIDefinition:
        """Return the definition of one operation. Raises ConfigError."""
        given = item[method]
        if isinstance(given, dict) and "$ref" in given:
            raise unfit("it refers to another operation, which may be in another file")
        operation = self._checked("Operation", given)
        servers = given.get("servers") or item.get("servers")
        if servers and self._server not in map(_spelled, _urls(servers)):
            raise unfit("it names its own server")
        bundle = SchemaBundle(self._document)
        properties: _Raw = {}
        required: list[str] = []
        parameters = list(self._parameters(item, item[method]))
        body = self._body(item[method])
        arguments = _argument_names([raw for raw, _ in parameters], body is not None)
        made = []
        for argument, (raw, model) in zip(arguments, parameters, strict=True):
            properties[argument], is_json = self._parameter_schema(raw, bundle)
            if raw.get("required") is True or raw["in"] == "path":
                required.append(argument)
            made.append(_parameter(argument, raw, model, is_json=is_json))
        if body is not None:
            properties["body"] = bundle.schema(body[1])
            if body[2]:
                required.append("body")
        _check_path(path, made)
        schema: _Raw = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        if bundle.defs:
            schema["$defs"] = bundle.defs
        texts = (operation.summary, operation.description)
        fields = {
            "name": name,
            "description": "\n\n".join(text for text in texts if text),
            "inputSchema": schema,
            "method": method,
            "path": path,
            "parameters": [parameter.model_dump(by_alias=True) for parameter in made],
            "body": None if body is None else body[0].model_dump(),
            "security": self._security(item[method]),
        }
        if (answer := self._answer(name, given)) is not None:
            # It is there for stubs alone: it costs no operation.
            with contextlib.suppress(ConfigError):
                return checked_definition(
                    OpenAPIDefinition,
                    fields | {"outputSchema": answer},
                    ("input_schema", "output_schema"),
                )
        return checked_definition(OpenAPIDefinition, fields, ("input_schema",))

    def _answer(self, name: str, operation: _Raw) -> _Raw | None:
        """Return the schema of the usual answer; None: there is none to be read."""
        try:
            given = self._answer_schema(operation)
            bundle = SchemaBundle(self._document, "writeOnly", MAX_ANSWER_SCHEMAS)
            made = bundle.schema(given)
            if not isinstance(made, dict) or not made:
                return None
            answer = made | ({"$defs": bundle.defs} if bundle.defs else {})
            if len(json_bytes(answer)) > MAX_ANSWER_SCHEMA_BYTES:
                return None
            build_validator(name, answer)
        except (AttributeError, ConfigError, RecursionError, ValueError):
            return None
        return answer

    def _answer_schema(self, operation: _Raw) -> Any:
        """Return what the first success in JSON is; True if nothing says it."""
        responses = operation.get("responses") or {}
        for status in sorted(responses):
            if not status.startswith("2"):
                continue
            content = self._followed(responses[status]).get("content") or {}
            for media_type, entry in content.items():
                if _is_json(media_type):
                    return (entry or {}).get("schema", True)
        return True

    def _checked(self, kind: str, raw: Any) -> Any:
        model: type[BaseModel] = getattr(self._models, kind)
        try:
            return model.model_validate(raw)
        except (RecursionError, ValidationError):
            raise unfit(f"it has a {kind} that is not OpenAPI") from None

    def _parameters(self, item: _Raw, operation: _Raw) -> Iterator[tuple[_Raw, Any]]:
        """Yield the parameters that a model gives, those of the operation last."""
        keys = {
            (scheme.get("in"), scheme.get("name"))
            for scheme in map(self._followed, self._schemes.values())
            if scheme.get("type") == "apiKey"
        }
        found: dict[tuple[str, str], tuple[_Raw, Any]] = {}
        for owner in (item, operation):
            listed = owner.get("parameters") or []
            for given in listed if isinstance(listed, list) else [None]:
                raw = self._document.followed(given)
                model = self._checked("Parameter", raw)
                found[raw["in"], raw["name"]] = (raw, model)
        for (location, name), pair in found.items():
            is_ours = location == "header" and name.lower() in _OUR_HEADERS
            if not is_ours and (location, name) not in keys:
                yield pair

    def _followed(self, given: Any) -> _Raw:
        """Return what is there or referred to; nothing if that is no object."""
        try:
            value = self._document.followed(given)
        except ConfigError:
            return {}
        return value if isinstance(value, dict) else {}

    def _parameter_schema(self, raw: _Raw, bundle: SchemaBundle) -> tuple[Any, bool]:
        content = raw.get("content")
        is_json = content is not None
        schema = raw.get("schema", {})
        if is_json:
            [(media_type, entry), *others] = (content or {"": {}}).items()
            if others or not _is_json(media_type):
                raise unfit(f"a parameter is written as {media_type[:64]}")
            schema = (entry or {}).get("schema", {})
        made = bundle.schema(schema)
        about = raw.get("description")
        if isinstance(made, dict) and isinstance(about, str):
            made = {"description": about, **made}
        return made, is_json

    def _body(self, operation: _Raw) -> tuple[OperationBody, Any, bool] | None:
        """Return the body and its schema, and True if there must be one.

        None: a request has no body.
        """
        if operation.get("requestBody") is None:
            return None
        raw = self._document.followed(operation["requestBody"])
        self._checked("RequestBody", raw)
        content, is_required = raw["content"], raw.get("required") is True
        ranked = sorted((_rank(each), each) for each in content if _rank(each) < _NEVER)
        if ranked:
            media_type = ranked[0][1]
            entry = content[media_type] or {}
            bare = media_type.partition(";")[0]
            fields = tuple(_form_fields(entry.get("encoding")))
            is_form = bare.strip().lower() == FORM
            body = OperationBody(media_type=bare, fields=fields if is_form else ())
            return body, entry.get("schema", {}), is_required
        if is_required:
            raise unfit(f"it takes a body of {', '.join(content)[:128] or 'no type'}")
        return None

    def _security(self, operation: _Raw) -> list[list[_Raw]]:
        wanted = operation.get("security")
        if wanted is None:
            wanted = self._document.values.get("security") or []
        if not isinstance(wanted, list) or not all(
            isinstance(each, dict) for each in wanted
        ):
            raise unfit("its security is not a list of objects")
        made, reason = [], ""
        for choice in wanted:
            try:
                schemes = [self._scheme(name) for name in choice]
            except ConfigError as error:
                reason = error.message
            else:
                made.append([found.model_dump(by_alias=True) for found in schemes])
        if wanted and not made:
            raise unfit(reason)
        return made

    def _scheme(self, name: str) -> SecurityScheme:
        raw = self._document.followed(self._schemes.get(name))
        model = self._checked("SecurityScheme", raw)
        kind, scheme = model.type, (model.scheme or "").lower()
        where, header = "header", "Authorization"
        if kind == "apiKey":
            where, header, kind = model.security_scheme_in, model.name or "", "key"
        elif kind == "http" and scheme in ("basic", "bearer"):
            kind = scheme
        elif kind in ("oauth2", "openIdConnect"):
            kind = "bearer"
        else:
            raise unfit(f"its security scheme {name[:64]!r} is not known")
        is_ours = header.lower() in _OUR_HEADERS - {"authorization"}
        if not _TOKEN.fullmatch(header) or (where == "header" and is_ours):
            raise unfit(f"its security scheme {name[:64]!r} has no name to be used")
        return SecurityScheme.model_validate(
            {"scheme": name, "kind": kind, "in": where, "name": header}
        )


def _urls(servers: Any) -> Iterator[str]:
    """Yield the URLs of a list of servers; one with variables is left out."""
    for server in servers if isinstance(servers, list) else ():
        url = server.get("url") if isinstance(server, dict) else None
        if isinstance(url, str) and "{" not in url:
            yield url


def _spelled(url: str) -> str:
    """Return a URL as it is compared; it must be the same server, and the same path."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}{mark}{host.lower()}{slash}{path}".rstrip("/")


def _argument_names(parameters: list[_Raw], has_body: bool) -> list[str]:
    """Return a name for each; one that is taken gets its place in front, or a number.

    With names such as `StartTime<` and `StartTime>` the place alone does not help.
    """
    plain = [_safe_name(parameter["name"]) for parameter in parameters]
    taken = [*plain, *(["body"] if has_body else [])]
    names = {name for name in taken if taken.count(name) == 1} | {*taken[len(plain) :]}
    made = []
    for name, parameter in zip(plain, parameters, strict=True):
        if taken.count(name) > 1:
            first = name = _safe_name(f"{parameter['in']}_{name}")
            numbers = itertools.count(2)
            while name in names:
                name = f"{first[:60]}_{next(numbers)}"
            names.add(name)
        made.append(name)
    return made


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64] or "_"


def _parameter(
    argument: str, raw: _Raw, model: Any, *, is_json: bool
) -> OperationParameter:
    location = raw["in"]
    style = model.style or _STYLES[location]
    explode = style == "form" if model.explode is None else model.explode
    if style not in get_args(Style) or (location in ("path", "header")) != (
        style == "simple"
    ):
        raise unfit(f"a parameter in its {location} has the style {style[:32]}")
    if location in ("header", "cookie") and not _TOKEN.fullmatch(raw["name"]):
        raise unfit(f"a parameter in its {location} has a name that HTTP has not")
    return OperationParameter.model_validate(
        {
            "argument": argument,
            "name": raw["name"],
            "in": location,
            "style": style,
            "explode": explode,
            "is_json": is_json,
        }
    )


def _form_fields(encoding: Any) -> Iterator[FormField]:
    """Yield the fields of a form to which a document gives a style."""
    for name, given in (encoding if isinstance(encoding, dict) else {}).items():
        if not isinstance(given, dict) or not given.keys() & _STYLE_KEYS:
            continue
        style = given.get("style", "form")
        if style not in _FORM_STYLES:
            raise unfit(f"a field of its form has the style {str(style)[:32]}")
        explode = given.get("explode", style in ("form", "deepObject"))
        yield FormField(name=name, style=style, explode=explode is True)


def _check_path(path: str, parameters: list[OperationParameter]) -> None:
    """Refuse a template that could lead elsewhere, or that nobody can fill."""
    is_plain = path.isprintable() and not set(path) & set("?#\\")
    if not path.startswith("/") or not is_plain:
        raise unfit("its path is not one of HTTP")
    if {".", ".."} & set(path.split("/")):
        raise unfit("its path leads upwards")
    wanted = _PLACEHOLDER.findall(path)
    given = [parameter.name for parameter in parameters if parameter.location == "path"]
    if sorted(set(wanted)) != sorted(given) or "{" in _PLACEHOLDER.sub("", path):
        raise unfit("its path and its parameters disagree")


_NEVER = 9


def _rank(media_type: str) -> int:
    """Return how gladly a body is written so; `_NEVER`: it cannot be."""
    bare = media_type.partition(";")[0].strip().lower()
    if not _MEDIA_TYPE.fullmatch(bare):
        return _NEVER
    if bare == "application/json":
        return 0
    if _is_json(bare):
        return 1
    return {FORM: 2, "text/plain": 3}.get(bare, _NEVER)


def _is_json(media_type: str) -> bool:
    bare = media_type.partition(";")[0].strip().lower()
    return bare == "application/json" or bare.endswith("+json")
