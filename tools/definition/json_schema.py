"""JSON Schemas that others wrote: checked once, then arguments checked by them.

Nothing is fetched: a reference that leads out of the schema is refused. Patterns run
on an engine of linear time, because a model writes the text that they search.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import (
    Draft4Validator,
    Draft6Validator,
    Draft7Validator,
    Draft201909Validator,
    Draft202012Validator,
)
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from pydantic import JsonValue
from referencing.exceptions import Unresolvable

from toolcell.core import ConfigError
from toolcell.core.text.canonical_json import canonical_json

from .check_budget import TooMuchToCheckError, bounded
from .linear_keywords import linear_validator_class, parse_json, unnamed_keys
from .schema_parts import check_parts, check_valid
from .signature import resolve_annotations, wants_context
from .validation import (
    MAX_ERRORS,
    Arguments,
    Problem,
    ProblemReason,
    argument_bytes,
    cut,
    json_bytes,
    names_text,
    path_of,
    refusal,
)

_DEFAULT = Draft202012Validator.META_SCHEMA["$schema"]
_DRAFTS = {
    str(each.META_SCHEMA["$schema"]).rstrip("#"): each
    for each in (
        Draft202012Validator,
        Draft201909Validator,
        Draft7Validator,
        Draft6Validator,
        Draft4Validator,
    )
}


@dataclass(frozen=True, slots=True)
class BuiltValidator:
    """A validator of one schema, and what its keywords prepared for all values."""

    validator: Validator
    kept: dict[Hashable, Any]


class WrittenSchema:
    """A JSON Schema written by hand, or by another program.

    Args:
        tool: The tool's name, for messages.
        schema: The schema of an object; draft 2020-12 unless `$schema` says which.
        function: The function that gets the arguments by name, if there is one: its
            signature is checked against the schema.

    Attributes:
        parameters: The schema.
        hints: The type of each parameter of the function.
        contexts: Those that take a `ToolContext`.
        positional: Empty: all arguments are given by name.

    Raises:
        ConfigError: The schema is not valid, refers to what is not in it, or does not
            fit the function.
    """

    positional: tuple[str, ...] = ()

    def __init__(
        self,
        tool: str,
        schema: Mapping[str, Any],
        *,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.parameters = _object_schema(tool, schema)
        draft = _draft_of(tool, self.parameters)
        self.hints: dict[str, Any] = {}
        if function is not None:
            self.hints = _fit(tool, self.parameters, function)
        self.contexts = tuple(
            name for name, hint in self.hints.items() if wants_context(hint)
        )
        self._validator = _validator(tool, self.parameters, draft)
        self._defaults = _defaults_of(self.parameters, function)

    def validate(self, tool: str, arguments: Mapping[str, Any]) -> Arguments:
        """Return a copy of the arguments, with the defaults that fit.

        Raises:
            ToolValidationError: They do not fit.
        """
        values = parse_json(argument_bytes(tool, arguments))
        problems = problems_of(self._validator, values)
        if problems:
            raise refusal(tool, problems)
        if self._defaults.keys() - values.keys():
            # A guard has to see the value that the tool takes for an absent argument.
            filled = {**parse_json(json_bytes(self._defaults)), **values}
            if not problems_of(self._validator, filled):
                values = filled
        return Arguments(values, lambda given: parse_json(canonical_json(given)))


def _object_schema(tool: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema that names arguments."""
    try:
        copied = json.loads(json_bytes(schema))
    except (RecursionError, TypeError, ValueError):
        raise ConfigError(
            f"the schema of {tool} is not JSON",
            hint="build it of dict, list, str, int, float, bool and None",
        ) from None
    if not isinstance(copied, dict) or copied.get("type") != "object":
        raise ConfigError(
            f"the schema of {tool} is not of an object",
            hint='arguments have names: write {"type": "object", ...}',
        )
    copied.setdefault("properties", {})
    return copied


