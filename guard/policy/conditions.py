"""Conditions on validated arguments.

A condition answers True, False, or None if the value cannot be judged: it has another
type, a form that two programs may read in two ways, or cannot be reached exactly. Rules
count None against the caller: an allow rule is not met, a deny or ask rule is. In a
list, an allow rule requires that every element meets the condition, a deny or ask rule
that one does.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from .base import PolicyModel
from .commands import check_command, runs
from .host_names import HOST, Mentions, host_in
from .readings import MAX_TEXT, folded
from .text_rules import check_wanted, containing, pattern_validator, whole_text

Path = tuple[str, ...]
"""The names of members, one inside the other: `a.b`. A name that contains a dot, a
space or another odd character is written as a JSON string: `"a.b".c`. `*` alone is the
arguments as a whole. A path goes through every element of a list."""

_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|(?!/)[^\s.*\[\]"\\]+')


class Nothing(Enum):
    """Markers that `values_at` returns in place of a value."""

    ABSENT = "nothing is there"
    UNCLEAR = "the path cannot be followed exactly"


Reached = object | Literal[Nothing.ABSENT, Nothing.UNCLEAR]


def parse_path(text: str) -> Path:
    """Return the names of a path; none for the arguments as a whole.

    Raises:
        ValueError: The text is not a path.
    """
    if text == "*":
        return ()
    names: list[str] = []
    at = 0
    while found := _NAME.match(text, at):
        names.append(_unquoted(found[0]))
        at = found.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ".":
            break
        at += 1
    raise ValueError(
        f"{text!r} is not a path of arguments: names with dots between them, "
        'and an odd name as a JSON string, as in "a.b".c; '
        "lists need no index, every element counts"
    )


def _unquoted(name: str) -> str:
    if not name.startswith('"'):
        return name
    try:
        return str(json.loads(name))
    except ValueError:
        raise ValueError(f"{name} is not a JSON string") from None


def values_at(value: object, path: Path) -> list[Reached]:
    """Return the values at a path: one, or one for each element of a list.

    `ABSENT` takes the place of a member that is missing, of a member of null and of one
    of an empty list. `UNCLEAR` takes the place of a member of anything else, of an
    index, and of a key that is spelled like the path with its dots, since another
    program may read that.
    """
    for place, name in enumerate(path):
        if isinstance(value, list):
            return _values_in(value, path[place:])
        if not isinstance(value, dict):
            return [Nothing.ABSENT if value is None else Nothing.UNCLEAR]
        if place + 1 < len(path) and _has_dotted(value, path[place:]):
            return [Nothing.UNCLEAR]
        if name not in value:
            return [Nothing.ABSENT]
        value = value[name]
    return [value]


def _values_in(values: list[object], path: Path) -> list[Reached]:
    if not values:
        return [Nothing.ABSENT]
    if path[0].isdigit():
        return [Nothing.UNCLEAR]
    return [found for value in values for found in values_at(value, path)]


def _has_dotted(value: dict[str, object], path: Path) -> bool:
    return any(".".join(path[:end]) in value for end in range(2, len(path) + 1))


MAX_PATTERN = 1000
MAX_WANTED = 200
MAX_NUMBER = 400
_BOOLEANS = dict.fromkeys(("true", "yes", "on", "t", "y"), 1) | dict.fromkeys(
    ("false", "no", "off", "f", "n"), 0
)
_OF_WHOLE_LISTS_TOO = ("equals", "one_of", "contains", "contains_word")
_Check = Callable[[Any], bool | None]

JsonNumber = (
    Annotated[int, Field(strict=True)]
    | Annotated[float, Field(strict=True, allow_inf_nan=False)]
)
HostPattern = Annotated[str, Field(min_length=1, max_length=260)]
Wanted = Annotated[
    tuple[
        Annotated[
            str,
            Field(min_length=1, max_length=MAX_WANTED),
            AfterValidator(check_wanted),
        ],
        ...,
    ],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1, max_length=100),
]
CommandPattern = Annotated[tuple[str, ...], Field(min_length=1, max_length=64)]


class Condition(PolicyModel):
    """A condition on one argument; all fields that are set must hold."""

    if TYPE_CHECKING:
        # Lists and plain texts are taken too.
        def __init__(self, **values: Any) -> None: ...

    equals: JsonValue = None
    """This value and type. `1` for `true` or `"1"`, and a text that differs in case,
    spacing or form alone, cannot be judged: some tools read one as the other."""

    one_of: tuple[JsonValue, ...] | None = None
    """One of these values."""

    min: JsonNumber | None = None
    """A number not below this."""

    max: JsonNumber | None = None
    """A number not above this."""

    contains: Wanted | None = None
    """A text, or one of a list of at most 100, of at most 200 characters each, that
    the text contains in any case. A text that contains it only without quotes,
    backslashes, `$IFS`, invisible characters or odd spacing, or in Unicode's
    compatible form, cannot be judged, nor can one over 100,000 characters."""

    contains_word: Wanted | None = None
    """As `contains`, for whole words: no letter, digit or `_` is beside it."""

    matches: Annotated[str, Field(max_length=MAX_PATTERN)] | None = None
    """A regular expression for the whole text, in which `.` is any character and a
    newline too; at most 1,000 characters, without look-around or references, so that it
    takes linear time. A text that fits only when it is read as for `contains`, or over
    100,000 characters, cannot be judged. Case counts: `(?i)` ignores it."""

    max_length: Annotated[int, Field(ge=0)] | None = None
    """Characters of a text, or items of a list or object, at most."""

    under: Annotated[str, Field(min_length=1)] | None = None
    """A POSIX path at or beneath this folder, by its text. Absolute paths are under
    absolute roots, relative ones under relative roots; `..`, `\\` and control
    characters cannot be judged. A tool that opens the path must open it beneath the
    root and follow no link."""

    host_in: Annotated[tuple[HostPattern, ...], Field(min_length=1)] | None = None
    """An http or https URL on one of these hosts: `example.com`, `*.example.com` for
    the hosts below it, `example.com:8443` for a port that is not the usual one. URLs
    with a user, odd characters, names in Unicode or addresses written as odd numbers
    cannot be judged."""

    mentions_host: Annotated[tuple[HostPattern, ...], Field(min_length=1)] | None = None
    """A text that names one of these hosts, or one below it, in any spelling that a
    resolver takes for it, percent-encoded too; with the argument name `*` any text
    anywhere in the arguments. A text that cannot be decoded counts as a mention, and so
    do 50,000 characters without a space, a comma, a slash, a bracket or the like. Use
    it in deny rules. Ports are ignored."""

    argv: Annotated[tuple[CommandPattern, ...], Field(min_length=1)] | None = None
    """A list of texts, run without a shell, that is one of these commands. `*`
    stands for one argument that does not begin with `-`, and is refused for all but
    a short list of programs that run no other program, such as `cat` or `ls`. A
    command given as one text cannot be judged. Use it in allow rules."""

    @field_validator("equals", "one_of", "min", "max", mode="before")
    @classmethod
    def _no_decimal(cls, value: Any) -> Any:
        return _as_json(value)

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if not self.model_fields_set:
            raise ValueError("an empty condition says nothing")
        return self

    @field_validator("matches")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            pattern_validator(value)
        return value

    @field_validator("under")
    @classmethod
    def _clear_root(cls, value: str | None) -> str | None:
        if value is not None and _parts(value) is None:
            raise ValueError("a root must be a plain path without '..' or '\\'")
        return value

    @field_validator("host_in", "mentions_host")
    @classmethod
    def _hosts(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        hosts = tuple(host.lower().rstrip(".") for host in value)
        if wrong := [host for host in hosts if not HOST.fullmatch(host)]:
            raise ValueError(f"not a host: {wrong[0]!r}")
        return hosts

    @field_validator("argv")
    @classmethod
    def _no_open_end(
        cls, value: tuple[tuple[str, ...], ...] | None
    ) -> tuple[tuple[str, ...], ...] | None:
        for command in value or ():
            check_command(command)
        return value

    @cached_property
    def _checks(self) -> tuple[tuple[str, _Check], ...]:
        """The names of the fields that are set, each with its function."""
        every: dict[str, _Check] = {
            "equals": lambda value: same(value, self.equals),
            "one_of": lambda value: any_of(
                same(value, each) for each in self.one_of or ()
            ),
            "min": lambda value: _at_most(self.min, value),
            "max": lambda value: _at_most(value, self.max),
            "contains": containing(self.contains or (), words=False),
            "contains_word": containing(self.contains_word or (), words=True),
            "matches": whole_text(self.matches or ""),
            "max_length": self._is_short,
            "under": lambda value: _under(value, self.under or ""),
            "host_in": lambda value: host_in(value, self.host_in or ()),
            "mentions_host": Mentions(self.mentions_host or ()),
            "argv": lambda value: runs(value, self.argv or ()),
        }
        return tuple((name, every[name]) for name in every if self._sets(name))

    def _sets(self, name: str) -> bool:
        return name in self.model_fields_set

    def _is_short(self, value: object) -> bool | None:
        if not isinstance(value, str | list | dict) or self.max_length is None:
            return None
        return len(value) <= self.max_length

    def judge(self, value: object, *, every: bool = True) -> bool | None:
        """Return whether a value meets every field; None if it cannot be judged.

        Args:
            value: A JSON value.
            every: True if all elements of a list have to meet a field; False if one
                is enough. An empty list has none.
        """
        known = True
        for name, check in self._checks:
            answer = _judge(name, check, value, all_of if every else any_of)
            if answer is False:
                return False
            known = known and answer is not None
        return True if known else None

    @cached_property
    def absent(self) -> bool | None:
        """The answer for a missing argument: False, or None if null meets it."""
        return None if self.judge(None) else False


def judge_arguments(
    when: Iterable[tuple[Path, Condition]],
    arguments: Mapping[str, Any],
    *,
    every: bool,
) -> bool | None:
    """Return whether arguments meet all conditions; None if that cannot be judged.

    Args:
        when: Conditions, each with the path of its values.
        arguments: JSON values by name, as the tool gets them.
        every: True if all values at a path have to meet its condition, as for an
            allow rule; False if one is enough, as for a deny or ask rule.
    """
    known = True
    for path, condition in when:
        reached = values_at(arguments, path)
        if len(reached) == 1:
            answer = _judge_reached(condition, reached[0], every)
        else:
            answers = (_judge_reached(condition, each, every) for each in reached)
            answer = all_of(answers) if every else any_of(answers)
        if answer is False:
            return False
        known = known and answer is not None
    return True if known else None


def _judge_reached(condition: Condition, value: Reached, every: bool) -> bool | None:
    if value is Nothing.UNCLEAR:
        return None
    if value is Nothing.ABSENT:
        return condition.absent
    return condition.judge(value, every=every)


def _judge(
    name: str, check: _Check, value: object, combine: Callable[..., bool | None]
) -> bool | None:
    """Judge a value by one field, and a list by its elements."""
    if not isinstance(value, list) or name in ("max_length", "mentions_host"):
        return check(value)
    if name == "argv" and all(isinstance(each, str) for each in value):
        return check(value)
    whole = check(value) if name in _OF_WHOLE_LISTS_TOO else False
    if whole or not value:
        return whole
    elements = (_judge(name, check, each, combine) for each in value)
    return any_of((whole, combine(elements)))


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """Return whether all answers are True; None if that is not known."""
    known = True
    for answer in answers:
        if answer is False:
            return False
        known = known and answer is not None
    return True if known else None


def any_of(answers: Iterable[bool | None]) -> bool | None:
    """Return whether one of the answers is True; None if that is not known."""
    known = True
    for answer in answers:
        if answer:
            return True
        known = known and answer is not None
    return False if known else None


def same(left: object, right: object) -> bool | None:
    """Return whether two JSON values are equal, in value and type.

    None if they are not, but some program reads one as the other: `1`, `true`, `"1"`
    and `"true"`; `a`, `A` and ` a`.
    """
    if _number(left) and _number(right):
        return left == right
    if isinstance(left, list) and isinstance(right, list | tuple):
        if len(left) != len(right):
            return False
        return all_of(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys():
            return False
        return all_of(same(value, right[name]) for name, value in left.items())
    if isinstance(left, str) and isinstance(right, str):
        return left == right or (None if _reads_alike(left, right) else False)
    if type(left) is type(right):
        return left == right
    return None if _may_be_taken_for(left, right) else False


def _reads_alike(left: str, right: str) -> bool:
    if max(len(left), len(right)) > MAX_TEXT:
        return True
    return folded(left).strip() == folded(right).strip()


def _may_be_taken_for(left: object, right: object) -> bool:
    number = _as_number(left)
    return number is not None and number == _as_number(right)


def _as_number(value: object) -> int | float | None:
    """Return the number as which some program reads a scalar."""
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or len(value) > MAX_NUMBER:
        return None
    text = value.strip().lower()
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    for read in (lambda: int(text, 0), lambda: int(text), lambda: float(text)):
        with contextlib.suppress(ValueError):
            return read()
    return None


def _as_json(value: Any) -> Any:
    """Return a value of a policy file as it appears in arguments."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    return value


def _number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _at_most(low: object, high: object) -> bool | None:
    return low <= high if _number(low) and _number(high) else None


def _parts(path: str) -> tuple[str, ...] | None:
    """Return the parts of a path that has one reading only, else None."""
    if not path or "\\" in path or any(ord(c) < 32 or ord(c) == 127 for c in path):
        return None
    # POSIX leaves the meaning of two leading slashes to the system.
    parts = PurePosixPath(path).parts if not path.startswith("//") else None
    return None if parts is None or ".." in parts else parts


def _under(value: object, root: str) -> bool | None:
    parts = _parts(value) if isinstance(value, str) else None
    beneath = _parts(root)
    if parts is None or beneath is None:
        return None
    if root.startswith("/") is not str(value).startswith("/"):
        return None
    return parts[: len(beneath)] == beneath
