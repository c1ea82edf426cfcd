"""Text from outside cannot act on a terminal, hide from people, or end a command."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest

from toolcell.core.text.printable import (
    escaped,
    escaped_json,
    escaped_line,
    has_hidden,
)

from ..support.hidden_text import ATTACKS


@pytest.mark.parametrize(("attack", "seen"), ATTACKS.values(), ids=ATTACKS)
def test_what_nobody_would_see_is_written_out(attack: str, seen: str) -> None:
    assert has_hidden(attack)
    assert escaped(attack) == seen
    assert escaped(attack).encode()
    assert not has_hidden(escaped(attack))


def test_members_of_an_object_do_not_become_one() -> None:
    value = {"a\u200b": [1, "\x1b"], r"a\u{200b}": None}
    assert escaped_json(value) == {
        r"a\u{200b}": [1, r"\u{1b}"],
        r"a\u{200b}'1": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "two\nlines\tand a tab",
        "naïve 漢字 ü é مرحبا",
        "🦊",
        "a\u3000b\u00a0c",
    ],
)
def test_what_people_see_stays(text: str) -> None:
    assert not has_hidden(text)
    assert escaped(text) == text


def test_every_character_is_seen_or_written_out() -> None:
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in hidden and character not in "\n\t":
            assert escaped(character) == f"\\u{{{number:x}}}"
        elif not has_hidden(character):
            assert escaped(character) == character


def test_a_line_stays_one_line() -> None:
    assert escaped_line("a\nb\tc\rd\u2028e") == r"a\nb\tc\u{d}d\u{2028}e"


def test_a_long_text_is_cut_after_it_was_written_out() -> None:
    assert escaped("x" * 10, 10) == "x" * 10
    assert escaped("x" * 11, 10) == "xxxx [cut]"
    assert escaped("\x1b" * 10, 20) == r"\u{1b}\u{1b}\u [cut]"
    assert re.fullmatch(r"x{94} \[cut\]", escaped("x" * 1_000_000, 100))
