"""What a stranger writes is read in time that grows as the text does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from toolcell.core import ToolError
from toolcell.core.egress import EgressRules
from toolcell.guard import Redactor
from toolcell.guard.spi import Condition
from toolcell.sandbox.results.html_tables import table_as_markdown

SIZE = 48_000
EXPONENT = 1.2
"""Of the time, for a text that is doubled four times. Quadratic time has 2."""

ROUNDS = 20
"""Looks at a text that seemed slow: what others do shows in some, quadratic in all."""

PARTS = [
    *("a", "a.", "a b", "1.", "1 ", "0", "0x", "::", ":a ", "-", ".", " ", "\t", "'"),
    *("日", "日.", "a\u0301\u0323", "\u0301\u0323", "ﷺ", "\u200b", "\ufffd", "aA"),
    *("eyJ", "-eyJ", "eyJaaaaaaaa.", "token=", "token=aaaaa;", "bearer ", "://", "%25"),
    *("-----BEGIN PRIVATE KEY-----", "ghp_", "sk-", "AIza", "$IFS", "xn--"),
]
CONDITIONS: list[dict[str, Any]] = [
    {"equals": "x"},
    {"one_of": ["x", "y"]},
    {"contains": ["rm -rf", "café"]},
    {"contains_word": "a a"},
    {"matches": "(?i).*rm -rf.*|.*a.*b.*c"},
    {"under": "/data"},
    {"host_in": ["example.com", "*.example.org"]},
    {"mentions_host": ["evil.test", "169.254.169.254", "[::1]", "xn--strae-oqa.test"]},
    {"argv": [["cat", "*"]]},
]
REDACTOR = Redactor(secrets=["a-known-secret"])
RULES = EgressRules.of("t", ["*.example.org"], [443], [])


def target(text: str) -> None:
    try:
        RULES.target(f"https://{text}/")
    except ToolError:
        return


READERS: dict[str, Callable[[str], Any]] = {
    **{f"{condition}": Condition(**condition).judge for condition in CONDITIONS},
    "redacted": REDACTOR,
    "many redacted": lambda text: REDACTOR(
        [text[at : at + 4096] for at in range(0, len(text), 4096)]
    ),
    "secrets in": REDACTOR.secrets_in,
    "target": target,
    # The letters of a part are the name of a tag that never ends.
    "html table": lambda text: table_as_markdown("<table><tr><td><" + text, 20),
}


def seconds(read: Callable[[str], Any], text: str) -> float:
    start = time.thread_time()
    read(text)
    return time.thread_time() - start


def filled(part: str, size: int) -> str:
    return (part * size)[:size]


def exponent_of(read: Callable[[str], Any], text: Callable[[int], str]) -> float:
    """Return the exponent of the time by the size of a text, or 0 if it is quick."""
    ends, starts = [seconds(read, text(SIZE))], [math.inf]
    if ends[0] < 0.01:
        return 0.0
    exponent = math.inf
    # Both sizes at one moment, and the best of several, on a busy machine.
    for _ in range(ROUNDS):
        ends += [seconds(read, text(SIZE)) for _ in range(2)]
        starts += [seconds(read, text(SIZE // 16)) for _ in range(4)]
        exponent = math.log2(min(ends) / min(starts)) / 4
        if exponent < EXPONENT:
            break
    return exponent


@pytest.mark.promise("R41", "R42", "R75")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.promise("R66")
def test_a_text_is_read_in_linear_time(name: str) -> None:
    read = READERS[name]
    for part in PARTS:
        assert exponent_of(read, partial(filled, part)) < EXPONENT, part
        assert seconds(read, filled(part, SIZE)) < 2, part


SHAPES: dict[str, Callable[[str, str, int], str]] = {
    "mixed": lambda one, two, size: filled(one + two, size),
    "one after the other": lambda one, two, size: (
        filled(one, size // 2) + filled(two, size // 2)
    ),
    "begun": lambda one, two, size: one + filled(two, size),
}


@pytest.mark.full
@pytest.mark.promise("R41", "R42")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", READERS)
def test_two_parts_are_read_in_linear_time(name: str, shape: str) -> None:
    read, made = READERS[name], SHAPES[shape]
    for one, two in permutations(PARTS, 2):
        # In quadratic time even this little takes long.
        if seconds(read, made(one, two, SIZE // 8)) < 0.01:
            continue
        found = exponent_of(read, partial(made, one, two))
        assert found < EXPONENT, (one, two)
