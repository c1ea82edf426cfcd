"""Finds tools by the words that they are described with."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..definition.tool import Tool

MAX_WORDS = 32
"""Words of a query. When it is reached the rest of the query does not count."""

_WORD = re.compile(r"\w+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SCHEMA = "CREATE VIRTUAL TABLE tools USING fts5 (name UNINDEXED, words)"
_INSERT = "INSERT INTO tools VALUES (?, ?)"
_SEARCH = "SELECT name FROM tools WHERE tools MATCH ? ORDER BY rank, rowid"


class ToolIndex:
    """The words of names, descriptions and arguments of tools, in SQLite's FTS5.

    Where SQLite was built without it, tools are ordered by how many words they have.
    Any number of threads may search at once.

    Args:
        tools: The tools.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._turn = threading.Lock()
        self._words: dict[str, set[str]] | None = None
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._database.execute(_SCHEMA)
        except sqlite3.OperationalError:
            self._words = {tool.name: set(_words_of(tool)) for tool in tools}
            return
        rows = ((tool.name, " ".join(_words_of(tool))) for tool in tools)
        self._database.executemany(_INSERT, rows)

    def search(self, query: str) -> list[str]:
        """Return the names of tools that have a word of a query, the best ones first.

        A text without words, of whatever characters, finds nothing.
        """
        words = _words(query)[:MAX_WORDS]
        if not words:
            return []
        if self._words is not None:
            return _counted(self._words, set(words))
        # Quoted: FTS5 would read AND, NOT, `-` and `:` as its own language.
        match = " OR ".join(f'"{word}"' for word in words)
        with self._turn:
            return [name for (name,) in self._database.execute(_SEARCH, (match,))]


def _counted(tools: Mapping[str, set[str]], asked: set[str]) -> list[str]:
    counts = {name: len(asked & words) for name, words in tools.items()}
    return sorted(filter(counts.get, counts), key=lambda name: -counts[name])


def _words_of(tool: Tool) -> Iterator[str]:
    yield from _words(tool.name)
    yield from _words(tool.description)
    arguments: Mapping[str, Any] = tool.parameters.get("properties", {})
    for name, about in arguments.items():
        yield from _words(name)
        if isinstance(about, dict):
            yield from _words(str(about.get("description", "")))


def _words(text: str) -> list[str]:
    """Return the words of a text; `getUser_name` has three."""
    return _WORD.findall(_HUMP.sub(" ", text).replace("_", " ").lower())
