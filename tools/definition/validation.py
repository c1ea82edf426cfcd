"""Validated arguments, and the errors about those that were refused.

A refusal never repeats what a model sent: it names the field, one of four reasons, and
what was expected there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json
from pydantic_core.core_schema import ErrorType

from toolcell.core import ToolValidationError
from toolcell.core.text.canonical_json import canonical_json

MAX_ERRORS = 50
"""Errors that are read from one call. When it is reached the others are passed over."""

MAX_PROBLEMS = 10
"""Problems that one refusal names. When it is reached the rest is left out."""

MAX_EXPECTED_CHARACTERS = 200
"""Characters of an expectation. When it is reached the text is cut."""

_KNOWN_ERRORS = frozenset(get_args(ErrorType))
_SAFE_KEY = re.compile(r"[A-Za-z0-9_.$-]{1,64}")
ProblemReason = Literal["missing", "unknown", "type", "value"]
"""The reason why a field was refused: it is missing, no such field exists, its value
has another type, or its value is not allowed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One field that does not fit."""

    field: str
    """The path, as `items.0.name`; empty for the arguments as a whole."""

    reason: ProblemReason
    expected: str


class Arguments:
    """The arguments of one call, checked.

    Args:
        values: Python values by parameter name, defaults filled in. The tool
            gets these very objects: for another attempt, validate again.
        dump: Makes JSON values of them.
    """

    __slots__ = ("_dump", "_json", "_text", "values")

    def __init__(
        self,
        values: dict[str, Any],
        dump: Callable[[dict[str, Any]], dict[str, JsonValue]],
    ) -> None:
        self.values = values
        self._dump = dump
        self._json: dict[str, JsonValue] | None = None
        self._text: str | None = None

    @property
    def json(self) -> dict[str, JsonValue]:
        """The JSON values, as the guard judges them."""
        if self._json is None:
            self._json = self._dump(self.values)
        return self._json

    @property
    def text(self) -> str:
        """The canonical JSON text; equal texts are the same call."""
        if self._text is None:
            self._text = canonical_json(self.json).decode()
        return self._text

    @property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON.

    Raises:
        ValueError: It holds what JSON cannot: NaN, an infinity, half a surrogate
            pair, objects of a program, or levels without end.
    """
    data = to_json(value, inf_nan_mode="constants")
    if b"NaN" in data or b"Infinity" in data:
        # Perhaps only inside a string: the slow look decides.
        json.dumps(value, allow_nan=False)
    return data


def argument_bytes(tool: str, arguments: Mapping[str, Any]) -> bytes:
    """Return arguments as JSON.

    Raises:
        ToolValidationError: They are not JSON, see `json_bytes`.
    """
    try:
        return json_bytes(arguments)
    except (RecursionError, TypeError, ValueError):
        raise refusal(tool, [Problem("", "value", "a JSON object")]) from None


def no_arguments(tool: str, why: str) -> ToolValidationError:
    """Return the error of a call whose arguments are a text, and no JSON object."""
    expected = f"one JSON object, and the text that was given is not: {why}"
    return refusal(tool, [Problem("", "value", expected)])


def refusal(tool: str, problems: Iterable[Problem]) -> ToolValidationError:
    """Return the error that says to a model which fields to change."""
    found = list(problems)
    shown = found[:MAX_PROBLEMS]
    lines = [
        f"{problem.field or 'arguments'}: {_SENTENCES[problem.reason]}"
        f"{problem.expected}"
        for problem in shown
    ]
    if len(found) > len(shown):
        lines.append(f"and {len(found) - len(shown)} more")
    return ToolValidationError(
        f"the arguments of {tool} do not fit: {'; '.join(lines)}",
        hint="correct these fields and call again",
        details={"problems": [asdict(problem) for problem in shown]},
    )


_SENTENCES: dict[ProblemReason, str] = {
    "missing": "missing, expected ",
    "unknown": "no such field, expected ",
    "type": "wrong type, expected ",
    "value": "not allowed, expected ",
}


def path_of(parts: Sequence[str | int]) -> str:
    """Return a field's path. A key that could carry a message is not repeated."""
    return ".".join(
        str(part) if _SAFE_KEY.fullmatch(str(part)) else "(odd key)" for part in parts
    )


def names_text(names: Iterable[str]) -> str:
    """Return the expectation in place of an unknown field."""
    text = ", ".join(names)
    return cut(f"one of {text}" if text else "no fields")


def cut(text: str) -> str:
    """Return a text of bounded length."""
    if len(text) <= MAX_EXPECTED_CHARACTERS:
        return text
    return f"{text[: MAX_EXPECTED_CHARACTERS - 3]}..."


def pydantic_problems(
    error: ValidationError, arguments: Any, names: Iterable[str]
) -> list[Problem]:
    """Return the problems that pydantic found, without the values that were sent.

    Args:
        error: The error that pydantic raised.
        arguments: The arguments, to tell keys from the labels of union members.
        names: The fields that exist at the top.
    """
    found: dict[tuple[str, ProblemReason], list[str]] = {}
    errors = error.errors(include_url=False, include_input=False)
    for item in errors[:MAX_ERRORS]:
        parts = _real_parts(item["loc"], arguments)
        reason = _reason(item["type"])
        if reason == "unknown":
            expected = names_text(names) if len(parts) == 1 else "no such field"
        else:
            expected = _expected(item["type"], item["msg"], item.get("ctx", {}))
        expectations = found.setdefault((path_of(parts), reason), [])
        if expected not in expectations:
            expectations.append(expected)
    return [
        Problem(field, reason, cut(" or ".join(expectations)))
        for (field, reason), expectations in found.items()
    ]


def _real_parts(location: tuple[int | str, ...], arguments: Any) -> list[int | str]:
    """Return a location without the labels that pydantic adds for unions."""
    parts: list[int | str] = []
    here = arguments
    for number, part in enumerate(location):
        last = number == len(location) - 1
        if isinstance(here, Mapping) and (part in here or last):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            here = here[part] if part < len(here) else None
        else:
            continue
        parts.append(part)
    return parts


def _reason(kind: str) -> ProblemReason:
    if kind.startswith("missing"):
        return "missing"
    if kind == "extra_forbidden" or kind.startswith("unexpected_"):
        return "unknown"
    if kind.endswith("_type") or kind in ("is_instance_of", "none_required"):
        return "type"
    return "value"


def _expected(kind: str, message: str, context: Mapping[str, Any]) -> str:
    if kind.startswith("missing"):
        return "a value"
    if kind == "union_tag_invalid":
        return f"a tag of {context.get('expected_tags')}"
    # The texts of these were made from the value that was sent.
    if kind in _KNOWN_ERRORS and ("error" in context or kind == "timezone_offset"):
        kind_name = kind.partition("_")[0]
        known = kind_name not in ("value", "assertion", "json")
        return (
            f"a valid {kind_name}" if known else "a value that the tool's check accepts"
        )
    return message.removeprefix("Input should be ")
