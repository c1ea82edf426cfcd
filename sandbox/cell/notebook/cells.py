"""Cells of notebooks as Python: commands become calls of `get_ipython()`.

No statement of Python begins with `%`, `!` or `?`, so only what Python cannot compile
comes here, and a line inside a text or in brackets is never taken for a command. Lines
keep their numbers. The host reads programs by these functions, too.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Optional


PYTHON_BODIES = ("capture", "prun", "time", "timeit")
"""Commands for a whole cell that run the rest of it as Python."""

_CELL = re.compile(r"((?:[^\S\n]*(?:#[^\n]*)?\n)*[ \t]*)%%(\w+)[ \t]*([^\n]*)\n?")
_TARGET = r"[^\W\d][\w.]*(?:\[[^\]\n]*\])?"
_LINE = re.compile(
    rf"([ \t]*)((?:{_TARGET}(?:[ \t]*,[ \t]*{_TARGET})*[ \t]*=[ \t]*)?)"
    r"(!!|!|%(?=[%A-Za-z_])|(?=pip3?[ ]install[ ])|(?=\?{1,2}[\w.])|(?=[%\w.]+\?))"
    r"((?:\\\n|[^\n])*)"
)
_HELP = re.compile(r"(\?{0,2})%{0,2}([\w.]+)(\?{0,2})[ \t]*;?")
_TOKEN = re.compile(
    r"#[^\n]*"
    r"|'''(?:\\.|[^\\])*?(?:'''|\Z)"
    r'|"""(?:\\.|[^\\])*?(?:"""|\Z)'
    r"|'(?:\\.|[^\\\n'])*'?"
    r'|"(?:\\.|[^\\\n"])*"?'
    r"|[\[({]|[\])}]|\\\n|\n",
    re.DOTALL,
)
_PIP = re.compile(
    r"(?:(?:\{sys\.executable\}|python[\d.]*)\s+-m\s+|uv\s+)?pip[\d.]*\s+(install\s.*)"
)
_MORE = re.compile(r"[;`]|&&|\|\|")
_ELSEWHERE = re.compile(r"\s(?:\d|&)?>.*|\|.*")
_MAX_READ = 65_536
_MAY_INSTALL = re.compile(r"^[ \t]*(?:[%!]|pip3? ).*\binstall\b", re.MULTILINE)


class CellCommand:
    """A command among the lines of a cell.

    Args:
        kind: `%`, `!`, `!!` or `?`.
        name: The name of a `%` command.
        text: What follows.
        target: The variables that get its value, and `=`; empty if there are none.
    """

    __slots__ = ("kind", "name", "target", "text")

    def __init__(self, kind: str, name: str, text: str, target: str = "") -> None:
        self.kind, self.name, self.text, self.target = kind, name, text, target

    def as_python(self) -> str:
        """Return the call that runs it."""
        if self.kind == "%":
            call = "run_line_magic(%r, %r)" % (self.name, self.text)
        elif self.kind == "?":
            call = "pinfo(%r)" % self.text
        elif self.kind == "!!" or self.target:
            call = "getoutput(%r)" % self.text
        else:
            call = "system(%r)" % self.text
        return "%sget_ipython().%s" % (self.target, call)


def python_of(source: str) -> str:
    """Return a cell as Python: without its indentation, its commands as calls."""
    text = dedented(source)
    whole = _CELL.match(text)
    if whole is not None:
        head, name, line = whole.groups()
        call = (name, line.strip(), text[whole.end() :])
        return "%sget_ipython().run_cell_magic(%r, %r, %r)" % (head.rstrip(" "), *call)
    parts = []
    for piece, command in _statements(text):
        if command is not None:
            indent = piece[: len(piece) - len(piece.lstrip())]
            # Its later lines stay, empty.
            piece = indent + command.as_python() + "\n" * piece.count("\n")
        parts.append(piece)
    return "".join(parts)


def commands(source: str) -> Iterator[tuple[int, CellCommand]]:
    """Yield the commands of a cell, each with the number of its line."""
    text = dedented(source)
    whole = _CELL.match(text)
    number = 1
    if whole is not None:
        number += whole[1].count("\n")
        yield number, CellCommand("%", "%" + whole[2], whole[3].strip())
        if whole[2] in PYTHON_BODIES:
            for line, inner in commands(text[whole.end() :]):
                yield number + line, inner
        return
    for piece, command in _statements(text):
        if command is not None:
            yield number, command
        number += piece.count("\n")


def installs(source: str) -> tuple[str, ...]:
    """Return the arguments of each `pip install` of a cell.

    A cell of more than 65,536 characters has none: it is not read.
    """
    if len(source) > _MAX_READ or _MAY_INSTALL.search(source) is None:
        return ()
    found = (each for _, each in commands(source) if each.name == "pip")
    return tuple(each.text for each in found if each.text.startswith("install "))


def dedented(source: str) -> str:
    """Return a cell without the indentation of its first line."""
    text = source.replace("\r\n", "\n").replace("\r", "\n")
    first = re.match(r"(?:[^\S\n]*\n)*([ \t]+)(?=\S)", text)
    if first is None:
        return text
    return re.sub("^" + first[1], "", text, flags=re.MULTILINE)


def _statements(text: str) -> Iterator[tuple[str, Optional[CellCommand]]]:
    """Yield the lines of each statement, and the command that it is."""
    at = 0
    while at < len(text):
        found = _LINE.match(text, at)
        command = None if found is None else _command(found)
        if found is not None and command is not None:
            end = min(found.end() + 1, len(text))
            if command.name in PYTHON_BODIES:
                # It may go on, in brackets.
                end = max(end, _end_of_statement(text, found.end(2)))
                command.text = text[found.end(3) : end].partition(" ")[2].strip()
        else:
            end = _end_of_statement(text, at)
        yield text[at:end], command
        at = end


def _command(found: re.Match[str]) -> Optional[CellCommand]:
    _, target, kind, rest = found.groups()
    text = rest.replace("\\\n", " ").strip()
    if kind == "%":
        name, _, line = text.partition(" ")
        return CellCommand("%", name, line.strip(), target)
    if kind == "":
        asked = _HELP.fullmatch(text)
        if asked is not None and not target and asked[1] + asked[3]:
            return CellCommand("?", "", asked[2] + (asked[1] or asked[3])[1:])
        if not text.startswith("pip"):
            return None
    pip = _PIP.fullmatch(text)
    if pip is not None and not target and not _MORE.search(text):
        return CellCommand("%", "pip", _ELSEWHERE.sub("", pip[1]).strip())
    return CellCommand(kind or "!", "", text, target) if text else None


def _end_of_statement(text: str, at: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, at):
        found = token[0]
        if found in "[({":
            depth += 1
        elif found in "])}":
            depth -= 1
        elif found == "\n" and depth <= 0:
            return token.end()
    return len(text)
