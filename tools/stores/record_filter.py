"""Filters of records: what a record has to be, and the words in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, TypedDict

from toolcell.core import InvalidInputError

from .record import ToolExecutionRecord

MAX_SEARCHED = 4_000
"""Characters of the arguments of a call, and of its result, that are searched for
words. When it is reached the rest is not searched."""

EXACT = ("call_id", "parent_id", "agent_id", "tool_name", "reason")
"""Members of a filter that are compared with those of a record as they are."""

_BITS = 256
"""Bits of a number that is searched for. When it is reached the number is no word."""

# Chinese, Japanese and Korean have no spaces: each letter is a word.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(f"[{_CJK}]|[^\\W_{_CJK}]+")


class RecordFilterOptions(TypedDict, total=False):
    """The options that choose records; see `Records.page`."""

    call_id: str | None
    parent_id: str | None
    agent_id: str | None
    tool_name: str | None
    status: str | tuple[str, ...] | None
    reason: str | None
    text: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """A record fits if all that is named fits; None fits every record."""

    call_id: str | None = None
    parent_id: str | None = None
    agent_id: str | None = None
    tool_name: str | None = None
    outcomes: tuple[str, ...] | None = None
    """One of these."""

    reason: str | None = None
    text: str | None = None
    """Whole words that are all in the record, in any order; those that are joined by
    `.`, `_` and the like follow each other."""

    since: datetime | None = None
    """Only those that started then or later."""

    until: datetime | None = None
    """Only those that started earlier."""

    @classmethod
    def of(
        cls,
        *,
        status: str | tuple[str, ...] | None = None,
        **options: Any,
    ) -> RecordFilter:
        """Return the filter of some options. Raises InvalidInputError."""
        for name in ("since", "until"):
            time = options.get(name)
            if time is not None and time.utcoffset() is None:
                raise InvalidInputError(
                    f"{name} has no time zone", hint="datetime.now(UTC) has one"
                )
        outcomes = (status,) if isinstance(status, str) else status
        return cls(outcomes=outcomes, **options)

    def fits(self, record: ToolExecutionRecord) -> bool:
        """Tell whether a record fits."""
        wanted = ((name, getattr(self, name)) for name in EXACT)
        return (
            all(
                value is None or getattr(record, name) == value
                for name, value in wanted
            )
            and (self.outcomes is None or record.outcome in self.outcomes)
            and (self.since is None or record.started_at >= self.since)
            and (self.until is None or record.started_at < self.until)
            and (not self.text or has_words(searched_words(record), self.text))
        )


def phrases(text: str) -> list[str]:
    """Return the words that are looked for; those that follow each other together."""
    found = (" ".join(_words(piece)) for piece in text.split())
    return [each for each in found if each]


def has_words(searched: str, text: str) -> bool:
    """Tell whether words of a record, as `searched_words` gives them, have a text."""
    return all(f" {phrase} " in f" {searched} " for phrase in phrases(text))


def searched_words(record: ToolExecutionRecord) -> str:
    """Return all words of a record that are found, in small letters."""
    return " ".join(_words(searched_text(record)))


def searched_text(record: ToolExecutionRecord) -> str:
    """Return the text of a record in which words are looked for."""
    texts = [record.call_id, record.agent_id or "", record.tool_name]
    for value in (record.arguments, record.result, record.error_detail):
        texts += _bounded_texts(value)
    return " ".join(texts)


def words_in(value: Any) -> str:
    """Return the words of a JSON value as `searched_words` does, up to as many."""
    return " ".join(_words(" ".join(_bounded_texts(value))))


def _words(text: str) -> list[str]:
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text.casefold())
        text = "".join(c for c in decomposed if not unicodedata.combining(c))
        text = unicodedata.normalize("NFC", text)
    return _WORD.findall(text.lower())


def _bounded_texts(value: Any) -> list[str]:
    """Return names and values of a JSON value in their order, up to `MAX_SEARCHED`."""
    found: list[str] = []
    room, left = MAX_SEARCHED, [value]
    while left and room > 0:
        each = left.pop()
        if isinstance(each, str):
            text = each
        elif isinstance(each, Mapping):
            left += reversed([*chain.from_iterable(each.items())])
            continue
        elif isinstance(each, list | tuple):
            left += reversed(each)
            continue
        elif each is None or (isinstance(each, int) and each.bit_length() > _BITS):
            continue
        else:
            text = str(each)
        found.append(text[:room])
        room -= len(text)
    return found
