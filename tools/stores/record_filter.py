"""Filters of records: what a record has to be, and the words in it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .record import ToolExecutionRecord

MAX_SEARCHED = 4_000
"""Characters of the arguments of a call, and of its result, that are searched for
words. When it is reached the rest is not searched."""

EXACT = ("call_id", "parent_id", "agent_id", "tool_name", "reason")
"""Members of a filter that are compared with those of a record as they are."""

# Chinese, Japanese and Korean have no spaces: each letter is a word.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(f"[{_CJK}]|[^\\W_{_CJK}]+")


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
    return all(f" {each} " in f" {searched} " for each in phrases(text))


def searched_words(record: ToolExecutionRecord) -> str:
    """Return all words of a record that are found, in small letters."""
    parts = (record.call_id, record.agent_id or "", record.tool_name)
    values = (record.arguments, record.result, record.error_detail)
    texts = [*parts, *(_bounded(_texts(each)) for each in values)]
    return " ".join(word for text in texts for word in _words(text))


def words_in(value: Any) -> str:
    """Return the words of a JSON value as `searched_words` does, up to as many."""
    return " ".join(_words(_bounded(_texts(value))))


def _words(text: str) -> list[str]:
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text.casefold())
        text = "".join(c for c in decomposed if not unicodedata.combining(c))
        text = unicodedata.normalize("NFC", text)
    return _WORD.findall(text.lower())


def _texts(value: Any) -> Iterator[str]:
    """Yield the names and values of a JSON value, in their order."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as members:
                for pair in [*members.items()][::-1]:
                    left += pair[::-1]
            case list() | tuple() as items:
                left += reversed(items)
            case None:
                pass
            case int() as number if number.bit_length() > 256:
                pass
            case other:
                yield str(other)


def _bounded(texts: Iterator[str]) -> str:
    found, size = [], 0
    for each in texts:
        found.append(each[: MAX_SEARCHED - size])
        size += len(each)
        if size >= MAX_SEARCHED:
            break
    return " ".join(found)
