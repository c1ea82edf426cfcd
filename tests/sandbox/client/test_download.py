"""What a download writes: what the cell holds, as a whole, and no more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.from_thread
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import SandboxManager, Session

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


@pytest.fixture(scope="module")
async def session(sandbox: SandboxManager) -> AsyncIterator[Session]:
    async with sandbox.session() as session:
        yield session


async def made(session: Session, folder: str, code: str) -> None:
    """Run a program in an empty folder."""
    begin = (
        "import os\nos.chdir(os.environ['HOME'])\n"
        f"os.mkdir({folder!r})\nos.chdir({folder!r})\n"
    )
    result = await session.run(begin + code)
    assert result.ok, result.stderr


def taken(folder: Path) -> int:
    """Return the bytes that files take on disk."""
    found = {path.lstat().st_ino: path.lstat() for path in folder.rglob("*")}
    return sum(each.st_blocks * 512 for each in found.values())


@pytest.mark.promise("A12", "E-52", "QF5")
async def test_holes_in_files_stay_holes(session: Session, tmp_path: Path) -> None:
    code = f"""
with open("sparse", "wb") as file:
    file.write(b"begin")
    file.seek(100 * {MIB})
    file.write(b"middle")
    file.truncate(200 * {MIB})
"""
    await made(session, "holes", code)
    await session.download(tmp_path / "out", "holes")
    data = (tmp_path / "out" / "holes" / "sparse").read_bytes()

    assert len(data) == 200 * MIB
    assert data.strip(b"\0")[:5] == b"begin"
    assert data[100 * MIB :][:6] == b"middle"
    assert await session.read_file("holes/sparse") == data
    assert taken(tmp_path / "out") < MIB


@pytest.mark.promise("A12", "E-52")
async def test_names_of_one_file_are_written_once(
    session: Session, tmp_path: Path
) -> None:
    code = f"""
with open("first", "wb") as file:
    file.write(b"x" * {MIB})
for number in range(50):
    os.link("first", f"link-{{number}}")
"""
    await made(session, "links", code)
    count = await session.download(tmp_path / "out", "links", max_bytes=2 * MIB)
    files = list((tmp_path / "out" / "links").iterdir())

    assert count == len(files) == 51
    assert {file.stat().st_size for file in files} == {MIB}
    assert len({file.stat().st_ino for file in files}) == 1


@pytest.mark.promise("A12")
async def test_a_download_has_a_limit_and_leaves_nothing_past_it(
    session: Session, tmp_path: Path
) -> None:
    code = f"""
for number in range(5):
    with open(f"file-{{number}}", "wb") as file:
        file.truncate(100 * {MIB})
"""
    await made(session, "large", code)
    target = tmp_path / "out"
    with pytest.raises(InvalidInputError) as caught:
        await session.download(target, "large", max_bytes=250 * MIB)

    assert caught.value.details["reason"] == "too_large"
    assert f"file-2 has {100 * MIB} bytes, {200 * MIB} are written" in str(caught.value)
    assert not target.exists()


async def test_a_download_that_is_cancelled_leaves_nothing(
    sandbox: SandboxManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    written = anyio.Event()

    def put(fd: int, data: bytes, offset: int) -> None:
        os.pwrite(fd, data, offset)
        anyio.from_thread.run_sync(written.set)

    async with sandbox.session() as session:
        await made(session, "some", "open('a', 'w').write('x' * 10_000_000)")
        monkeypatch.setattr("toolcell.sandbox.client.download._put", put)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.download, target, "some")
            await written.wait()
            tasks.cancel_scope.cancel()
        assert not target.exists()
        assert (await session.run("6 * 7")).value == 42
