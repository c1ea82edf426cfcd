"""Files in and out of cells, artifacts and streams."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import tarfile
import zipfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import (
    Artifact,
    Event,
    ExecutionResult,
    Finished,
    Limits,
    SandboxManager,
    Stderr,
    Stdout,
)
from toolcell.sandbox.client import artifact_file
from toolcell.sandbox.spi import ArtifactMade, save_artifact

from ...conftest import BackendRow
from ...support.corpora import records

pytestmark = pytest.mark.anyio


def _artifact(name: str) -> Artifact:
    return Artifact(name=name, mime="text/plain", data=b"of it", size=5, sha256="")


@pytest.mark.promise("E-96", "P-19")
def test_an_artifact_is_saved_below_its_folder_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "out"

    assert save_artifact(_artifact("./a//b"), folder) == folder / "a" / "b"
    assert (folder / "a" / "b").read_bytes() == b"of it"
    for name in ("../x", "/x", "", "a/../../x", "a\0b", "x" * 300, "a/b/c"):
        with pytest.raises(InvalidInputError):
            save_artifact(_artifact(name), folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "out"]


@pytest.mark.promise("P-19")
def test_a_saved_artifact_replaces_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a/b.png", "a/b.png", "a/b.png", "c"]
    saved = [save_artifact(_artifact(name), tmp_path) for name in names]

    assert [str(path.relative_to(tmp_path)) for path in saved] == [
        "a/b.png",
        "a/b-2.png",
        "a/b-3.png",
        "c",
    ]
    assert all(path.read_bytes() == b"of it" for path in saved)
    monkeypatch.setattr(artifact_file, "MAX_SAME_NAMES", 3)
    with pytest.raises(InvalidInputError, match="exists"):
        save_artifact(_artifact("a/b.png"), tmp_path)


@pytest.mark.promise("E-96", "P-19")
def test_a_saved_artifact_follows_no_link(tmp_path: Path) -> None:
    """A program may have put links there, where its folder is a mount."""
    folder, outside = tmp_path / "out", tmp_path / "outside"
    for path in (folder, outside):
        path.mkdir()
    (folder / "away").symlink_to(outside)
    (folder / "file").symlink_to(outside / "made")

    with pytest.raises(InvalidInputError) as refused:
        save_artifact(_artifact("away/x"), folder)

    assert refused.value.details["reason"] in ("link", "not_folder")
    assert save_artifact(_artifact("file"), folder) == folder / "file-2"
    assert list(outside.iterdir()) == []


@pytest.mark.promise("P-19", "R27")
def test_a_saved_artifact_has_no_hidden_letters_in_its_name(tmp_path: Path) -> None:
    saved = save_artifact(_artifact("a\x1b[31m/b\n\u202e"), tmp_path)

    assert saved == tmp_path / r"a\u{1b}[31m" / r"b\n\u{202e}"
    assert saved.read_bytes() == b"of it"


@pytest.mark.promise("P-16")
async def test_files_go_in_and_out(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.write_file("deep/er/data.bin", bytes(range(256)))
        await session.write_file("note", "text")
        seen = await session.run(
            "import os\n[os.path.getsize('deep/er/data.bin'), open('note').read()]"
        )
        await session.run("open('made', 'w').write('by the program')")

        assert seen.value == [256, "text"]
        assert await session.read_file("made") == b"by the program"
        listed = {file.path: file.kind for file in await session.list_files()}
        assert listed["deep/er/data.bin"] == "file"
        assert listed["deep"] == "folder"
        await session.remove("deep")
        assert [file.path for file in await session.list_files()] == ["made", "note"]


@pytest.mark.promise("QF6")
async def test_many_files_go_in_one_by_one(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        for number in range(150):
            await session.write_file(f"in/{number}", "x")
        seen = await session.run("import os\nlen(os.listdir('in'))")

    assert seen.value == 150


@pytest.mark.promise("P-16")
async def test_large_files_keep_every_byte(sandbox: SandboxManager) -> None:
    data = bytes(range(256)) * 40_000
    async with sandbox.session() as session:
        await session.write_file("large", data)
        assert await session.read_file("large") == data
        with pytest.raises(InvalidInputError, match="the limit is 1000"):
            await session.read_file("large", max_bytes=1000)


@pytest.mark.promise("P-16")
async def test_files_of_one_run(sandbox: SandboxManager) -> None:
    result = await sandbox.run("open('a/b').read()", files={"a/b": "content"})

    assert result.value == "content"


@pytest.mark.promise("P-16")
async def test_folders_go_in_and_out(sandbox: SandboxManager, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f").write_text("1")
    (source / "link").symlink_to("/etc/hostname")
    async with sandbox.session() as session:
        assert await session.upload(source, "in") == 1
        assert await session.download(tmp_path / "out") == 1
        with pytest.raises(InvalidInputError, match="cannot make the folder"):
            await session.download(tmp_path / "out")

    assert (tmp_path / "out" / "in" / "sub" / "f").read_text() == "1"


@pytest.mark.promise("E-28", "E-94", "E-95", "P-18")
async def test_what_is_no_regular_file_is_never_read_or_written(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import os\nos.symlink('/etc/passwd', 'link')\nos.mkfifo('fifo')\n"
        "tmp = os.environ['TMPDIR']\nos.symlink(tmp, 'folder')\n"
        "open(f'{tmp}/secret', 'w').write('s')\n"
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('sock')"
    )
    async with sandbox.session() as session:
        assert (await session.run(code)).ok
        for path in ("link", "fifo", "sock", "folder/secret", "/dev/null"):
            with anyio.fail_after(60):
                with pytest.raises(InvalidInputError):
                    await session.read_file(path)
                with pytest.raises(InvalidInputError):
                    await session.write_file(path, "x")
        kinds = {file.path: file.kind for file in await session.list_files()}
        await session.remove("folder")
        kept = await session.run("open(f'{tmp}/secret').read()")

    assert kinds == {
        "link": "link",
        "fifo": "other",
        "folder": "link",
        "sock": "other",
    }
    assert kept.value == "s"


@pytest.mark.promise("E-96", "P-17")
@pytest.mark.corpus
async def test_no_path_leads_out(sandbox: SandboxManager) -> None:
    names = [
        record["payload"]
        for record in records("path_and_command_payloads/payloads.jsonl")
    ]
    refused = 0
    async with sandbox.session() as session:
        await session.run(
            "import os\ntmp = os.environ['TMPDIR']\n"
            "open(f'{tmp}/canary', 'w').write('sings')"
        )
        for name in names[::7]:
            try:
                await session.write_file(name, "x")
            except InvalidInputError:
                refused += 1
                continue
            assert await session.read_file(name) == b"x"
            await session.remove(name.strip("/").split("/")[0])
        outside = await session.run("[open(f'{tmp}/canary').read(), os.listdir(tmp)]")

    assert outside.value == ["sings", ["canary"]]
    assert refused > 20


@pytest.mark.promise("E-98", "P-17")
@pytest.mark.corpus
async def test_members_of_archives_that_climb_stay_inside(
    sandbox: SandboxManager, tmp_path: Path
) -> None:
    async with sandbox.session() as session:
        for record in records("archives/zip_slip.jsonl"):
            for name in member_names(base64.b64decode(record["b64"])):
                if ".." in name.split("/"):
                    with pytest.raises(InvalidInputError):
                        await session.write_file(name, "x")
                elif name.startswith("/"):
                    # The root is the cell's own.
                    with contextlib.suppress(InvalidInputError):
                        await session.write_file(name, b"climbed")
                    with contextlib.suppress(OSError):
                        assert Path(name).read_bytes() != b"climbed"
        await session.run("import os\nos.symlink('..', 'up')\nos.mkdir('d')")
        await session.download(tmp_path / "out")

    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["d"]


def member_names(data: bytes) -> list[str]:
    if zipfile.is_zipfile(io.BytesIO(data)):
        return zipfile.ZipFile(io.BytesIO(data)).namelist()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getnames()


@pytest.mark.promise("P-19")
async def test_artifacts_come_back(sandbox: SandboxManager) -> None:
    code = (
        "import os\nos.makedirs('artifacts/sub')\n"
        "open('artifacts/a.csv', 'w').write('x,y')\n"
        "open('artifacts/sub/b', 'wb').write(bytes([0, 255]))"
    )
    result = await sandbox.run(code)

    assert [
        (artifact.name, artifact.mime, artifact.data) for artifact in result.artifacts
    ] == [
        ("a.csv", "text/csv", b"x,y"),
        ("sub/b", "application/octet-stream", b"\0\xff"),
    ]
    assert result.artifacts[0].sha256.startswith("968e772c")


@pytest.mark.promise("E-93", "E-94", "E-95", "E-99", "E-101", "P-19")
async def test_hostile_artifacts_are_left_out(sandbox: SandboxManager) -> None:
    code = (
        "import os\nos.mkdir('artifacts')\nos.chdir('artifacts')\n"
        "os.symlink('/etc/passwd', 'link')\nos.mkfifo('fifo')\n"
        "open('one', 'w').write('1')\nos.link('one', 'two')\n"
        "open('lie.png', 'w').write('<html>')\n"
        "with open('large', 'wb') as f: f.truncate(20_000_000)"
    )
    with anyio.fail_after(60):
        result = await sandbox.run(code)

    assert result.ok, result.stderr
    assert [(artifact.name, artifact.mime) for artifact in result.artifacts] == [
        ("lie.png", "text/plain")
    ]
    assert any("large, one, two" in warning for warning in result.warnings)


@pytest.mark.promise("P-20")
async def test_figures_and_tables_are_kept(sandbox: SandboxManager) -> None:
    # The interface of matplotlib and pandas that matters, in one small file each.
    pyplot = (
        "class Figure:\n    def savefig(self, file, format, bbox_inches):\n"
        "        file.write(b'\\x89PNG\\r\\n\\x1a\\n')\n"
        "def get_fignums(): return [1]\n"
        "def figure(number): return Figure()\n"
        "def close(which): pass\n"
    )
    code = (
        "import matplotlib.pyplot\n"
        "class Frame:\n    def _repr_html_(self): return '<table>'\n"
        "    def __str__(self): return 'a b'\nFrame()"
    )
    files = {"matplotlib/__init__.py": "", "matplotlib/pyplot.py": pyplot}
    result = await sandbox.run(code, files=files)

    assert [(artifact.name, artifact.mime) for artifact in result.artifacts] == [
        ("figure-1.png", "image/png"),
        ("value.html", "text/html"),
        ("value.txt", "text/plain"),
    ]


@pytest.mark.promise("P-21")
async def test_a_stream_yields_events_in_order(sandbox: SandboxManager) -> None:
    code = (
        "import os, sys, time\nprint('one', flush=True)\ntime.sleep(0.1)\n"
        "print('two', file=sys.stderr, flush=True)\ntime.sleep(0.1)\n"
        "os.mkdir('artifacts')\nopen('artifacts/a', 'w').write('x')\n41 + 1"
    )
    events = [event async for event in sandbox.stream(code)]

    assert events[:2] == [Stdout(b"one\n"), Stderr(b"two\n")]
    assert isinstance(events[2], ArtifactMade)
    last = events[-1]
    assert isinstance(last, Finished)
    assert (last.result.status, last.result.value) == ("ok", 42)
    assert last.result.stdout == ""


@pytest.mark.promise("P-21")
async def test_a_session_streams_with_its_state(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("x = 3")
        events = [event async for event in session.stream("print(x)\nx")]
        after = await session.run("x")

    assert events[0] == Stdout(b"3\n")
    assert isinstance(events[-1], Finished)
    assert (events[-1].result.value, after.value) == (3, 3)


@pytest.mark.promise("P-21")
async def test_each_event_of_a_session_s_stream_may_be_read_by_another_task(
    sandbox: SandboxManager,
) -> None:
    found: list[Event] = []
    async with sandbox.session() as session:
        events = session.stream("print('one', flush=True)\n41 + 1")

        async def read() -> None:
            found.append(await anext(events))

        while not (found and isinstance(found[-1], Finished)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
        assert await anext(events, None) is None
        with anyio.fail_after(60):
            after = await session.run("'alive'")

    assert found[0] == Stdout(b"one\n")
    assert after.value == "alive"


@pytest.mark.promise("P-23")
async def test_a_session_s_stream_may_be_left_without_closing_it(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 41")

        async def leave() -> None:
            code = "import time\nprint('here', flush=True)\ntime.sleep(600)"
            async for _ in session.stream(code):
                break

        await leave()
        with anyio.fail_after(60):
            after = await session.run("x + 1")

    assert after.value == 42


@pytest.mark.promise("P-22")
async def test_a_reader_sets_the_pace_of_a_stream(backend: BackendRow) -> None:
    size = 24 * 1024 * 1024
    code = f"import os\nfor _ in range({size} // 65536): os.write(1, b'x' * 65536)"
    limits = Limits(wall_seconds=60, output_bytes=2 * size)
    total = largest = 0
    async with SandboxManager(backend.config(limits=limits)) as sandbox:
        async for event in sandbox.stream(code):
            if isinstance(event, Stdout):
                total += len(event.data)
                largest = max(largest, len(event.data))
        with pytest.raises(InvalidInputError, match="can be kept"):
            await sandbox.run(code)

    assert total == size
    assert largest < 1024 * 1024


FLOOD = "import os\nwhile True: os.write(1, bytes(65536))"


@pytest.mark.promise("P-04", "P-22")
async def test_a_deadline_does_not_wait_for_a_reader(backend: BackendRow) -> None:
    limits = Limits(wall_seconds=1)
    config = backend.config(limits=Limits(output_bytes=1 << 30))
    async with SandboxManager(config) as sandbox:
        once = await _read_late(sandbox.stream(FLOOD, limits=limits))
        async with sandbox.session() as session:
            await session.run("x = 41", limits=Limits(output_bytes=1024))
            kept = await _read_late(session.stream(FLOOD, limits=limits))
            after = await session.run("x + 1", limits=Limits(output_bytes=1024))

    assert (once.status, kept.status, kept.state) == ("timeout", "timeout", "kept")
    assert max(once.usage.wall_ms, kept.usage.wall_ms) < 3500
    assert after.value == 42


async def _read_late(events: AsyncGenerator[Event, None]) -> ExecutionResult:
    """Return the result of a run whose reader pauses after the first event."""
    async with aclosing(events):
        await anext(events)
        # The pause is what is tested.
        await anyio.sleep(4)
        *_, last = [event async for event in events]
    assert isinstance(last, Finished)
    return last.result


@pytest.mark.promise("P-23")
async def test_leaving_a_stream_ends_the_program(sandbox: SandboxManager) -> None:
    code = "import time\nprint('here', flush=True)\ntime.sleep(600)"
    with anyio.fail_after(60):
        async with aclosing(sandbox.stream(code)) as events:
            async for event in events:
                assert event == Stdout(b"here\n")
                break
        assert sandbox.active_cells == 0


@pytest.mark.promise("P-23")
async def test_leaving_a_session_s_stream_interrupts_its_program_only(
    sandbox: SandboxManager,
) -> None:
    code = "import time\nx += 1\nprint('here', flush=True)\ntime.sleep(600)"
    async with sandbox.session() as session:
        await session.run("x = 1")
        with anyio.fail_after(60):
            async with aclosing(session.stream(code)) as events:
                async for event in events:
                    assert event == Stdout(b"here\n")
                    break
        after = await session.run("x")

    assert (after.status, after.value, after.warnings) == ("ok", 2, ())


@pytest.mark.promise("P-23")
async def test_a_session_outlives_a_stream_that_is_full_both_ways(
    backend: BackendRow,
) -> None:
    config = backend.config(limits=Limits(output_bytes=1 << 30))
    small = Limits(output_bytes=1024)
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        await session.run("x = 41", limits=small)
        async with aclosing(session.stream(FLOOD)) as events:
            await anext(events)
            with anyio.move_on_after(1) as scope:
                # What nobody has asked for is dropped, once it is read.
                while True:
                    await session._shared.cell.send_frame(
                        {"type": "net_end"}, bytes(1 << 20)
                    )
        after = await session.run("x + 1", limits=small)

    assert scope.cancelled_caught
    assert after.value == 42


@pytest.mark.promise("P-22")
@pytest.mark.full
async def test_a_gibibyte_passes_within_64_mib(backend: BackendRow) -> None:
    size = 1 << 30
    code = f"import os\nfor _ in range({size} // 65536): os.write(1, b'x' * 65536)"
    limits = Limits(wall_seconds=600, output_bytes=2 * size)
    total = 0
    async with SandboxManager(backend.config(limits=limits)) as sandbox:
        await sandbox.run("1", limits=Limits(output_bytes=1024))
        before = most = _resident_bytes()
        async for event in sandbox.stream(code):
            if isinstance(event, Stdout):
                total += len(event.data)
                most = max(most, _resident_bytes())

    assert total == size
    assert most - before < 64 << 20


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
