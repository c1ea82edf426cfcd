"""Definitions of resources and prompts of MCP servers.

Only what is certain to be one thing is asked for. A URI is exactly one that the server
listed and a person approved, or one that an approved template makes of plain words, in
the one way in which it can be written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, JsonValue
from pydantic_core import SchemaValidator, core_schema

from toolcell.core import ConfigError, InvalidInputError

from ..external.definition import ExternalDefinition, checked_definition, model_schema
from .results import bare_media_type

Kind = Literal["resource", "template", "prompt"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# The scheme, and after `//` the whole authority with its slash, are the template's own.
_PREFIX = re.compile(r"[a-z][a-z0-9+.-]*:(//[a-z0-9._-]*(:[0-9]+)?/|(?!/))[\w.~:@/-]*")
_PLAIN = re.compile(r"[\w.~:@/-]*")
_VARIABLE = re.compile(r"\{(\w+)\}", re.ASCII)
_WORD = r"[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*"
_STEPS = re.compile(r"//|/\.{1,2}(/|$)|\./|\.$")
"""Empty steps of a path, `.` and `..`, and dots at the end of a step."""

_NAME_CHARACTERS = 100

MAX_URI_CHARACTERS = 2_048
"""Length of a URI. A longer one is not asked for."""


class MCPOffer(ExternalDefinition):
    """A resource, a template of resources or a prompt, as its server defines it.

    Its name in pins is its kind and its address, which is the URI, the template or the
    prompt's own name. Clients read that as its name, too: the title of a server is part
    of the description, which is marked and cut.
    """

    kind: Kind
    address: Annotated[str, Field(min_length=1, max_length=MAX_URI_CHARACTERS)]
    media_type: str = ""
    input_schema: Annotated[dict[str, JsonValue], Field(alias="inputSchema")] = Field(
        default_factory=dict
    )
    """The arguments of a prompt."""

    @cached_property
    def pattern(self) -> SchemaValidator | None:
        """The URIs of a template; None: they cannot be judged exactly.

        An engine of linear time finds them: one that goes back would try all ways in
        which `-----` is `{a}-{b}-{c}`.
        """
        literals = _VARIABLE.split(self.address)[::2]
        rest_is_plain = all(_PLAIN.fullmatch(literal) for literal in literals[1:])
        whole = _VARIABLE.sub("x", self.address)
        if (
            not whole.isascii()
            or not _PREFIX.fullmatch(literals[0])
            or not rest_is_plain
            or _STEPS.search(whole.partition("://")[2] or whole)
            or "}{" in self.address
        ):
            return None
        text = _WORD.join(map(re.escape, literals))
        return SchemaValidator(core_schema.str_schema(pattern=f"^(?:{text})$"))

    def covers(self, uri: str) -> bool:
        """Return whether it is the resource of a URI, or its template."""
        if self.kind == "template":
            is_short = len(uri) <= MAX_URI_CHARACTERS
            known = self.pattern
            return is_short and known is not None and known.isinstance_python(uri)
        return self.kind == "resource" and self.address == uri

    @property
    def arguments(self) -> list[tuple[str, str, bool]]:
        """The arguments of a prompt: name, description, and whether it must be there.

        A description reaches models, and so is made visible and cut.
        """
        schema: Any = model_schema(self.input_schema)
        needed = schema.get("required", [])
        return [
            (name, about["description"], name in needed)
            for name, about in schema.get("properties", {}).items()
        ]

    def check_arguments(self, arguments: object) -> None:
        """Check the arguments of a prompt.

        Raises:
            InvalidInputError: One is unknown, missing or no text.
        """
        known: Any = self.input_schema.get("properties", {})
        needed: Any = self.input_schema.get("required", [])
        if not (
            isinstance(arguments, dict)
            and set(needed) <= arguments.keys() <= set(known)
            and all(isinstance(argument, str) for argument in arguments.values())
        ):
            raise InvalidInputError(
                f"the arguments do not fit the prompt {self.address!r}",
                hint=f"it takes texts named {', '.join(known) or 'nothing'};"
                f" {', '.join(needed) or 'none'} must be there",
                details={"reason": "arguments"},
            )


_ADDRESSES: dict[Kind, str] = {
    "resource": "uri",
    "template": "uri_template",
    "prompt": "name",
}


def offer_name(kind: Kind, given: Mapping[str, Any]) -> str:
    """Return the name in pins of what a server offers; a long one ends with a hash."""
    whole = f"{kind} {given[_ADDRESSES[kind]]}"
    if len(whole) <= _NAME_CHARACTERS:
        return whole
    end = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return f"{whole[: _NAME_CHARACTERS - 17]} {end}"


def mcp_offer(kind: Kind, given: Mapping[str, Any]) -> MCPOffer:
    """Return what a server offers, as it listed it. Raises ConfigError."""
    made = checked_definition(
        MCPOffer,
        {
            "name": offer_name(kind, given),
            "kind": kind,
            "address": given[_ADDRESSES[kind]],
            "description": _description(kind, given),
            "media_type": bare_media_type(given.get("mime_type")),
            "inputSchema": _schema(given.get("arguments") or ()),
        },
        ("input_schema", "address"),
    )
    if kind == "template" and made.pattern is None:
        raise ConfigError(
            "its URIs can be written in several ways, and so not be judged exactly",
            hint="`{name}` for a step of the path is what can be judged",
        )
    return made


def _description(kind: Kind, given: Mapping[str, Any]) -> str:
    """Return what a server says about it: its title, then the description."""
    title = given.get("title") or given["name"]
    titles = [] if title == given[_ADDRESSES[kind]] else [title]
    return ": ".join([*titles, *filter(None, [given.get("description")])])


def _schema(arguments: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    shown = {
        argument["name"]: {
            "type": "string",
            "description": argument.get("description") or "",
        }
        for argument in arguments
    }
    needed = [argument["name"] for argument in arguments if argument.get("required")]
    return {"properties": shown, "required": needed} if shown else {}
