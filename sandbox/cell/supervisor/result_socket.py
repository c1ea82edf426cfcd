"""The bytes of a program's result socket: our line, its outputs, its report."""

from __future__ import annotations

import json

from ..program import values
from ..wire.contract import (
    MAX_OUTPUT_BYTES,
    MAX_OUTPUTS,
    MAX_OUTPUTS_BYTES,
    OUTPUT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_MAX_REPORT_BYTES = values.MAX_RESULT_BYTES + 256 * 1024
_HEAD_BYTES = len(OUTPUT) + 2 + 8


class ResultSocket:
    """Takes outputs out of the bytes of a run, and keeps the report behind them.

    Outputs are passed on unread. What is past their limits is dropped as it comes, at
    the cell's own expense.

    Args:
        setup: The line that our own code wrote before any program ran; None if these
            bytes begin with it.
    """

    def __init__(self, setup: dict[str, Any] | None) -> None:
        self._setup = setup
        self._begun = setup is not None
        self._line = b""
        self._rest = bytearray()
        # Bytes of a dropped output that are still to come, and its mark.
        self._skipped = self._skipped_mark = 0
        self._left = MAX_OUTPUTS
        self._left_bytes = MAX_OUTPUTS_BYTES
        self.dropped = 0
        """Outputs that were left out."""

    def add(self, data: bytes) -> list[tuple[int, bytes | None]]:
        """Take in bytes; return the mark and body of each output that is complete.

        The body of one that was left out is None.
        """
        if self._skipped:
            over = min(self._skipped, len(data))
            self._skipped -= over
            data = data[over:]
            if self._skipped:
                return []
            return [(self._skipped_mark, None), *self.add(data)]
        room = _MAX_REPORT_BYTES + MAX_OUTPUT_BYTES - len(self._rest)
        self._rest += data[:room]
        if not self._begun:
            self._take_line()
        found = []
        while self._begun and self._rest.startswith(OUTPUT):
            output = self._next()
            if output is None:
                break
            found.append(output)
        return found

    def _take_line(self) -> None:
        end = self._rest.find(b"\n")
        if end >= 0:
            self._begun, self._line = True, bytes(self._rest[:end])
            del self._rest[: end + 1]

    def _next(self) -> tuple[int, bytes | None] | None:
        """Remove the next output if it is complete, or has begun and is left out."""
        head = self._rest[:_HEAD_BYTES]
        if len(head) < _HEAD_BYTES:
            return None
        try:
            mark, size = int(head[1:3], 16), int(head[3:], 16)
        except ValueError:
            # The rest is no report either.
            self._rest[:1] = b"?"
            return None
        end = _HEAD_BYTES + size
        if size > MAX_OUTPUT_BYTES or size > self._left_bytes or not self._left:
            self.dropped += 1
            self._skipped = max(end - len(self._rest), 0)
            del self._rest[:end]
            self._skipped_mark = mark & 0xFF
            return None if self._skipped else (mark & 0xFF, None)
        if len(self._rest) < end:
            return None
        body = bytes(self._rest[_HEAD_BYTES:end])
        del self._rest[:end]
        self._left -= 1
        self._left_bytes -= size
        return mark & 0xFF, body

    def split(self) -> tuple[dict[str, Any] | None, bytes]:
        """Return our line and the program's report.

        The line is None if the process ended before it wrote it.
        """
        report = bytes(self._rest[:_MAX_REPORT_BYTES])
        if self._setup is not None:
            return self._setup, report
        try:
            return (json.loads(self._line) if self._begun else None), report
        except ValueError:
            return None, report