def _fit(
    tool: str, schema: dict[str, Any], function: Callable[..., Any]
) -> dict[str, Any]:
    """Compare a schema with a signature; return the types of the parameters."""
    parameters = inspect.signature(function).parameters
    is_open = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    named = {
        name: each
        for name, each in parameters.items()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    hints = resolve_annotations(function, list(named.values()), {})
    contexts = {name for name in named if wants_context(hints[name])}
    if not is_open:
        schema.setdefault("additionalProperties", False)
        strangers = set(schema["properties"]) - (set(named) - contexts)
        if strangers or schema["additionalProperties"] is not False:
            what = ", ".join(sorted(strangers)) or "additional properties"
            raise ConfigError(
                f"the function of {tool} has no parameter for {what}",
                hint="add the parameter, or take it out of the schema",
            )
    required = set(schema.get("required", ()))
    for name, each in named.items():
        if name not in required and name not in contexts and each.default is each.empty:
            raise ConfigError(
                f"the schema of {tool} does not require {name}, the function does",
                hint="require it in the schema, or give the parameter a default",
            )
    return hints


def _defaults_of(
    schema: Mapping[str, Any], function: Callable[..., Any] | None
) -> dict[str, JsonValue]:
    """Return the values of arguments that are left out."""
    properties = schema["properties"]
    found = {
        name: each["default"]
        for name, each in properties.items()
        if isinstance(each, dict) and "default" in each
    }
    parameters = inspect.signature(function).parameters if function else {}
    for name, each in parameters.items():
        if name in properties and each.default is not each.empty:
            found.pop(name, None)
            with contextlib.suppress(RecursionError, TypeError, ValueError):
                found[name] = parse_json(json_bytes(each.default))
    return found


def build_validator(tool: str, schema: Any) -> BuiltValidator:
    """Return a validator of a schema; use it for all values.

    Raises:
        ConfigError: The schema is not valid or of an unknown draft, refers to what is
            not in it, or has a pattern that may take exponential time.
    """
    return _validator(tool, schema, _draft_of(tool, schema))


def _draft_of(tool: str, schema: Any) -> Any:
    """Return the validator class of a schema that is valid itself."""
    named = schema.get("$schema", _DEFAULT) if isinstance(schema, dict) else _DEFAULT
    known = _DRAFTS.get(named.rstrip("#")) if isinstance(named, str) else None
    if known is None:
        raise ConfigError(
            f"the schema of {tool} is of an unknown draft",
            hint="use draft 2020-12, or leave out `$schema`",
        )
    with _costs_itself(tool, schema):
        check_valid(tool, schema, known)
    return known


def _validator(tool: str, schema: Any, known: Any) -> BuiltValidator:
    kept: dict[Hashable, Any] = {}
    with _costs_itself(tool, schema, kept):
        registry = check_parts(tool, schema, known)
    validator = linear_validator_class(known)(schema, registry=registry)
    return BuiltValidator(validator, kept)


@contextlib.contextmanager
def _costs_itself(
    tool: str, schema: Any, kept: dict[Hashable, Any] | None = None
) -> Iterator[None]:
    """Refuse a schema that the libraries stumble over, whatever they raise."""
    try:
        # Its levels are those that Python has room for.
        with bounded(schema, max_levels=math.inf, kept=kept):
            yield
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(
            f"the schema of {tool} is nested too deeply",
            hint="make it flatter, for example with `$defs`",
        ) from None
    except TooMuchToCheckError:
        raise ConfigError(
            f"the schema of {tool} takes too long to check",
            hint="write it with fewer schemas inside, and fewer or shorter patterns",
        ) from None
    except Exception as error:
        raise ConfigError(
            f"the schema of {tool} cannot be read",
            hint="look at its references and ids, or leave them out",
        ) from error


def problems_of(built: BuiltValidator, values: Any) -> list[Problem]:
    """Return the problems of a value, without repeating the value."""
    validator = built.validator
    try:
        with bounded(values, kept=built.kept):
            if validator.is_valid(values):
                return []
            errors = itertools.islice(validator.iter_errors(values), MAX_ERRORS)
            found = (problem for error in errors for problem in _problems(error))
            return list(dict.fromkeys(found))
    except RecursionError:
        return [Problem("", "value", "fewer levels")]
    except TooMuchToCheckError:
        return [Problem("", "value", "less for its schema to check")]
    except ArithmeticError:
        # jsonschema divides large numbers as floats.
        return [Problem("", "value", "smaller numbers")]
    except ValueError:
        return [Problem("", "value", "finite numbers and whole characters")]
    except Unresolvable:
        return [Problem("", "value", "a schema whose references can be followed")]


def _problems(error: ValidationError) -> Iterator[Problem]:
    where = list(error.absolute_path)
    keyword, wanted = str(error.validator), _validator_value(error)
    schema = error.schema if isinstance(error.schema, dict) else {}
    if keyword == "required":
        given: Any = error.instance
        for name in wanted:
            if name not in given:
                yield Problem(path_of([*where, name]), "missing", "a value")
    elif keyword == "additionalProperties":
        known = names_text(schema.get("properties", {}))
        for name in unnamed_keys(error.instance, schema):
            yield Problem(path_of([*where, name]), "unknown", known)
    elif keyword == "unevaluatedProperties":
        yield Problem(path_of(where), "unknown", "no other fields")
    else:
        reason, expected = _expected(keyword, wanted, error)
        yield Problem(path_of(where), reason, cut(expected))


def _validator_value(error: ValidationError) -> Any:
    return error.validator_value


def _expected(
    keyword: str, wanted: Any, error: ValidationError
) -> tuple[ProblemReason, str]:
    if keyword == "type":
        return "type", " or ".join([wanted] if isinstance(wanted, str) else wanted)
    if keyword in ("anyOf", "oneOf"):
        inner = [
            _expected(str(e.validator), e.validator_value, e) for e in error.context
        ]
        if inner and all(reason == "type" for reason, _ in inner):
            return "type", " or ".join(dict.fromkeys(text for _, text in inner))
        return "value", f"what fits {keyword} of the schema"
    if keyword == "enum":
        return "value", f"one of {canonical_json(wanted).decode()}"
    if keyword in ("not", "if", "None") or isinstance(wanted, dict | bool):
        return "value", f"what fits {keyword} of the schema"
    return "value", f"{keyword} {canonical_json(wanted).decode()}"
