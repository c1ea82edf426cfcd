"""The watched folders of a cell, for the host.

Theory of operation. The host asks for the next changes; only then is the folder looked
at, until there is a change or the host wants an answer at once. So a host that does not
ask costs nothing, and nothing is queued but the changes of one look. Looks are made in
short slices between what else the process server serves, and pause ten times as long as
they took.
"""

from __future__ import annotations

import json
import os
import time

from ..wire.contract import CHANGES_AT_ONCE, reason_of
from ..wire.frames import encode
from ..workdir.files import place_of
from ..workdir.path_steps import FileProblem, steps_of
from ..workdir.watch import WatchedFolder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..workdir.watch import Change

MAX_WATCHES = 16
"""Watched folders of one cell at once. When it is reached the next one is refused."""

_SECONDS_BETWEEN = 0.1
_TIMES_LOOK = 10
_SLICE_SECONDS = 0.005


class _Watch:
    """One watched folder.

    Args:
        watched: It, not looked at yet.
    """

    def __init__(self, watched: WatchedFolder) -> None:
        self.watched = watched
        self.is_open = False
        self.pending: list[Change] = []
        # The host's last question, while it has no answer.
        self.question: int | None = None
        self.at_once = False
        self.due = 0.0

    @property
    def is_wanted(self) -> bool:
        """True if it is to be looked at when it is due."""
        return not self.is_open or self.question is not None


class Watches:
    """Looks at folders for the host, each known by the number that the host gave it.

    Args:
        send: Sends a frame towards the host.
        uid: The user to look as; None is this process's own.
    """

    def __init__(self, send: Callable[[bytes], None], uid: int | None) -> None:
        self._send = send
        self._uid = uid
        self._watches: dict[int, _Watch] = {}

    def _say(self, word: str, number: int, data: bytes = b"", **fields: object) -> None:
        self._send(encode({"type": f"watch_{word}", "id": number, **fields}, data))

    def handle_frame(self, header: dict[str, Any]) -> None:
        """Take a frame of the host; those of watches that have ended are ignored."""
        number, kind = header["id"], header["type"]
        if kind == "watch_open":
            self._open(number, header)
        elif kind == "watch_close":
            self._watches.pop(number, None)
            self._say("closed", number)
        elif number in self._watches:
            watch = self._watches[number]
            watch.question, watch.at_once = header["question"], header["at_once"]
            if watch.at_once:
                watch.due = 0.0
            if watch.pending:
                self._answer(number, watch)

    def _open(self, number: int, header: dict[str, Any]) -> None:
        try:
            if len(self._watches) >= MAX_WATCHES:
                why = f"{MAX_WATCHES} folders are watched already"
                raise FileProblem(why, "too_many")
            folder, path = place_of(header["path"], header["folder"])
            parts = steps_of(path) if path else []
        except FileProblem as problem:
            self._say("failed", number, why=str(problem), reason=problem.reason)
            return
        watched = WatchedFolder(folder, parts, header["recursive"], self._uid)
        self._watches[number] = _Watch(watched)

    def seconds_left(self) -> float | None:
        """Return the seconds until a folder is to be looked at; None if none is."""
        due = [watch.due for watch in self._watches.values() if watch.is_wanted]
        return max(min(due) - time.monotonic(), 0.0) if due else None

    def go_on(self) -> None:
        """Look at the folders whose time has come, each for a short while."""
        now = time.monotonic()
        for number, watch in list(self._watches.items()):
            if watch.is_wanted and watch.due <= now:
                self._look(number, watch)

    def _look(self, number: int, watch: _Watch) -> None:
        try:
            found = watch.watched.go_on(_SLICE_SECONDS)
        except FileProblem as problem:
            self._end(number, str(problem), problem.reason)
            return
        except OSError as error:
            self._end(number, os.strerror(error.errno or 0), reason_of(error))
            return
        if found is None:
            return
        rest = max(_SECONDS_BETWEEN, _TIMES_LOOK * watch.watched.spent)
        watch.due = time.monotonic() + rest
        if not watch.is_open:
            watch.is_open = True
            self._say("opened", number)
            return
        watch.pending = found
        if found or watch.at_once:
            self._answer(number, watch)

    def _answer(self, number: int, watch: _Watch) -> None:
        """Answer the host's question with the next changes, which may be none."""
        piece = watch.pending[:CHANGES_AT_ONCE]
        del watch.pending[:CHANGES_AT_ONCE]
        data = json.dumps(piece, ensure_ascii=False, separators=(",", ":")).encode()
        question, watch.question, watch.at_once = watch.question, None, False
        more = bool(watch.pending)
        self._say("changes", number, data, question=question, more=more)

    def _end(self, number: int, why: str, reason: str) -> None:
        del self._watches[number]
        self._say("failed", number, why=why, reason=reason)
