"""Shows what a program prints and displays to a person, in its order."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from toolcell.core.text.printable import escaped

if TYPE_CHECKING:
    from toolcell.sandbox import Output

    from .shown_outputs import OutputView


def shows_in_one_place() -> bool:
    """Return True if both streams of this process go to one file, as after `2>&1`."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


class ProgramView:
    """Shows output as it comes: unchanged to a pipe, escaped to a terminal."""

    def __init__(self) -> None:
        self._outputs: OutputView | None = None
        self._targets: dict[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._partial = {"stdout": b"", "stderr": b""}
        self._last = b"\n"

    def show(self, stream: str, data: bytes) -> None:
        """Show a piece of a stream."""
        self._last = data[-1:] or self._last
        target = self._targets[stream]
        if not target.isatty():
            target.flush()
            target.buffer.write(data)
            target.buffer.flush()
            return
        whole, self._partial[stream] = _split_utf8(self._partial[stream] + data)
        target.write(escaped(whole.decode("utf-8", "replace")))
        target.flush()

    def display(self, output: Output) -> None:
        """Show an output."""
        if self._outputs is None:
            # Most programs display nothing.
            from .shown_outputs import OutputView

            self._outputs = OutputView()
        self.end_line()
        self._outputs.show(output)

    def finish(self) -> None:
        """Show the bytes of a character that never became complete."""
        for stream, rest in self._partial.items():
            self._targets[stream].write(rest.decode("utf-8", "replace"))
        sys.stdout.flush()

    def end_line(self) -> None:
        """Begin a new line if the last one has no end."""
        if self._last != b"\n":
            self._last = b"\n"
            print()


def _split_utf8(data: bytes) -> tuple[bytes, bytes]:
    """Split off a character at the end whose last bytes are still to come."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 2 if byte >= 0xC0 else 1
        needed += (byte >= 0xE0) + (byte >= 0xF0)
        return (data[:-back], data[-back:]) if needed > back else (data, b"")
    return data, b""
