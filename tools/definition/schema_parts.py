"""Checks a schema, the schemas inside it, and those that it refers to."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from jsonschema_specifications import REGISTRY as META_SCHEMAS  # type: ignore[import-untyped]
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from toolcell.core import ConfigError

from .linear_keywords import linear_validator_class, prepare_values
from .linear_patterns import check_patterns
from .validation import path_of

_Part = tuple[Any, Any]
"""A schema, and the resolver of its references."""


def check_valid(tool: str, schema: Any, known: Any) -> None:
    """Refuse what is no schema of a draft. Called inside `bounded`.

    Patterns are not looked at: the engine that will run them does that.

    Raises:
        ConfigError: It is not valid.
    """
    meta = linear_validator_class(known)(known.META_SCHEMA, registry=META_SCHEMAS)
    error = next(meta.iter_errors(schema), None)
    if error is not None:
        where = path_of(list(error.absolute_path)) or "the schema"
        raise ConfigError(
            f"the schema of {tool} is not valid: {where} fails {error.validator}",
            hint="mend it there, as its draft says",
        )


def check_parts(tool: str, schema: Any, known: Any) -> Any:
    """Check all that a valid schema is made of. Called inside `bounded`.

    Returns:
        The registry in which a validator of it finds what it refers to.

    Raises:
        ConfigError: It refers to what is not in it or is no schema, has a part of
            another draft, or a pattern that may take exponential time.
    """
    specification = specification_with(known.META_SCHEMA["$schema"])
    root = specification.create_resource(schema)
    registry = META_SCHEMAS.with_resource(root.id() or "", root)
    # referencing stumbles over lists among the `dependencies` of draft 7. Without
    # crawling ahead, anchors are looked for when they are needed.
    with contextlib.suppress(AttributeError):
        registry = registry.crawl()
    seen: set[int] = set()
    left = deque([(schema, registry.resolver_with_root(root))])
    while left:
        part, resolver = left.popleft()
        if id(part) in seen:
            continue
        if part is not schema:
            # It stands where no schema is looked for.
            check_valid(tool, part, known)
        for inner, base in _inside(part, resolver, specification):
            seen.add(id(inner))
            _check_draft(tool, inner, known)
            check_patterns(tool, inner)
            prepare_values(inner)
            left += _referred(tool, inner, base)
    return registry


def _inside(schema: Any, resolver: Any, specification: Any) -> Iterator[_Part]:
    """Yield a schema and those inside it, with resolvers of their references."""
    left = [(schema, resolver)]
    while left:
        each, base = left.pop()
        if isinstance(each, dict):
            yield each, base
            dependencies = each.get("dependencies")
            plain = {key: each[key] for key in each.keys() - {"dependencies"}}
            for inner in (
                *specification.subresources_of(plain),
                *(dependencies.values() if isinstance(dependencies, dict) else ()),
            ):
                if isinstance(inner, dict):
                    resource = specification.create_resource(inner)
                    left.append((inner, base.in_subresource(resource)))


def _check_draft(tool: str, schema: dict[str, Any], known: Any) -> None:
    named = str(schema.get("$schema", known.META_SCHEMA["$schema"]))
    if named.rstrip("#") != known.META_SCHEMA["$schema"].rstrip("#"):
        raise ConfigError(
            f"the schema of {tool} has a part of another draft",
            hint="write all of it in one draft, and name that at the top",
        )


def _referred(tool: str, schema: dict[str, Any], resolver: Any) -> Iterator[_Part]:
    for keyword in ("$ref", "$dynamicRef"):
        if isinstance(schema.get(keyword), str):
            try:
                found = resolver.lookup(schema[keyword])
            except (Unresolvable, ValueError):
                raise ConfigError(
                    f"the schema of {tool} refers to what is not in it",
                    hint="schemas are not fetched: put them under $defs",
                    details={"reference": schema[keyword]},
                ) from None
            yield found.contents, found.resolver
