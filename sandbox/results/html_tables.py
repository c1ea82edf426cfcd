"""Tables of untrusted HTML as Markdown, in time linear in their length."""

from __future__ import annotations

import html
import re

_MAX_CHARACTERS = 262_144
_MAX_CELL = 200
_MAX_COLUMNS = 100
# A sign that opens no tag is text; no alternative looks further than the next one.
_TOKEN = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*+)[^<>]*+>|<[^<>]*+>|[^<]+|<")
_HIDDEN = frozenset({"style", "script", "head", "title", "template"})


def table_as_markdown(text: str, max_rows: int) -> str | None:
    """Return the first table of an HTML text as Markdown; None if there is none.

    A cell has at most 200 characters, of which the last is `…` if there are more.

    Args:
        text: HTML; what is past the first 256 KiB is not looked at. When that is
            reached inside the table a last line says so.
        max_rows: Rows below the heading; columns are 100. When one of both is reached
            a last line says that there are more.
    """
    table = _read(text[:_MAX_CHARACTERS], max_rows + 1)
    rows = [row for row in table.rows if row]
    if not rows:
        return None
    width = max(map(len, rows))
    heading, *others = rows
    lines = [_line(heading, width), "|" + " --- |" * width]
    lines += [_line(row, width) for row in others]
    notes = {
        f"only the first {max_rows} rows": table.has_more_rows,
        f"only the first {_MAX_COLUMNS} columns": table.has_more_columns,
        "the end was not read": table.is_open and len(text) > _MAX_CHARACTERS,
    }
    remarks = ", ".join(note for note, holds in notes.items() if holds)
    return "\n".join([*lines, *([f"\n({remarks})"] if remarks else [])])


def _line(row: list[str], width: int) -> str:
    cells = [*row, *[""] * (width - len(row))]
    return "| " + " | ".join(cells) + " |"


_NO_CHARACTER = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{7,});?")
"""Numbers that no character has, and that Python may refuse to read."""


class _Table:
    """Collects the rows of the first table, tag by tag.

    Args:
        max_rows: Rows to collect.
    """

    def __init__(self, max_rows: int) -> None:
        self.rows: list[list[str]] = []
        self.has_more_rows = self.has_more_columns = False
        self.is_open = True
        """False once all of the rows are there."""

        self._max_rows = max_rows
        self._inside = 0
        self._hidden = ""
        # The texts of the table's cell that is open; None between cells.
        self._pieces: list[str] | None = None

    def take(self, piece: str, closes: bool, name: str) -> bool:
        """Take in a tag or a text; return False at the end of the table."""
        if self._hidden:
            if closes and name == self._hidden:
                self._hidden = ""
        elif name in _HIDDEN and not closes:
            self._hidden = name
        elif name == "table":
            self._inside += -1 if closes else 1
            self.is_open = self._inside > 0 or not closes
            return self.is_open
        elif self._inside > 0:
            return self._take_inside(piece, closes, name)
        return True

    def _take_inside(self, piece: str, closes: bool, name: str) -> bool:
        if name == "tr" and not closes:
            self.end_cell()
            if len(self.rows) == self._max_rows:
                self.has_more_rows, self.is_open = True, False
                return False
            self.rows.append([])
        elif name in ("td", "th"):
            self.end_cell()
            if not closes and self.rows:
                if len(self.rows[-1]) < _MAX_COLUMNS:
                    self._pieces = []
                else:
                    self.has_more_columns = True
        elif self._pieces is not None:
            # A tag parts words, as `<br>` does.
            self._pieces.append(" " if piece[0] == "<" and piece != "<" else piece)
        return True

    def end_cell(self) -> None:
        if self._pieces is not None:
            text = _NO_CHARACTER.sub("\ufffd", "".join(self._pieces))
            words = " ".join(html.unescape(text).split())
            if len(words) > _MAX_CELL:
                words = words[: _MAX_CELL - 1] + "…"
            self.rows[-1].append(words.replace("\\", "\\\\").replace("|", "\\|"))
            self._pieces = None


def _read(text: str, wanted: int) -> _Table:
    """Return the first table, of so many rows."""
    table = _Table(wanted)
    for match in _TOKEN.finditer(text):
        if not table.take(match[0], bool(match[1]), (match[2] or "").lower()):
            break
    table.end_cell()
    return table
