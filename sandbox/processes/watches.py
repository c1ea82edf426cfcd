"""Watched folders of a session's cell."""

from __future__ import annotations

from collections import deque
from typing import Literal, Self

import anyio
import anyio.lowlevel
from pydantic import BaseModel, ConfigDict

from toolcell.core import CellLostError, InvalidInputError

from ..cell.wire.contract import CHANGES_AT_ONCE
from ..cell.wire.frames import Frame, strict_json
from ..client.file_errors import file_error, known
from ..client.header_numbers import whole
from .side_channel import SideChannel


class FileChange(BaseModel):
    """One thing that happened below a watched folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Literal["created", "written", "removed", "renamed", "chmod"]
    """A new file that holds bytes already is `created`, then `written`. The contents of
    a folder that is `renamed` are not named again."""

    path: str
    """Its path below the watched folder; the old one if it was renamed."""

    new_path: str = ""
    """The path of what was renamed; else empty."""

    entry: Literal["file", "folder", "link", "other"]
    """The kind of the file."""


class FileWatch:
    """A folder of a session's cell whose changes are reported.

    `async for change in watch` waits for them; `changes()` looks now. The cell looks
    only while somebody waits, at most ten times a second and for a tenth of the time.
    So changes between two looks are reported as one, and what was made and removed
    between them is not. It ends with its session; close it to end it before.

    Args:
        number: Identifies it on the channel.
        table: The watches of its cell.
    """

    def __init__(self, number: int, table: WatchTable) -> None:
        self._number = number
        self._table = table
        self._came: deque[FileChange] = deque()
        self._questions = 0
        self._answered = 0
        self._has_more = False
        self._is_open = False
        self._is_closed = False
        self._failure: InvalidInputError | CellLostError | None = None
        self._news = anyio.Event()
        self._reading = anyio.ResourceGuard("watching")

    @property
    def is_busy(self) -> bool:
        """True while the cell owes an answer."""
        owes = not self._is_open or self._answered < self._questions
        return owes and self._failure is None

    async def changes(self) -> tuple[FileChange, ...]:
        """Look now, and return all changes that were not taken yet; none is empty.

        In a pause of the session it waits until `resume`.

        Raises:
            InvalidInputError: The folder holds more than 10,000 entries, or paths of
                more than 2 MiB: `details["reason"]` is `too_many`. The watch has ended.
            CellLostError: The cell is gone.
            anyio.ClosedResourceError: It was closed.
            anyio.BusyResourceError: Another task waits for changes.
        """
        with self._reading:
            await self._ask(at_once=True)
            while self._has_more:
                await self._ask(at_once=False)
            found = tuple(self._came)
            self._came.clear()
            return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange:
        """Return the next change, and wait for it. Raises as `changes`."""
        if self._is_closed:
            raise StopAsyncIteration
        await anyio.lowlevel.checkpoint()
        with self._reading:
            while not self._came:
                await self._ask(at_once=False)
            return self._came.popleft()

    async def _ask(self, *, at_once: bool) -> None:
        """Wait for an answer of the cell; an earlier question may still have none."""
        self._require_open()
        if at_once or self._answered == self._questions:
            self._questions += 1
            question = {"question": self._questions, "at_once": at_once}
            await self._table.send(self._number, "next", **question)
        wanted = self._questions
        while self._answered < wanted:
            await self._news.wait()
            self._require_open()

    def _require_open(self) -> None:
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self._failure is not None:
            raise self._failure

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
            question = whole(header["question"], self._questions)
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

    async def aclose(self) -> None:
        """End the watch; who waits for changes gets `anyio.ClosedResourceError`."""
        if not self._is_closed:
            self._is_closed = True
            self._wake()
            with anyio.CancelScope(shield=True):
                await self._table.close(self._number)
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


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
        return bool(self._closing) or any(each.is_busy for each in watches)

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
