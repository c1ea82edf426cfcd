"""The supervisor's side of the page that programs print into."""

from __future__ import annotations

import select

from ..wire.output_page import (
    BASE,
    BEGAN,
    FLUSHED,
    SENDING,
    SENT,
    SIZE,
    START,
    TAKEN,
    TAKING,
)

_PIECE = select.PIPE_BUF
# Looks in which zeros may be bytes that are not copied yet: a second.
_PATIENCE = 25
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from ..wire.output_page import OutputPage


class PageReader:
    """Takes bytes out of a page that one program prints into, and may scribble over.

    Args:
        page: The page.
    """

    def __init__(self, page: OutputPage) -> None:
        self._page = page
        self._taken = 0
        # The end of what was there at the last look.
        self._seen = 0
        self._patience = _PATIENCE
        words = page.words
        for word in (SENDING, TAKING, BASE, SENT, TAKEN, BEGAN, FLUSHED):
            words[word] = 0

    def take_old(self, drain: Callable[[], object]) -> bytes:
        """Take what was there at the last look already, so that it is whole.

        Args:
            drain: Reads the pipe, which the program moves nothing into meanwhile: what
                is in it was printed before.
        """
        words = self._page.words
        words[TAKING] = 1
        try:
            if words[SENDING]:
                return b""
            start, data = self._unsent()
            seen, self._seen = self._seen, start + len(data)
            data = self._written(data[: max(seen - start, 0)])
            if data:
                words[TAKEN] = self._taken = start + len(data)
                drain()
            return data
        finally:
            words[TAKING] = 0

    def _written(self, data: bytes) -> bytes:
        """Return the bytes before a hole in a line: C copies a line's first bytes last.

        A machine that is busy may let the program wait in the middle of its copy. What
        is a hole for too long is zeros that the program printed.
        """
        before, hole, _ = data.partition(b"\0")
        if hole and self._patience:
            self._patience -= 1
            return before
        self._patience = _PATIENCE
        return data

    @property
    def has_begun(self) -> bool:
        """True once the program says that a signal may interrupt it."""
        return bool(self._page.words[BEGAN])

    def await_flush(self) -> None:
        """Forget that the program has flushed, before it is asked to."""
        self._page.words[FLUSHED] = 0

    @property
    def is_flushed(self) -> bool:
        """True once the program has flushed because it will be killed."""
        return bool(self._page.words[FLUSHED]) and self.is_sent

    @property
    def is_sent(self) -> bool:
        """True unless the program is about to move bytes, or to note that it did."""
        return not self._page.words[SENDING]

    def take_rest(self, before: bytes) -> bytes:
        """Take all; no process prints into the page any more.

        Args:
            before: The end of what came through the pipe. A program that was killed
                may have written a piece and not noted it.
        """
        start, data = self._unsent()
        if not self.is_sent and data and before.endswith(data[:_PIECE]):
            start, data = start + len(data[:_PIECE]), data[_PIECE:]
        self._taken = start + len(data)
        return data

    def _unsent(self) -> tuple[int, bytes]:
        """Return the number of the first byte that nobody moved, and those from it."""
        words = self._page.words
        start = max(words[SENT], self._taken)
        at = START + start - words[BASE]
        # Only one that prints zeros has a line that begins with some.
        is_empty = self._patience == _PATIENCE
        if not START <= at < SIZE or (is_empty and not self._page.memory[at]):
            return start, b""
        return start, self._page.written(at)
