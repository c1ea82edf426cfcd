"""What a program leaves behind never costs its cell, its state or its result."""

from __future__ import annotations

import os
import re
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import Limits, SandboxManager, Stdout
from toolcell.sandbox.cell.workdir import files
from toolcell.sandbox.cell.workdir.path_steps import inside

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

DEEP = "import os\nfor _ in range(1200):\n    os.mkdir('d')\n    os.chdir('d')"
# Each file has two names, so none is taken, and each name is 60 steps away.
DEAR = (
    "import os, time\nbegan = time.monotonic()\n"
    "os.makedirs('artifacts/' + 'd/' * 60)\nos.chdir('artifacts/' + 'd/' * 60)\n"
    "for n in range(3000):\n"
    "    os.close(os.open(f'{n}', os.O_CREAT))\n    os.link(f'{n}', f'{n}-too')\n"
)


def _remove(folder: Path, path: str) -> dict[str, Any]:
    request = {"op": "remove", "path": path}
    return files.serve(request, b"", str(folder), None, owns_root=False)[0]


@pytest.mark.promise("P-16")
async def test_ten_thousand_files_with_long_names_are_listed(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import os\nos.mkdir('é' * 100)\nos.chdir('é' * 100)\n"
        "for n in range(9_999): os.close(os.open(f'{n:0200}', os.O_CREAT))"
    )
    folder = "é" * 100
    async with sandbox.session() as session:
        assert (await session.run(code, fresh=True)).ok
        listed = await session.list_files()
        below = await session.list_files(folder)
        await session.write_file(f"{folder}/another", "")
        with pytest.raises(InvalidInputError, match="more than 10000"):
            await session.list_files()
        await session.remove(folder)
        after = await session.list_files()

    names = [f"{folder}/{n:0200}" for n in range(9_999)]
    assert [each.path for each in listed] == [folder, *names]
    assert [each.path for each in below] == names
    assert after == ()


@pytest.mark.promise("E-96", "P-16", "QF4")
async def test_names_that_are_not_utf_8_are_left_out(sandbox: SandboxManager) -> None:
    code = (
        "import os\nos.makedirs(b'd/\\xff')\nopen(b'\\xff', 'w').close()\n"
        "open(b'd/\\xff/in', 'w').close()\nopen('d/good', 'w').close()"
    )
    async with sandbox.session() as session:
        assert (await session.run(code)).ok
        listed = [file.path for file in await session.list_files()]
        await session.remove("d")
        after = await session.run("os.listdir('.') == ['\\udcff']")

    assert listed == ["d", "d/good"]
    assert (after.value, after.state, after.warnings) == (True, "kept", ())


@pytest.mark.promise("E-96", "P-16")
async def test_folders_of_any_depth_are_listed_and_removed(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1")
        assert (await session.run(DEEP, fresh=True)).ok
        listed = await session.list_files()
        await session.write_file("d/d/beside", "text")
        await session.remove("d")
        left = await session.list_files()
        after = await session.run("x")

    assert [each.path.count("/") for each in listed] == list(range(64))
    assert left == ()
    assert (after.value, after.warnings) == (1, ())


@pytest.mark.promise("E-94", "P-17")
async def test_what_is_removed_is_never_reached_by_a_link(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import os\nos.makedirs('d/e/f')\nos.mkdir('kept')\n"
        "open('kept/it', 'w').close()\nos.symlink('../../kept', 'd/e/link')\n"
        "os.symlink('/work/kept/it', 'd/e/f/link')"
    )
    async with sandbox.session() as session:
        assert (await session.run(code)).ok
        await session.remove("d")
        left = [file.path for file in await session.list_files()]

    assert left == ["kept", "kept/it"]


@pytest.mark.promise("E-96", "P-16")
def test_a_removal_gets_on_though_the_way_down_takes_all_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_REMOVE_SECONDS", -1.0)
    (tmp_path / "/".join("d" * 20)).mkdir(parents=True)
    answers = [_remove(tmp_path, "d") for _ in range(20)]

    assert answers == [{"more": True}] * 19 + [{}]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("E-96", "P-16")
def test_a_removal_goes_down_once_without_looking_at_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def step(fd: int, part: str) -> int:
        nonlocal now
        now += 0.25
        return inside(fd, part)

    for name in ("a", "b"):
        (tmp_path / "d" / name / "/".join("e" * 20)).mkdir(parents=True)
    monkeypatch.setattr(files, "inside", step)
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now))
    first = _remove(tmp_path, "d"), now
    second = _remove(tmp_path, "d"), now

    # A step to `d` and 20 below it, and a second of the other way down.
    assert first == ({"more": True}, 21 * 0.25 + 1.25)
    assert second == ({}, first[1] + 21 * 0.25)


