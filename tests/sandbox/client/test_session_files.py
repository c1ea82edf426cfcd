"""Files of a session: what travels, what comes back when, and why some do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import SandboxConfig, SandboxManager, Session

pytestmark = pytest.mark.anyio


async def _left(session: Session, code: str) -> dict[str, bytes]:
    result = await session.run(code)
    assert result.ok, result.stderr
    return {artifact.name: artifact.data for artifact in result.artifacts}


@pytest.mark.promise("P-19")
async def test_an_artifact_comes_back_once_and_again_when_it_has_changed(
    sandbox: SandboxManager,
) -> None:
    make = "import os\nos.makedirs('artifacts')\n"
    write = "for n in 'ab':\n    open(f'artifacts/{n}', 'w').write('1')"
    # The same size, at once, in place: only the bytes tell.
    change = "with open('artifacts/a', 'r+') as file:\n    file.write('2')"
    async with sandbox.session() as session:
        assert await _left(session, make + write) == {"a": b"1", "b": b"1"}
        assert await _left(session, "1") == {}
        assert await _left(session, change) == {"a": b"2"}
        again = await session.run("1", fresh=True)
        assert again.artifacts == ()

        branch = await session.fork()
        assert await _left(branch, "1") == {}
        assert await _left(branch, change.replace("2", "3")) == {"a": b"3"}
        assert await _left(session, "os.remove('artifacts/b')") == {}
        assert await _left(session, "open('artifacts/b', 'w').write('4')") == {
            "b": b"4"
        }


@pytest.mark.promise("P-19")
async def test_figures_and_tables_of_a_session_come_back_once(
    sandbox: SandboxManager,
) -> None:
    table = "class T:\n    def _repr_html_(self): return '<b>'\nT()"
    async with sandbox.session() as session:
        first = await _left(session, table)
        assert sorted(first) == ["value.html", "value.txt"]
        assert await _left(session, "x = 1") == {}


REASONS = [
    ("read", "nothing", "missing"),
    ("read", "folder", "is_folder"),
    ("write", "folder", "is_folder"),
    ("read", "file/x", "not_folder"),
    ("list", "file", "not_folder"),
    ("list", "nothing", "missing"),
    ("remove", "nothing", "missing"),
    ("read", "link", "link"),
    ("read", "fifo", "not_regular"),
    ("read", "closed", "denied"),
    ("write", "locked/x", "denied"),
    ("read", "large", "too_large"),
    ("read", "../x", "invalid_path"),
    ("write", "/x", "denied"),
    ("read", "/tmp/../x", "invalid_path"),
    ("read", "/etc", "is_folder"),
    ("read", "/nothing", "missing"),
    ("read", "/proc/1/mem", "denied"),
    ("write", "/proc/1/mem", "denied"),
    ("read", "//proc/./1/environ", "denied"),
    ("list", "/proc", "denied"),
    ("read", "/sys/kernel/notes", "denied"),
    ("write", "full", "no_space"),
]


async def test_file_errors_tell_why_and_what_to_do(
    sandbox: SandboxManager, tmp_path: Path
) -> None:
    code = (
        "import os\nos.mkdir('folder')\nopen('file', 'w').close()\n"
        "os.symlink('file', 'link')\nos.mkfifo('fifo')\n"
        "open('closed', 'w').close()\nos.chmod('closed', 0)\n"
        "os.mkdir('locked', 0o500)\nopen('large', 'w').write('12')"
    )
    async with sandbox.session() as session:
        assert (await session.run(code)).ok
        for act, path, reason in REASONS:
            with pytest.raises(InvalidInputError) as caught:
                if act == "read":
                    await session.read_file(path, max_bytes=1)
                elif act == "write":
                    size = 80 << 20 if reason == "no_space" else 1
                    await session.write_file(path, bytes(size))
                elif act == "list":
                    await session.list_files(path)
                else:
                    await session.remove(path)
            assert caught.value.details == {"reason": reason}, (act, path)
            assert caught.value.hint
        await session.remove("full")
        with pytest.raises(InvalidInputError) as caught:
            await session.upload(tmp_path / "none")
        assert caught.value.details == {"reason": "not_folder"}
        with pytest.raises(InvalidInputError) as caught:
            await session.download(tmp_path)
        assert caught.value.details == {"reason": "exists"}


@pytest.mark.promise("P-16")
async def test_absolute_paths_begin_at_the_root_of_the_cell(
    sandbox: SandboxManager, tmp_path: Path
) -> None:
    name = f"/tmp/{tmp_path.name}"
    async with sandbox.session() as session:
        await session.write_file(f"{name}/deep/data", b"1")
        seen = await session.run(f"open('{name}/deep/data').read()")
        listed = [file.path for file in await session.list_files(name)]
        read = await session.read_file(f"{name}/deep/data")
        root = await session.read_file("/etc/passwd")
        files = await session.download(tmp_path / "out", name)
        await session.remove(name)
        left = await session.run(f"import os\nos.path.exists('{name}')")

    assert (seen.value, read, left.value) == ("1", b"1", False)
    assert listed == [f"{name}/deep", f"{name}/deep/data"]
    assert files == 1
    assert (tmp_path / "out" / name[1:] / "deep/data").read_bytes() == b"1"
    assert root != Path("/etc/passwd").read_bytes()
    assert not Path(name).exists()


async def test_process_isolation_takes_no_absolute_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def no_namespaces(backend: object) -> None:
        raise SandboxUnavailableError("no namespaces here", details={"kernel": ""})

    start = "toolcell.sandbox.backends.namespaces.SubprocessBackend.start"
    monkeypatch.setattr(start, no_namespaces)
    config = SandboxConfig(backend="subprocess", minimum_isolation="process")
    async with SandboxManager(config) as manager, manager.session() as session:
        for path in (f"{tmp_path}/x", "/etc/passwd"):
            with pytest.raises(InvalidInputError) as caught:
                await session.write_file(path, b"1")
            assert caught.value.details == {"reason": "invalid_path"}
        # Not even where the client forgets to look.
        request: dict[str, Any] = {
            "type": "file",
            "op": "read",
            "branch": "",
            "path": "/etc/passwd",
        }
        request |= {"offset": 0, "size": 9}
        answer, data = await session._shared.cell.ask(request)

    assert answer["reason"] == "invalid_path" and data == b""
    assert not (tmp_path / "x").exists()


@pytest.mark.promise("P-16", "QF3")
async def test_executable_files_and_empty_folders_travel(
    sandbox: SandboxManager, tmp_path: Path
) -> None:
    source, back = tmp_path / "in", tmp_path / "out"
    (source / "empty" / "inner").mkdir(parents=True)
    for name, mode in (("tool", 0o4755), ("data", 0o640)):
        (source / name).write_text("#!/bin/sh\necho done\n")
        (source / name).chmod(mode)
    look = (
        "import os, subprocess\nprint(subprocess.check_output('./tool').decode())\n"
        "{n: oct(os.stat(n).st_mode & 0o7777) for n in ('tool', 'data', 'empty/inner')}"
    )
    async with sandbox.session() as session:
        assert await session.upload(source) == 2
        seen = await session.run(look)
        await session.run("os.mkdir('more')\nos.chmod('tool', 0o6777)")
        assert await session.download(back) == 2

    assert seen.stdout.strip() == "done"
    assert seen.value == {"tool": "0o755", "data": "0o644", "empty/inner": "0o755"}
    modes = {
        str(path.relative_to(back)): oct(path.stat().st_mode & 0o7777)
        for path in back.rglob("*")
    }
    assert modes == {
        "tool": "0o700",
        "data": "0o600",
        "empty": "0o700",
        "empty/inner": "0o700",
        "more": "0o700",
    }
