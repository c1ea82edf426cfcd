"""Tables of untrusted HTML as Markdown, in time linear in their length."""

from __future__ import annotations

import html
import re

_MAX_CHARACTERS = 262_144
_MAX_CELL = 200
_MAX_COLUMNS = 100
# A sign that opens no tag is text; no alternative looks further than the next one.
_TOKEN = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)[^<>]*>|<[^<>]*>|[^<]+|<")
_HIDDEN = frozenset({"style", "script", "head", "title", "template"})


def table_as_markdown(text: str, max_rows: int) -> str | None:
    """Return the first table of an HTML text as Markdown; None if there is none.

    Args:
        text: HTML; what is past the first 256 KiB is not looked at.
        max_rows: Rows below the heading. When it is reached a last line says that
            there are more.
    """
    rows, more = _rows(text[:_MAX_CHARACTERS], max_rows + 1)
    if not rows:
        return None
    width = min(max(map(len, rows)), _MAX_COLUMNS)
    heading, *others = rows
    lines = [_line(heading, width), "|" + " --- |" * width]
    lines += [_line(row, width) for row in others]
    if more:
        lines.append(f"\n(only the first {max_rows} rows)")
    return "\n".join(lines)


def _line(row: list[str], width: int) -> str:
    cells = [*row[:width], *[""] * (width - len(row))]
    return "| " + " | ".join(cells) + " |"


class _Table:
    """Collects the rows of the first table, tag by tag.

    Args:
        max_rows: Rows to collect; `has_more` is then True where there are further ones.
    """

    def __init__(self, max_rows: int) -> None:
        self.rows: list[list[str]] = []
        self.has_more = False
        self._max_rows = max_rows
        self._inside = 0
        self._hidden = ""
        # Of the cell that is open.
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
            return self._inside > 0 or not closes
        elif self._inside > 0:
            return self._take_inside(piece, closes, name)
        return True

    def _take_inside(self, piece: str, closes: bool, name: str) -> bool:
        if name == "tr" and not closes:
            self.end_cell()
            self.has_more = len(self.rows) == self._max_rows
            if self.has_more:
                return False
            self.rows.append([])
        elif name in ("td", "th"):
            self.end_cell()
            if not closes and self.rows and len(self.rows[-1]) < _MAX_COLUMNS:
                self._pieces = []
        elif self._pieces is not None:
            # A tag parts words, as `<br>` does.
            self._pieces.append(" " if piece[0] == "<" and piece != "<" else piece)
        return True

    def end_cell(self) -> None:
        if self._pieces is not None:
            words = " ".join(html.unescape("".join(self._pieces)).split())
            self.rows[-1].append(words[:_MAX_CELL].replace("|", "\\|"))
            self._pieces = None


def _rows(text: str, wanted: int) -> tuple[list[list[str]], bool]:
    """Return the rows of the first table, and True if it has further ones."""
    table = _Table(wanted)
    for match in _TOKEN.finditer(text):
        if not table.take(match[0], bool(match[1]), (match[2] or "").lower()):
            break
    table.end_cell()
    return [row for row in table.rows if row], table.has_more
