"""Bodies of requests that wait in memory for a person: what is approved is sent."""

from __future__ import annotations

import codecs
import hashlib
import re
import threading
from collections import Counter
from typing import ClassVar

from pydantic import JsonValue

from toolcell.core import GuardDeniedError

MAX_BODY_BYTES = 16 * 2**20
"""Bytes of one body. A request with a larger one is refused."""

MAX_HELD_BYTES = 64 * 2**20
"""Bytes of all bodies that this process holds, of which an agent has at most half of
what the others leave. One that does not fit is refused, and may come again."""

SHOWN_BYTES = 4_096
"""Bytes of a body that people see."""

MAX_RUN_BYTES = MAX_HELD_BYTES // 4
"""Bytes of the bodies that one run, or one command, holds. When it is reached its next
one is refused, and may come again."""

MAX_READ_SECONDS = 60.0
"""Seconds in which a body has to come. When it is reached the request is refused."""

RETRY_SECONDS = 30
"""Seconds after which one that did not fit may come again."""

# Tiny pieces would take more room than is counted.
_PIECE_BYTES = 65_536
_NOT_ASCII = re.compile(rb"[^\t\r\n -~]")


class Share:
    """The room in which one run, or one command, holds bodies.

    Args:
        agent_id: Whose it is; None: of no agent, which counts as one.
    """

    def __init__(self, agent_id: str | None = None) -> None:
        self.agent_id = agent_id
        self.held = 0
        """Bytes that it holds."""


class HeldBody:
    """One body, in pieces of some size.

    Args:
        share: The room of its run.
    """

    _lock: ClassVar = threading.Lock()
    _held: ClassVar = Counter[str | None]()

    def __init__(self, share: Share) -> None:
        self._share = share
        self.pieces: list[bytearray] = []
        self._digest = hashlib.sha256()
        self._first = b""
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            GuardDeniedError: It does not fit.
        """
        self.check_size(self._size + len(piece))
        held, share = self._held, self._share
        with self._lock:
            if share.held + len(piece) > MAX_RUN_BYTES:
                raise _no_room(f"{MAX_RUN_BYTES:,} bytes of its run")
            own = held[share.agent_id]
            most = (MAX_HELD_BYTES - held.total() + own) // 2
            if own + len(piece) > most:
                raise _no_room(f"{most:,} bytes of its agent")
            held[share.agent_id] += len(piece)
            share.held += len(piece)
        if self.pieces and len(self.pieces[-1]) < _PIECE_BYTES:
            self.pieces[-1] += piece
        else:
            self.pieces.append(bytearray(piece))
        self._size += len(piece)
        self._digest.update(piece)
        self._first += piece[: max(SHOWN_BYTES - len(self._first), 0)]

    @staticmethod
    def check_size(size: int) -> None:
        """Raise GuardDeniedError if a body of so many bytes is too large."""
        if size > MAX_BODY_BYTES:
            raise GuardDeniedError(
                f"a person has to approve it, and its body has more than "
                f"{MAX_BODY_BYTES:,} bytes, which is the most that is held for that",
                hint="send less at once",
                details={"reason": "approval_unavailable"},
            )

    def close(self) -> None:
        """Let its pieces go."""
        with self._lock:
            size = sum(map(len, self.pieces))
            # It drops an agent that holds nothing.
            HeldBody._held -= Counter({self._share.agent_id: size})
            self._share.held -= size
            self.pieces = []

    @property
    def facts(self) -> dict[str, JsonValue]:
        """The arguments of its act that say what it is."""
        return {"content_length": self._size, "body_sha256": self._digest.hexdigest()}

    @property
    def shown(self) -> str:
        """Its beginning, for the person who is asked."""
        first, text, way = self._first, _readable(self._first), "as text"
        if text is None:
            # Secrets are searched for in it: a letter before one would hide it.
            text = _NOT_ASCII.sub(b".", first).decode()
            way = "in ASCII, others as dots"
        length = f"{self._size:,} bytes, of which {len(first):,} are shown {way}"
        return f"Body, as the program wrote it: {length}:\n{text}"


def _readable(data: bytes) -> str | None:
    """Return the text of bytes that end anywhere; None if they are not plain text."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return None
    plain = all(each.isprintable() or each in "\t\r\n" for each in text)
    return text if plain else None


def _no_room(room: str) -> GuardDeniedError:
    return GuardDeniedError(
        f"a person has to approve it, and the {room} in which bodies wait for that "
        "are full",
        hint="send it again later",
        details={"reason": "approval_unavailable", "retry_after": RETRY_SECONDS},
    )
