"""Archives of sessions: they outlive the cell, and hostile ones are refused."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import Limits, Sandbox, SandboxManager, SandboxSession

from ...conftest import SUBPROCESS, BackendRow

pytestmark = pytest.mark.anyio

MAKE = """
import os
os.makedirs('deep/empty')
os.makedirs('deep/run')
open('deep/run/it', 'w').write('#!/bin/sh\\necho ran\\n')
os.chmod('deep/run/it', 0o700)
open('text é', 'wb').write(bytes(range(256)) * 5000)
open('nothing', 'w')
open('deep/' + 'n' * 200, 'w').write('long')
os.symlink('run/it', 'deep/link')
os.symlink('../text é', 'deep/up')
os.symlink('nowhere', 'dangling')
os.symlink('/etc/passwd', 'absolute')
os.symlink('../../etc/passwd', 'deep/out')
os.mkfifo('pipe')
"""
LOOK = """
import hashlib, os, subprocess
found = {}
for place, folders, files in os.walk('.'):
    for name in folders + files:
        path = os.path.join(place, name)
        if os.path.islink(path): found[path] = '-> ' + os.readlink(path)
        elif os.path.isdir(path): found[path] = 'folder'
        else: found[path] = hashlib.sha256(open(path, 'rb').read()).hexdigest()
[found, subprocess.check_output(['deep/link'], text=True)]
"""


async def test_a_work_dir_outlives_its_manager(
    backend: BackendRow, tmp_path: Path
) -> None:
    archive = tmp_path / "saved.tar"
    async with SandboxManager(backend.config()) as manager, manager.session() as first:
        await first.run(MAKE)
        omitted = await first.save(archive)
        await first.run("for each in ('pipe', 'absolute', 'deep/out'): os.remove(each)")
        before = await first.run(LOOK)
    async with SandboxManager(backend.config()) as manager, manager.session() as second:
        loaded = await second.load(archive)
        after = await second.run(LOOK)

    assert sorted(omitted) == ["absolute", "deep/out", "pipe"]
    assert before.value == after.value != None  # noqa: E711 - all three are told apart
    assert loaded == 10
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    with tarfile.open(archive) as tar:
        assert "deep/run/it" in tar.getnames()


async def test_an_archive_is_of_one_moment(
    session: SandboxSession, tmp_path: Path
) -> None:
    code = """
n = 0
while True:
    n += 1
    for name in 'ab':
        open(name, 'w').write('%09d' % n)
    print(n, flush=True)