@pytest.mark.promise("E-96", "P-16")
def test_folders_too_deep_to_be_removed_in_time_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MAX_EMPTIED_DEPTH", 20)
    (tmp_path / "/".join("d" * 23)).mkdir(parents=True)
    refused = _remove(tmp_path, "d")
    for path in ("d/d", "d"):
        while answer := _remove(tmp_path, path):
            assert answer == {"more": True}

    assert refused == {"error": "deeper than 20 folders", "reason": "too_many"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("E-28", "P-17")
def test_a_folder_that_moves_while_it_is_emptied_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, kept, plain = tmp_path / "d/e", tmp_path / "kept", os.open

    def move_and_open(path: str, *args: Any, **options: Any) -> int:
        if path == "..":
            inner.rename(kept / "e")
        return plain(path, *args, **options)

    for folder in (inner, kept):
        folder.mkdir(parents=True)
        (folder / "it").touch()
    monkeypatch.setattr(os, "open", move_and_open)
    answer = _remove(tmp_path, "d")

    assert answer == {"error": "folders were moved meanwhile", "reason": "busy"}
    assert sorted(each.name for each in kept.iterdir()) == ["e", "it"]


@pytest.mark.promise("E-96", "P-19", "QF4", "QF7")
@pytest.mark.parametrize(
    ("left", "named"),
    [
        pytest.param("open(b'\\xff', 'w').close()", r"\xff", id="not UTF-8"),
        pytest.param("os.mkdir(b'\\xff')", r"\xff", id="a folder that is not UTF-8"),
        pytest.param(DEEP, "d/d/d", id="deep"),
        pytest.param(
            "for _ in range(14):\n    os.mkdir('x' * 250)\n    os.chdir('x' * 250)\n"
            "for n in range(200): open(f'{n:0250}', 'w').close()",
            "xxx",
            id="long",
        ),
        pytest.param(
            "for n in range(10_001): os.close(os.open(f'n{n}', os.O_CREAT))",
            "beyond 10000 entries",
            id="many",
        ),
    ],
)
async def test_odd_artifacts_cost_no_result(
    sandbox: SandboxManager, left: str, named: str
) -> None:
    begin = "import os\nos.mkdir('artifacts')\nos.chdir('artifacts')\n"
    result = await sandbox.run(f"{begin}open('0', 'w').write('good')\n{left}\n41 + 1")

    assert (result.status, result.value) == ("ok", 42), result.stderr
    assert {artifact.size for artifact in result.artifacts} <= {0, 4}
    [warning] = result.warnings
    assert warning.startswith("artifacts left out: ")
    assert named in warning
    assert len(warning) < 20_000


@pytest.mark.promise("P-19", "QF1", "QF2")
@pytest.mark.parametrize(
    ("left", "warning"),
    [
        pytest.param(
            "for n in range(1000): open(f'artifacts/{n:04}', 'w').close()",
            r"artifacts left out: 0064, .*, 0073 and 926 more",
            id="QF1 many",
        ),
        pytest.param(
            "open('artifacts/a', 'w').close()\nos.symlink('a', 'artifacts/latest')",
            r"artifacts left out: latest \(a link\)",
            id="QF2 a link",
        ),
        pytest.param(
            "os.mkdir('artifacts/d')\nopen('artifacts/d/x', 'w').close()\n"
            "os.chmod('artifacts/d', 0)",
            r"artifacts left out: d/",
            id="QF2 a folder that nobody may list",
        ),
        pytest.param(
            "os.rename('artifacts', 'out')\nos.symlink('out', 'artifacts')",
            r"artifacts left out: artifacts: .*",
            id="QF2 the folder is a link",
        ),
    ],
)
async def test_nothing_is_left_out_without_a_word(
    sandbox: SandboxManager, left: str, warning: str
) -> None:
    result = await sandbox.run(f"import os\nos.mkdir('artifacts')\n{left}")

    assert result.status == "ok", result.stderr
    assert re.fullmatch(warning, "\n".join(result.warnings))


@pytest.mark.promise("P-19")
async def test_a_link_is_named_once(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        code = "import os\nos.mkdir('artifacts')\nos.symlink('a', 'artifacts/l')"
        assert len((await session.run(code)).warnings) == 1
        assert (await session.run("1")).warnings == ()


@pytest.mark.promise("E-28", "P-19", "QF7")
async def test_files_that_come_and_go_cost_no_result(sandbox: SandboxManager) -> None:
    code = (
        "import os, threading\nos.makedirs('artifacts/d')\n"
        "def churn(k):\n    while True:\n"
        "        for n in range(100):\n"
        "            with open(f'artifacts/{k}-{n}', 'w') as file:\n"
        "                file.write('x' * 9000)\n"
        "        for n in range(100): os.unlink(f'artifacts/{k}-{n}')\n"
        "        os.rename('artifacts/d', 'artifacts/e')\n"
        "        os.rename('artifacts/e', 'artifacts/d')\n"
        "threading.Thread(target=churn, args=(1,), daemon=True).start()\nx = 0"
    )
    async with sandbox.session() as session:
        assert (await session.run(code)).ok
        for count in range(1, 31):
            seen = await session.run("x += 1\nx")
            assert (seen.value, seen.state) == (count, "kept")
            listed = [file.path for file in await session.list_files()]
            taken = [artifact.name for artifact in seen.artifacts]
            assert len(set(listed)) == len(listed)
            assert len(set(taken)) == len(taken)


@pytest.mark.promise("P-19")
async def test_a_large_artifact_fits_into_a_small_cell(backend: BackendRow) -> None:
    code = (
        "import os\nos.mkdir('artifacts')\nwith open('artifacts/a', 'wb') as file:\n"
        "    for n in range(15): file.write(bytes([n]) * (1 << 20))"
    )
    async with SandboxManager(backend.config(limits=Limits(memory_mib=40))) as sandbox:
        result = await sandbox.run(code)

    [artifact] = result.artifacts
    assert (result.status, result.warnings) == ("ok", ())
    assert artifact.data == b"".join(bytes([n]) * (1 << 20) for n in range(15))


@pytest.mark.promise("P-19")
async def test_a_program_that_ended_in_time_gets_its_verdict(
    sandbox: SandboxManager,
) -> None:
    code = DEAR + "print('in time')\nwhile time.monotonic() - began < 1: pass\n42"
    result = await sandbox.run(code, limits=Limits(wall_seconds=20))

    assert (result.status, result.value) == ("ok", 42)
    assert result.stdout == "in time\n"
    assert result.usage.cpu_ms > 0
    assert any("artifacts left out" in warning for warning in result.warnings)


@pytest.mark.promise("P-23")
async def test_a_stream_that_is_left_leaves_no_artifacts_to_the_next_run(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import os\nos.makedirs('artifacts', exist_ok=True)\n"
        "open('artifacts/a', 'w').write('x')\nprint('here')"
    )
    async with sandbox.session() as session:
        with anyio.fail_after(60):
            async with aclosing(session.stream(code)) as events:
                async for event in events:
                    assert event == Stdout(b"here\n")
                    break
        after = await session.run("41 + 1")

    assert (after.value, after.artifacts) == (42, ())


@pytest.mark.promise("E-94", "P-17")
async def test_the_folder_of_forks_leads_nowhere_else(sandbox: SandboxManager) -> None:
    aside = "import os\nos.rename('/tmp/.branches', '/tmp/aside')\n"
    async with sandbox.session() as session:
        await session.run("x = 1")
        fork = await session.fork()
        await session.run(aside + "os.symlink('/proc', '/tmp/.branches')")
        with pytest.raises(InvalidInputError):
            await fork.read_file("cmdline")
        await session.run(
            "os.unlink('/tmp/.branches')\nos.makedirs('/tmp/z/1')\n"
            "os.symlink('/tmp/z', '/tmp/.branches')"
        )
        for reach in (fork.write_file("w", "x"), fork.list_files(), fork.remove("w")):
            with pytest.raises(InvalidInputError):
                await reach
        landed = await session.run("os.listdir('/tmp/z/1')")
        await session.run(
            "os.unlink('/tmp/.branches')\nos.rename('/tmp/aside', '/tmp/.branches')"
        )
        await fork.write_file("w", "text")
        seen = await fork.run("open('w').read()")

    assert (landed.value, seen.value) == ([], "text")
