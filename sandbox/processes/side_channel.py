"""Frames of commands, ports and files, which pass beside the runs of a session."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from toolcell.core import CellLostError

from ..cell.wire.frames import Frame, encode_header, frame_prefix
from ..client.channel import Channel

if TYPE_CHECKING:
    from ..client.types import Spawn


_OF_THE_SUPERVISOR = ("file", "usage")
_MAX_REASON = 1000


class FrameTable(Protocol):
    """Takes the frames of one family."""

    @property
    def is_busy(self) -> bool:
        """True while frames of this family may come."""
        ...

    def handle_frame(self, frame: Frame) -> None:
        """Take a frame.

        Raises:
            KeyError, OverflowError, TypeError, ValueError: No cell of ours sends it.
        """

    def end_all(self, why: str, /) -> None:
        """End everything: the cell, or its process server, is gone."""


class SideChannel:
    """Sends frames beside runs, and hands on what the cell sends.

    While a table is busy one task reads the cell's channel, so its frames arrive
    whether or not a program runs in the cell.

    Args:
        channel: Leads to the cell, whose supervisor has said that it is ready.
        spawn: Starts tasks that may live as long as the manager.
        on_lost: Called when the channel turns out to be broken.
    """

    def __init__(
        self, channel: Channel, spawn: Spawn, on_lost: Callable[[], None]
    ) -> None:
        self._channel = channel
        channel.on_frame_beside = self._take
        self._on_lost = on_lost
        self.spawn = spawn
        self._tables: dict[str, FrameTable] = {}
        self._follows = False
        self.loss: CellLostError | None = None
        """The reason why the channel broke; None unless it did."""

        self.used = time.monotonic()
        """The time of the last frame, either way, by `time.monotonic`. To measure a
        cell is no use of it."""

    def add(self, family: str, table: FrameTable) -> None:
        """Hand frames whose types begin with `family` to a table."""
        self._tables[family] = table

    @property
    def is_busy(self) -> bool:
        """True while frames may come."""
        return any(table.is_busy for table in self._tables.values())

    async def send(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        """Send a frame to the cell. Raises CellLostError."""
        self._note_use(header["type"])
        prefix = frame_prefix(encode_header(header), len(payload))
        try:
            await self._channel.send(prefix, payload)
        except CellLostError as error:
            self._note_loss(error)
            raise

    def follow(self) -> None:
        """Read the channel for as long as a table is busy."""
        if not self._follows:
            self._follows = True
            self.spawn(self._read)

    async def read_more(self) -> None:
        """Take in what has come, or wait for more. Raises CellLostError."""
        await self._channel.read_more()

    async def _read(self) -> None:
        try:
            while self.is_busy:
                await self._channel.read_more()
        except CellLostError as error:
            self._note_loss(error)
            self._end_all("the cell is gone")
        finally:
            self._follows = False

    def _note_loss(self, error: CellLostError) -> None:
        self.loss = self.loss or error
        self._on_lost()

    def _note_use(self, kind: str) -> None:
        if not kind.startswith("usage"):
            self.used = time.monotonic()

    def _take(self, frame: Frame) -> None:
        kind = frame.header["type"]
        self._note_use(kind)
        try:
            if kind == "exec_lost":
                # The supervisor answers as before.
                why = str(frame.header["why"])[:_MAX_REASON]
                self._end_all(f"its process server is gone: {why}", _OF_THE_SUPERVISOR)
            else:
                self._tables[kind.partition("_")[0]].handle_frame(frame)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise CellLostError(f"the cell sent a bad frame: {error}") from None

    def _end_all(self, why: str, but: tuple[str, ...] = ()) -> None:
        for family, table in self._tables.items():
            if family not in but:
                table.end_all(why)
