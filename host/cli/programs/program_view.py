"""Shows what a program prints and displays to a person, in its order."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TextIO, TypeAlias, Union

import anyio

from toolcell.core.task_groups import lone_error_as_it_is
from toolcell.core.text.printable import escaped

if TYPE_CHECKING:
    from toolcell.sandbox import Output, Sandbox

    from .shown_outputs import OutputView

_Item: TypeAlias = Union["Output", tuple[str, bytes]]


class ProgramView:
    """Shows output as it comes: unchanged to a pipe, escaped to a terminal.

    What comes while a picture is made ready for the terminal waits for it.

    Args:
        sandbox: As in `OutputView`.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._outputs: OutputView | None = None
        self._targets: dict[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._partial = {"stdout": b"", "stderr": b""}
        self._last = b"\n"
        self._send, self._items = anyio.create_memory_object_stream[_Item](math.inf)

    def show(self, stream: str, data: bytes) -> None:
        """Show a piece of a stream."""
        self._send.send_nowait((stream, data))

    def display(self, output: Output) -> None:
        """Show an output."""
        self._send.send_nowait(output)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Show what comes meanwhile; at the end all of it is shown."""
        with lone_error_as_it_is():
            async with self._items, anyio.create_task_group() as tasks, self._send:
                tasks.start_soon(self._follow)
                yield

    def end_line(self) -> None:
        """Begin a new line if the last one has no end."""
        if self._last != b"\n":
            self._last = b"\n"
            print()

    async def _follow(self) -> None:
        async for item in self._items:
            if isinstance(item, tuple):
                self._write(*item)
            else:
                await self._display(item)
        for stream, rest in self._partial.items():
            # The bytes of a character that never became complete.
            self._targets[stream].write(rest.decode("utf-8", "replace"))
        sys.stdout.flush()

    async def _display(self, output: Output) -> None:
        if self._outputs is None:
            # Most programs display nothing.
            from .shown_outputs import OutputView

            self._outputs = OutputView(self._sandbox)
        self.end_line()
        await self._outputs.show(output)

    def _write(self, stream: str, data: bytes) -> None:
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
