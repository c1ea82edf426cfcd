"""A live process of verifiers: a command of a session that is talked to."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator

from verifiers.v1.runtimes import RuntimeProcess

from toolcell.sandbox import Process

from .cells.guarded_session import OUTPUT_BYTES, exit_code
from .cells.thread_session import ThreadSession


class LiveProcess(RuntimeProcess):
    """A program that is talked to.

    Of what nobody reads of one stream while the other is read, the latest 10 MiB stay.

    Args:
        process: It, with an input that is open.
        thread: The session that it runs in.
    """

    def __init__(self, process: Process, thread: ThreadSession) -> None:
        self._process = process
        self._thread = thread
        self._pieces: AsyncGenerator[tuple[str, bytes], None] = process.output()
        self._over = False
        self._turn = asyncio.Lock()
        self._kept = {"stdout": bytearray(), "stderr": bytearray()}
        self.stdout = self._stream(self._kept["stdout"])
        self.stderr = self._stream(self._kept["stderr"])

    async def _stream(self, kept: bytearray) -> AsyncIterator[bytes]:
        while kept or not self._over:
            async with self._turn:
                if not kept and not self._over:
                    await self._pull()
            if kept:
                data = bytes(kept)
                kept.clear()
                yield data

    async def _pull(self) -> None:
        piece = await self._thread.acall(_next, self._pieces)
        if piece is None:
            self._over = True
            return
        stream, data = piece
        self._kept[stream] += data
        del self._kept[stream][:-OUTPUT_BYTES]

    async def write(self, data: bytes) -> None:
        await self._thread.acall(self._process.write, data)

    async def wait(self) -> int:
        return exit_code(await self._thread.acall(self._process.wait))

    async def poll(self) -> int | None:
        return None if self._process.running else await self.wait()

    async def terminate(self) -> None:
        await self._thread.acall(self._process.signal, signal.SIGTERM)

    async def kill(self) -> None:
        await self._thread.acall(self._process.kill)


async def _next(
    pieces: AsyncGenerator[tuple[str, bytes], None],
) -> tuple[str, bytes] | None:
    return await anext(pieces, None)
