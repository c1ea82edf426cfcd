"""Watched folders of a session's cell."""

from __future__ import annotations

import anyio

from toolcell.core import CellLostError, InvalidInputError

from ..cell.wire.contract import CHANGES_AT_ONCE
from ..cell.wire.frames import Frame, strict_json
from ..client.file_errors import file_error, known
from ..client.header_numbers import whole
from .interface import FileChange, SandboxWatch
from .side_channel import SideChannel


class FileWatch(SandboxWatch):
    """A folder of a session's cell whose changes are reported.

    Args:
        number: Identifies it on the channel.
        table: The watches of its cell.
    """

    def __init__(self, number: int, table: WatchTable) -> None:
        super().__init__()
        self._number = number
        self._table = table
        self._is_open = False
        self._news = anyio.Event()

    @property
    def is_busy(self) -> bool:
        """True while the cell owes an answer."""
        owes = not self._is_open or self._answered < self._asked
        return owes and self._failure is None

    async def _send_question(self, number: int, *, at_once: bool) -> None:
        question = {"question": number, "at_once": at_once}
        await self._table.send(self._number, "next", **question)

    async def _wait_for_answer(self) -> None:
        while self._answered < self._asked:
            await self._news.wait()
            self._require_open()

    async def wait_open(self) -> None:
        """Wait until the cell has looked for the first time. Raises as `changes`."""
        while not self._is_open:
            await self._news.wait()
            self._require_open()

    def take(self, frame: Frame) -> None:
        """Take what the cell says.

        Raises:
            KeyError, TypeError, ValueError: It makes no sense.
        """
        header = frame.header
        if header["type"] == "watch_changes":
            answer = strict_json(frame.payload)
            question = whole(header["question"], self._asked)
            if len(answer) > CHANGES_AT_ONCE or question <= self._answered:
                raise ValueError("more than was asked for")
            self._came.extend(
                FileChange(kind=kind, path=path, new_path=new_path, entry=entry)
                for kind, path, new_path, entry in answer
            )
            self._answered = question
            self._has_more = header["more"] is True
        elif header["type"] == "watch_opened":
            self._is_open = True
        self._wake()

    def fail(self, failure: InvalidInputError | CellLostError) -> None:
        """End it: whoever waits gets this error, also later."""
        self._failure = failure
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _end(self) -> None:
        self._wake()
        await self._table.close(self._number)


class WatchTable:
    """The watched folders of one cell.

    Args:
        frames: Leads to the cell.
    """

    def __init__(self, frames: SideChannel) -> None:
        self._frames = frames
        self._made = 0
        self._watches: dict[int, FileWatch] = {}
        self._closing: set[int] = set()
        frames.add("watch", self)

    @property
    def is_busy(self) -> bool:
        """True while the cell owes an answer."""
        watches = self._watches.values()
        return bool(self._closing) or any(watch.is_busy for watch in watches)

    async def open(self, path: str, branch: str, *, recursive: bool) -> FileWatch:
        """Return a watch of a folder, which was looked at once.

        Args:
            path: The folder; empty for the work dir.
            branch: The branch whose work dir relative paths start in.
            recursive: True if all that is below it counts.

        Raises:
            InvalidInputError: There is no such folder, it holds too much, or too many
                are watched.
            CellLostError: The cell is gone.
        """
        self._made += 1
        number = self._made
        watch = self._watches[number] = FileWatch(number, self)
        try:
            fields = {"path": path, "branch": branch, "recursive": recursive}
            await self.send(number, "open", **fields)
            await watch.wait_open()
        except BaseException:
            await watch.aclose()
            raise
        return watch

    async def send(self, number: int, word: str, **fields: object) -> None:
        """Send a frame about a watch, and read what comes. Raises CellLostError."""
        self._frames.follow()
        await self._frames.send({"type": f"watch_{word}", "id": number, **fields})

    async def close(self, number: int) -> None:
        """End a watch, if it is open. Never raises."""
        if self._watches.pop(number, None) is None:
            return
        self._closing.add(number)
        try:
            with anyio.fail_after(1):
                await self.send(number, "close")
        except (CellLostError, TimeoutError):
            self._closing.discard(number)

    def handle_frame(self, frame: Frame) -> None:
        """Take a frame of the cell; frames of closed watches are ignored.

        Raises:
            FrameError, KeyError, TypeError, ValueError: No cell of ours sends it.
        """
        header = frame.header
        kind, number = header["type"], header["id"]
        if kind == "watch_closed":
            self._closing.discard(number)
        elif number not in self._watches:
            return
        elif kind == "watch_failed":
            why = f"the folder cannot be watched: {str(header['why'])[:200]}"
            watch = self._watches.pop(number)
            watch.fail(file_error(why, known(header["reason"])))
        else:
            self._watches[number].take(frame)

    def end_all(self, why: str) -> None:
        """End all watches: what looks for them is gone."""
        for watch in self._watches.values():
            watch.fail(CellLostError(why, hint="open a new session"))
        self._watches.clear()
        self._closing.clear()
