"""Messages on a link: their order, and how much of a file is under way."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from toolcell.cluster.wire import outbox as outbox_module
from toolcell.cluster.wire.file_chunks import MAX_AHEAD, PART_BYTES, send_file
from toolcell.cluster.wire.folders import unpack_folder
from toolcell.cluster.wire.link import Exchange, Kind, Link
from toolcell.cluster.wire.message import WireMessage
from toolcell.cluster.wire.outbox import MORE, PIECE_BYTES, PREFIX, Outbox
from toolcell.cluster.wire.tls import TLSSocket
from toolcell.core import InvalidInputError

pytestmark = pytest.mark.anyio
DATA = 2


class Taken:
    """A connection that takes all bytes, and ends the work after so many."""

    def __init__(self, size: int, done: anyio.CancelScope) -> None:
        self.bytes = b""
        self._size = size
        self._done = done

    def write(self, data: memoryview) -> int:
        self.bytes += data
        if len(self.bytes) >= self._size:
            self._done.cancel()
        return len(data)

    def frames(self) -> list[tuple[int, int, int]]:
        found, start = [], 0
        while start < len(self.bytes):
            code, number, size = PREFIX.unpack_from(self.bytes, start)
            found.append((code, number, size))
            start += PREFIX.size + size
        return found


async def test_a_message_overtakes_none_of_its_exchange() -> None:
    large, small = bytes(8 * PIECE_BYTES), b"last"
    with anyio.CancelScope() as scope:
        taken = Taken(len(large) + 2 * len(small) + 10 * PREFIX.size, scope)
        outbox = Outbox(cast(TLSSocket, taken), 10.0, lambda why: pytest.fail(why))
        outbox.put(DATA, 1, large)
        outbox.put(DATA, 1, small)
        outbox.put(DATA, 2, small)
        await outbox.run()
    frames = taken.frames()

    assert [frame for frame in frames if frame[1] == 1] == [
        *[(DATA | MORE, 1, PIECE_BYTES)] * 7,
        (DATA, 1, PIECE_BYTES),
        (DATA, 1, len(small)),
    ]
    # Another exchange does not wait for the large one.
    assert frames.index((DATA, 2, len(small))) < len(frames) - 1


async def test_a_file_waits_for_who_writes_it(tmp_path: Path) -> None:
    data = bytes(range(256)) * (PART_BYTES // 256) * (MAX_AHEAD + 3)
    source = tmp_path / "file"
    source.write_bytes(data)
    sent: list[dict[str, Any]] = []
    when_heard = []

    class Sent:
        async def send(self, fields: dict[str, Any], *parts: bytes) -> None:
            sent.append(fields)

    async def hear() -> WireMessage:
        when_heard.append(len(sent))
        return WireMessage({})

    await send_file(cast(Exchange, Sent()), hear, source)

    assert when_heard[:4] == [MAX_AHEAD, MAX_AHEAD + 1, MAX_AHEAD + 2, MAX_AHEAD + 4]
    assert len(when_heard) == MAX_AHEAD + 3
    whole = {"total": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert sent[-1] == whole


class Full:
    """A connection whose other end reads nothing."""

    def write(self, data: memoryview) -> int:
        return 0


def test_signs_of_life_are_not_piled_up() -> None:
    link = Link(cast(TLSSocket, Full()), name="driver", lost_seconds=10.0)
    ping = PREFIX.pack(Kind.PING, 0, 0)
    link._take_all(cast(Any, None), ping * 10_000)

    assert len(link._outbox._small) + len(link._outbox._unsent) <= 2 * len(ping)


def test_whoever_reads_too_slowly_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "MAX_BEHIND_BYTES", 10_000)
    given_up: list[str] = []
    outbox = Outbox(cast(TLSSocket, Full()), 10.0, given_up.append)
    for _ in range(20):
        outbox.put(DATA, 1, bytes(400))
    assert given_up == []
    for _ in range(20):
        outbox.put(DATA, 1, bytes(400))
    assert given_up[0] == "it reads too slowly"


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.FIFOTYPE, b"S", tarfile.CHRTYPE]
)
def test_an_archive_of_no_folder_is_refused(tmp_path: Path, kind: bytes) -> None:
    odd = tarfile.TarInfo("odd")
    odd.type, odd.linkname = kind, "other"
    plain = tarfile.TarInfo("plain")
    with (tmp_path / "archive").open("wb") as file:
        file.write(plain.tobuf() + odd.tobuf() + bytes(2 * tarfile.BLOCKSIZE))
    with pytest.raises(InvalidInputError):
        unpack_folder(tmp_path / "archive", tmp_path / "folder")
    assert not (tmp_path / "folder" / "odd").exists()
