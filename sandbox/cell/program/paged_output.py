"""Standard output, whose lines gather in memory that outlives the program.

See `wire.output_page`. Each class has the name, and does the work, of the one that a
program finds in plain Python.
"""

from __future__ import annotations

import io
import os
import select
import time
from _thread import RLock

from ..wire.output_page import BASE, SENDING, SENT, SIZE, START, TAKEN, TAKING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..wire.output_page import OutputPage


# A pipe takes all of it, or, if the program is killed meanwhile, none.
_PIECE = select.PIPE_BUF
_ZEROS = bytes(SIZE - START)
_YIELD_SECONDS = 0.0001
_flush_text = io.TextIOWrapper.flush


class Lines:
    """The target of the text stream's lines: a page, or the file itself.

    Args:
        raw: The file, not buffered.
    """

    # The text stream asks for these at each line. Programs call those of the stream.
    flush = staticmethod(bool)
    closed = False

    def __init__(self, raw: io.FileIO) -> None:
        self.file = BufferedWriter(raw, self)
        self.write: Callable[[bytes], int] = self._add
        self._page: OutputPage | None = None
        self._lock = RLock()
        self.pending = False
        """True if there may be something to send."""

        self.text: TextIOWrapper | None = None
        self._identity = (0, 0)
        self._sending = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def end_text(self) -> None:
        """Send what was printed: the file is about to be closed, whoever does it."""
        self.closed = True
        if self.text is not None:
            self.text.__dict__["closed"] = True
        self.send()

    @property
    def in_page(self) -> bool:
        """True while it prints into a page."""
        return self._page is not None

    def begin(self, page: OutputPage) -> None:
        """Print into a page from now on."""
        identity = self._identify()
        if identity is not None:
            self._identity = identity
            page.memory.seek(START)
            self._page = page

    def end(self) -> None:
        """Send what was printed, and print into no page any more."""
        with self._lock:
            if self._page is not None:
                try:
                    self._move(self._page, clears=True)
                finally:
                    self.forget()

    def forget(self) -> None:
        """Leave the page to the process that this one was forked from."""
        if self._page is not None:
            self._page.memory.seek(SIZE)
        self._page, self._sending, self._lock = None, False, RLock()
        self.write = self._add

    def send(self) -> None:
        """Move what was printed into the file, and flush that."""
        if self._sending:
            return
        with self._lock:
            self.write = self._add
            if self._page is not None:
                self._move(self._page)
            self.file.end_bytes()
            self.pending = self.write != self._add

    def send_if_open(self) -> None:
        """Send what was printed before something else, if it has somewhere to go."""
        if self.pending:
            try:
                self.send()
            except (OSError, ValueError):
                return

    def _add(self, data: bytes) -> int:
        """Write where the page may be closed, or full, or about another file."""
        with self._lock:
            page = self._page
            self.file.end_bytes()
            if page is None or self._sending:
                return self._write_through(data)
            if self._identify() != self._identity:
                self.send()
                return self._write_through(data)
            if len(data) > SIZE - page.memory.tell():
                self._move(page, clears=True)
                if len(data) > SIZE - START:
                    return self._write_through(data)
            self.pending, self.write = True, self._appender(page)
            return self.write(data)

    def _appender(self, page: OutputPage) -> Callable[[bytes], int]:
        put, add = page.memory.write, self._add

        def write(data: bytes) -> int:
            try:
                return put(data)
            except ValueError:
                return add(data)

        return write

    def _write_through(self, data: bytes) -> int:
        count = io.BufferedWriter.write(self.file, data)
        io.BufferedWriter.flush(self.file)
        return count

    def _identify(self) -> tuple[int, int] | None:
        """Return what the descriptor leads to: a program may give it another file."""
        try:
            found = os.fstat(self.file.fileno())
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino

    def _move(self, page: OutputPage, *, clears: bool = False) -> None:
        """Write what is in the page to the file, and perhaps begin the page anew."""
        words, memory = page.words, page.memory
        self._sending = True
        words[SENDING] = 1
        end = memory.tell()
        try:
            if clears:
                # Threads that print now wait for the lock.
                memory.seek(SIZE)
                end += len(page.written(end))
            while words[TAKING]:
                time.sleep(_YIELD_SECONDS)
            base = words[BASE] - START
            at = max(words[SENT], words[TAKEN]) - base
            while at < end:
                at += self._write(memory[at : min(at + _PIECE, end)])
                words[SENT] = base + at
            if clears:
                memory[START:SIZE] = _ZEROS
                words[BASE], end = base + end, START
        finally:
            if clears:
                memory.seek(end)
            words[SENDING] = 0
            self._sending = False

    def _write(self, data: bytes) -> int:
        fd = self.file.fileno()
        while True:
            try:
                return os.write(fd, data)
            except BlockingIOError:
                select.select([], [fd], [])


class BufferedWriter(io.BufferedWriter):
    """Takes bytes after the lines that were printed before them.

    Args:
        raw: The file, not buffered.
        lines: Those lines.
    """

    __module__ = "_io"

    def __init__(self, raw: io.FileIO, lines: Lines) -> None:
        super().__init__(raw)
        self._lines = lines

    def write(self, data: Any) -> int:
        self._lines.send()
        # Until lines follow it is Python's own.
        self.__dict__["write"] = super().write
        self._lines.pending = True
        return super().write(data)

    def end_bytes(self) -> None:
        """Let lines follow."""
        if self.__dict__.pop("write", None) is not None:
            self.flush()

    def close(self) -> None:
        try:
            if not self.closed:
                self._lines.end_text()
        finally:
            super().close()


class ErrorWriter(io.BufferedWriter):
    """Takes bytes for standard error after the lines that were printed before them.

    Args:
        raw: The file, not buffered.
        lines: Those lines.
    """

    __module__ = "_io"

    def __init__(self, raw: io.FileIO, lines: Lines) -> None:
        super().__init__(raw)
        self._lines = lines

    def write(self, data: Any) -> int:
        self._lines.send_if_open()
        return super().write(data)


class TextIOWrapper(io.TextIOWrapper):
    """Standard output as text.

    Args:
        lines: Takes its lines.
    """

    __module__ = "_io"
    # Plain Python asks the file through three objects, four times a line.
    closed = False

    def __init__(self, lines: Lines, **options: Any) -> None:
        super().__init__(lines, line_buffering=True, **options)
        self._lines = lines
        lines.text = self

    @property
    def buffer(self) -> Any:
        return self._lines.file

    def flush(self) -> None:
        _flush_text(self)
        if self._lines.pending:
            self._lines.send()

    def detach(self) -> Any:
        super().detach()
        return self._lines.file