"""
    writer = await session.exec(["python3", "-c", code], background=True)
    await anext(writer.output())
    for number in range(5):
        archive = tmp_path / str(number)
        await session.save(archive)
        with tarfile.open(archive) as tar:
            values = [int(tar.extractfile(each).read() or 0) for each in tar]  # type: ignore[union-attr]
        # The writer was stopped: at most one of the two was being written.
        assert abs(values[0] - values[1]) <= 1 or 0 in values
    assert writer.running
    await writer.kill()


async def test_a_paused_session_can_be_saved(
    session: SandboxSession, tmp_path: Path
) -> None:
    await session.write_file("a", b"1")
    await session.pause()
    await session.save(tmp_path / "saved")
    assert session.paused
    await session.resume()
    assert (await session.run("1 + 1")).value == 2


async def test_a_fork_saves_its_own_files(
    session: SandboxSession, tmp_path: Path
) -> None:
    await session.run("open('a', 'w').write('origin')")
    branch = await session.fork()
    await branch.run("open('a', 'w').write('fork')")
    await branch.save(tmp_path / "saved")
    await session.load(tmp_path / "saved")
    assert await session.read_file("a") == b"fork"


async def test_what_cannot_be_saved_leaves_nothing(
    session: SandboxSession, tmp_path: Path
) -> None:
    await session.write_file("a", bytes(2000))
    archive = tmp_path / "saved"
    with pytest.raises(InvalidInputError, match="2000 bytes, the limit is 1999"):
        await session.save(archive, max_bytes=1999)
    assert not archive.exists()
    archive.write_bytes(b"mine")
    with pytest.raises(InvalidInputError) as caught:
        await session.save(archive)
    assert caught.value.details["reason"] == "exists"
    assert archive.read_bytes() == b"mine"
    with pytest.raises(InvalidInputError):
        await session.save(tmp_path / "no folder" / "saved")
    assert (await session.run("1 + 1")).value == 2


def archive_of(*members: tarfile.TarInfo, data: bytes = b"evil") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            if member.isreg() and not member.size:
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data) if member.isreg() else None)
    return file.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, to
    return found


def sparse() -> tarfile.TarInfo:
    found = entry("bomb")
    found.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "bomb",
        "GNU.sparse.realsize": str(1 << 40),
    }
    return found


def large_header() -> bytes:
    found = entry("a")
    found.pax_headers = {"comment": "x" * (4 << 20)}
    return archive_of(found)


def negative() -> bytes:
    """An entry of a negative size, which leads a reader backwards for ever."""
    raw = bytearray(archive_of(entry("a"), entry("b")))
    raw[124:136] = b"\xff" * 10 + b"\xfc\x00"
    raw[148:156] = b" " * 8
    raw[148:155] = b"%06o\0" % sum(raw[:512])
    return bytes(raw)


def nested() -> bytes:
    """Ten thousand extended headers, each of which describes the next one."""
    header = entry("x", tarfile.XHDTYPE)
    return header.tobuf() * 10_000 + archive_of(entry("a"))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "absolute": lambda: archive_of(entry("/etc/x")),
    "upwards": lambda: archive_of(entry("../x")),
    "upwards inside": lambda: archive_of(entry("a/../../x")),
    "no name": lambda: archive_of(entry(".")),
    "NUL": lambda: archive_of(entry("a\0b" * 60)),
    "too deep": lambda: archive_of(entry("a/" * 70 + "b")),
    "long name": lambda: archive_of(entry("n" * 300)),
    "absolute link": lambda: archive_of(entry("a", tarfile.SYMTYPE, "/etc")),
    "link upwards": lambda: archive_of(entry("a/b", tarfile.SYMTYPE, "../../x")),
    "link round": lambda: archive_of(entry("a", tarfile.SYMTYPE, "b/../../x")),
    "link to nothing": lambda: archive_of(entry("a", tarfile.SYMTYPE, "")),
    "hard link": lambda: archive_of(entry("b"), entry("a", tarfile.LNKTYPE, "b")),
    "device": lambda: archive_of(entry("a", tarfile.CHRTYPE)),
    "block device": lambda: archive_of(entry("a", tarfile.BLKTYPE)),
    "pipe": lambda: archive_of(entry("a", tarfile.FIFOTYPE)),
    "unknown": lambda: archive_of(entry("a", b"Z")),
    "twice": lambda: archive_of(entry("a"), entry("./a")),
    "sparse": lambda: archive_of(sparse()),
    "compressed": lambda: __import__("gzip").compress(archive_of(entry("a"))),
    "cut short": lambda: archive_of(entry("a"), data=bytes(5000))[:3000],
    "not one": lambda: b"#!/bin/sh\n" * 100,
    "empty": lambda: b"",
    "large header": large_header,
    "negative size": negative,
    "nested headers": nested,
    "many entries": lambda: archive_of(*(entry(f"{n}") for n in range(10_001))),
}


@pytest.mark.promise("E-28", "E-49")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_archives_are_refused_as_a_whole(
    kind: str, tmp_path: Path
) -> None:
    archive = tmp_path / "hostile"
    archive.write_bytes(HOSTILE[kind]())
    async with (
        SandboxManager(SUBPROCESS.config()) as manager,
        manager.session() as session,
    ):
        await session.write_file("kept", b"as it was")
        with pytest.raises(InvalidInputError), anyio.fail_after(60):
            await session.load(archive)
        assert [file.path for file in await session.list_files()] == ["kept"]


@pytest.mark.promise("E-28")
async def test_an_entry_never_goes_through_a_link(
    session: SandboxSession, tmp_path: Path
) -> None:
    """Neither one of the archive nor one that a program put there."""
    archive = tmp_path / "hostile"
    # Some cells see which names the machine's own /tmp has.
    name = uuid.uuid4().hex
    members = (
        entry("a", tarfile.SYMTYPE, "b"),
        entry(f"a/{name}"),
        entry("b", tarfile.DIRTYPE),
    )
    archive.write_bytes(archive_of(*members))
    with pytest.raises(InvalidInputError):
        await session.load(archive)
    await session.run(
        "import os, shutil; shutil.rmtree('a', True); os.symlink('/tmp', 'a')"
    )
    archive.write_bytes(archive_of(entry(f"a/{name}")))
    with pytest.raises(InvalidInputError):
        await session.load(archive)
    assert (await session.run(f"os.path.exists('/tmp/{name}')")).value is False


@pytest.mark.promise("E-48")
async def test_an_archive_larger_than_the_cell(
    backend: BackendRow, tmp_path: Path
) -> None:
    archive = tmp_path / "large"
    archive.write_bytes(archive_of(entry("a"), data=bytes(20 << 20)))
    config = backend.config(limits=Limits(disk_mib=8))
    async with SandboxManager(config) as manager, manager.session() as session:
        with pytest.raises(InvalidInputError) as caught:
            await session.load(archive, max_bytes=10 << 20)
        assert caught.value.details["reason"] == "too_large"
        with pytest.raises(InvalidInputError) as caught:
            await session.load(archive)
        assert caught.value.details["reason"] == "no_space"
        assert (await session.run("1 + 1")).value == 2


async def test_a_source_that_is_no_file(
    session: SandboxSession, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (
        tmp_path,
        tmp_path / "missing",
        tmp_path / "pipe",
        Path("/dev/zero"),
    ):
        with pytest.raises(InvalidInputError), anyio.fail_after(60):
            await session.load(source)


async def test_sessions_of_any_sandbox_are_paused_saved_and_loaded(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    async with sandbox.session() as session:
        await session.write_file("d/a", b"kept")
        await session.run("import os\nos.mkfifo('pipe')")
        await session.pause()
        assert session.paused
        with pytest.raises(InvalidInputError):
            await session.exec(["true"])
        assert await session.save(tmp_path / "saved") == ("pipe",)
        await session.resume()
        assert not session.paused
        with pytest.raises(InvalidInputError):
            await session.save(tmp_path / "saved")
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o600
    async with sandbox.session() as session:
        assert await session.load(tmp_path / "saved") == 2
        assert await session.read_file("d/a") == b"kept"
        with pytest.raises(InvalidInputError):
            await session.load(tmp_path / "missing")
        with pytest.raises(InvalidInputError):
            await session.connect(1)
