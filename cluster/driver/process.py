"""A command in a session on a node."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any, Literal

import anyio

from toolcell.core import CellLostError, InvalidInputError, ToolcellError
from toolcell.sandbox import ExecutionResult

from ..wire.codec import read_result
from ..wire.link import Link
from ..wire.message import WireMessage
from .protocol_errors import closing_link_on_error
from .runs import Caller, ask, next_message, stream_of


class ClusterProcess:
    """One command; it is a `SandboxProcess`, as `Process` is.

    Args:
        link: Leads to the node.
        session: The number of its session.
        about: The node's report of it.
        caller: Answers its calls.
    """

    def __init__(
        self, link: Link, session: int, about: dict[str, Any], caller: Caller
    ) -> None:
        self._link = link
        self._session = session
        self._caller = caller
        self.number = int(about["process"])
        """Its number on the link."""

        self.argv: tuple[str, ...] = tuple(about["argv"])
        """The program and its arguments."""

        self.pid = int(about["pid"])
        """Its process id inside the cell."""

        self._result: ExecutionResult | None = None
        self._ended = anyio.Event()

    @property
    def running(self) -> bool:
        """True while it has not ended; the node reports its end."""
        return not self._ended.is_set() and not self._link.lost

    def _fields(self, what: str, **more: Any) -> dict[str, Any]:
        return {
            "op": "session.process",
            "session": self._session,
            "process": self.number,
            "do": what,
            **more,
        }

    async def _ask(self, what: str, *blobs: bytes, **more: Any) -> None:
        await ask(self._link, self._fields(what, **more), *blobs)

    async def wait(self) -> ExecutionResult:
        """Wait for the end; return what came of it; as `Process.wait`."""
        if self._result is None:
            try:
                found = await ask(self._link, self._fields("wait"))
            except CellLostError:
                self._ended.set()
                raise
            with closing_link_on_error(self._link):
                self._result = read_result(found)
            self._ended.set()
        self._caller.raise_failure()
        return self._result

    async def ended(self) -> None:
        """Return when it has ended, or its cell is gone; as `Process.ended`."""
        await self._ended.wait()

    async def follow(self, early: list[WireMessage], stack: AsyncExitStack) -> None:
        """Answer its calls, and note its end.

        Args:
            early: Calls that came before the report of its start.
            stack: Leaves the exchange of its start, which the node ends with it.
        """
        async with stack:
            try:
                with self._caller.patience:
                    async with self._caller.answering():
                        await self._caller.last_message(early)
            except ToolcellError:
                # Whoever waits for it gets the error.
                pass
            finally:
                self._ended.set()

    async def output(
        self,
    ) -> AsyncGenerator[tuple[Literal["stdout", "stderr"], bytes], None]:
        """Yield output as it comes, until the end; as `Process.output`."""
        async with self._link.exchange(self._fields("output")) as exchange:
            while True:
                message = await next_message(exchange)
                if exchange.ended:
                    self._ended.set()
                    return
                with closing_link_on_error(self._link):
                    piece = stream_of(message.fields["output"]), message.blobs[0]
                yield piece
                await exchange.send({"next": True})

    async def write(self, data: bytes) -> None:
        """Write to its standard input; as `Process.write`."""
        if not isinstance(data, bytes):
            raise InvalidInputError("input must be bytes", hint="encode the text")
        await self._ask("write", data)

    async def close_stdin(self) -> None:
        """End its standard input; a terminal gets Ctrl-D."""
        await self._ask("close_stdin")

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of its terminal; as `Process.resize`."""
        await self._ask("resize", rows=rows, cols=cols)

    async def signal(self, number: int | signal.Signals) -> None:
        """Send it a signal; as `Process.signal`."""
        await self._ask("signal", number=int(number))

    async def kill(self) -> None:
        """Kill it, with all processes of its terminal session."""
        await self._ask("kill")
