"""Programs, what they print and how they fail, as people read them: safe markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from pygments import lex
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import STANDARD_TYPES

from toolcell.core.text.printable import COLOUR, escaped

MAX_COLOURED = 4_000
"""Characters of a program that is coloured. When it is reached it has line numbers
alone. The worst text of so many takes 45 ms of the event loop, a usual one 12 ms."""

MAX_NUMBERED = 20_000
"""Lines of a text whose lines are numbered. When it is reached it is shown as it is."""

# Pygments' lexer of bash takes exponential time for a quote that is never closed.
_LANGUAGES = {
    "run_python": ("code", "python"),
    "run_code": ("code", "python"),
    "run_shell": ("command", "text"),
}
# That of Python tries each way to split white space, which takes quadratic time.
_BLANK = re.compile(r"\s{100}")
_COLOURED = frozenset("cksm")
"""Kinds of tokens that have a colour: comments, keywords, literal texts, numbers."""

_SPAN = Markup('<span class="{}">{}</span>')
_NUMBER = Markup('<span class="n"></span>')
_FAILED = Markup('<span class="n failed"></span>')
_ROOT = Path(__file__).resolve().parents[3]
_OURS = tuple(f"{_ROOT / room}/" for room in ("core", "guard", "host", "tools"))
_BASIC = re.compile(r"[39][0-7]")
_FRAME = re.compile(r'^  File "(.+)", line \d+(?:, in .+)?$', re.M)
_OWN = re.compile(r'^  File "((?:[^"\n]*/)?main(?:-\d+)?\.py)", line (\d{1,9})\b', re.M)
_OUR_ERROR = re.compile(r"^toolcell\.[\w.]+: ")
_NAMED = re.compile(r"^(?!Traceback )\S.*", re.M)


class Failure(NamedTuple):
    """The reason of a failure of a program or a tool, as its author reads it."""

    message: str
    """The line that names the exception; empty if none is seen to."""

    line: int | None
    """The line of the program that failed. None: none of its own is named."""


def language_of(tool: str, argument: str) -> str:
    """Return the language of an argument that is a program, or an empty text."""
    name, language = _LANGUAGES.get(tool, ("", ""))
    return language if argument == name else ""


def program(code: str, language: str = "", failed: int | None = None) -> Markup:
    """Return a program with numbered lines, coloured if its language is known.

    Args:
        code: The program, or any text of several lines.
        language: A name that Pygments knows; empty: no colours.
        failed: The line to point at.
    """
    if code.count("\n") > MAX_NUMBERED:
        return Markup.escape(escaped(code))
    lines = _lines(escaped(code), language)
    numbered = (
        (_FAILED if number == failed else _NUMBER) + line
        for number, line in enumerate(lines, 1)
    )
    return Markup("\n").join(numbered)


def _lines(code: str, language: str) -> list[Markup]:
    if not language or len(code) > MAX_COLOURED or _BLANK.search(code):
        return [Markup.escape(each) for each in code.split("\n")]
    lines: list[list[Markup]] = [[]]
    for kind, text in lex(code, _lexer(language)):
        first, *more = text.split("\n")
        lines[-1].append(_token(kind, first))
        lines += [[_token(kind, each)] for each in more]
    return [Markup().join(line) for line in lines]


@lru_cache
def _lexer(language: str) -> Lexer:
    return get_lexer_by_name(language, stripnl=False, ensurenl=False)


def _token(kind: Any, text: str) -> Markup:
    # Kinds are of three letters at most, of which the first one says enough.
    name = STANDARD_TYPES.get(kind, "")[:1]
    if name not in _COLOURED or not text:
        return Markup.escape(text)
    return _SPAN.format(f"c-{name}", text)


def terminal(text: str) -> Markup:
    """Return output in the colours of a terminal, as `Terminal` says."""
    return marked(Terminal().pieces(text))


def marked(pieces: Iterable[tuple[str, str]]) -> Markup:
    """Return the pieces of a terminal as markup."""
    return Markup().join(
        _SPAN.format(names, text) if names else Markup.escape(text)
        for names, text in pieces
    )


class Terminal:
    """Colours of output, which go on from one text to the next.

    Only the colour of letters and bold are followed, so nothing can be hidden; every
    other escape sequence is written out.
    """

    def __init__(self) -> None:
        self._colour = ""
        self._bold = False

    def pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield a text in pieces of one colour: the names of its classes, and it."""
        at = 0
        for found in COLOUR.finditer(text):
            yield from self._piece(text[at : found.start()])
            at = found.end()
            self._follow(found[1])
        yield from self._piece(text[at:])

    def _piece(self, text: str) -> Iterator[tuple[str, str]]:
        if text:
            names = filter(None, (self._colour, "bold" if self._bold else ""))
            yield " ".join(names), escaped(text)

    def _follow(self, codes: str) -> None:
        for code in codes.split(";"):
            match code.lstrip("0"):
                case "":
                    self._colour, self._bold = "", False
                case "1" | "22" as weight:
                    self._bold = weight == "1"
                case "39":
                    self._colour = ""
                case "38" | "48":
                    return  # a colour out of 256 or of any; its numbers follow
                case number if _BASIC.fullmatch(number):
                    self._colour = f"ansi-{number[1]}"


def failure(traceback: str) -> Failure:
    """Return what a traceback says to the author of the program."""
    found = _OWN.findall(traceback)
    # Functions of earlier runs of a session are in other files; ours is the outermost.
    own = [int(line) for file, line in found if file == found[0][0]]
    message = traceback[_message_at(traceback) :].split("\n", 1)[0]
    message = _OUR_ERROR.sub("", message)
    return Failure(message, own[-1] if own else None)


def _message_at(traceback: str) -> int:
    """Return where the lines begin that name the last exception."""
    frames = [*_FRAME.finditer(traceback)]
    named = _NAMED.search(traceback, frames[-1].end() if frames else 0)
    return len(traceback) if named is None else named.start()


def frames_of_tools(traceback: str) -> str:
    """Return a traceback without our own frames; if no other is in it, the whole."""
    frames, at = [*_FRAME.finditer(traceback)], _message_at(traceback)
    ends = [frame.start() for frame in frames[1:]] + [at]
    theirs = [
        traceback[frame.start() : end]
        for frame, end in zip(frames, ends, strict=False)
        if not frame[1].startswith(_OURS) and "/anyio/" not in frame[1]
    ]
    return "".join(theirs) + traceback[at:] if theirs else traceback
