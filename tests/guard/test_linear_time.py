"""What a stranger writes is read in time that grows as the text does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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

ROUNDS = 5
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
    **{f"{each}": Condition(**each).judge for each in CONDITIONS},
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


@pytest.mark.promise("R41", "R42", "R75")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.promise("R66")
def test_a_text_is_read_in_linear_time(name: str) -> None:
    read = READERS[name]
    for part in PARTS:
        whole = (part * SIZE)[:SIZE]
        slow = seconds(read, whole)
        if slow < 0.01:
            continue
        # Both sizes at one moment, and the best of several, on a busy machine.
        ends, starts = [slow], [math.inf]
        for _ in range(ROUNDS):
            ends += [seconds(read, whole) for _ in range(2)]
            starts += [seconds(read, whole[: SIZE // 16]) for _ in range(4)]
            exponent = math.log2(min(ends) / min(starts)) / 4
            if exponent < EXPONENT:
                break
        assert exponent < EXPONENT, part
        assert slow < 2, part
