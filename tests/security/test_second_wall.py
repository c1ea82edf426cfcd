"""Landlock below cells of namespaces: it holds where their mounts do not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.cell.kernel.landlock import version

from ..support.cells.changed_bundle import changed_bundle

pytestmark = [pytest.mark.anyio, pytest.mark.namespaces]

# The machine's root is left among the mounts of a cell.
_PROC = '_bind("/old/proc", "/new/proc")'
HOLE = ("launcher.root_filesystem", _PROC, f'{_PROC}; _bind("/old", "/new/hole")')
NO_LANDLOCK = ("launcher.namespaces", "if _has_landlock() else", "if False else")

ATTACK = """\
import os, subprocess
folder = "/hole" + folder
def attempt(act):
    try:
        act()
        return "open"
    except OSError as error:
        return error.strerror
acts = {
    "read": lambda: open(f"{folder}/file").read(),
    "write": lambda: open(f"{folder}/file", "a").close(),
    "truncate": lambda: os.truncate(f"{folder}/file", 1),
    "make a file": lambda: open(f"{folder}/new", "x").close(),
    "make a folder": lambda: os.mkdir(f"{folder}/sub"),
    "make a link": lambda: os.symlink("a", f"{folder}/link"),
    "execute": lambda: subprocess.run([f"{folder}/tool"], check=True),
    "rename": lambda: os.rename(f"{folder}/file", f"{folder}/other"),
}
assert os.path.exists(f"{folder}/file")
{name: attempt(act) for name, act in acts.items()}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder of the machine in which any user may do anything."""
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        path.chmod(0o777)
        (path / "file").write_text("text")
        (path / "tool").write_text("#!/bin/sh\nexit 0\n")
        (path / "file").chmod(0o666)
        (path / "tool").chmod(0o777)
        yield path


@pytest.mark.parametrize("programs_per_cell", [1, 2])
@pytest.mark.parametrize("walled", [True, False], ids=["landlock", "none"])
async def test_the_machines_files_are_closed_though_a_cell_has_them_mounted(
    walled: bool, programs_per_cell: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _require_landlock()
    code = changed_bundle([HOLE] if walled else [HOLE, NO_LANDLOCK])
    for name in ("bundle", "compiled_bundle"):
        monkeypatch.setattr(
            f"toolcell.sandbox.backends.launcher_start.{name}", lambda: code
        )
    config = SandboxConfig(backend="subprocess", programs_per_cell=programs_per_cell)
    async with SandboxManager(config) as sandbox:
        for _ in range(programs_per_cell):
            result = await sandbox.run(
                ATTACK, inputs={"folder": str(folder)}, agent_id="a"
            )
            if not walled:
                break

    assert result.isolation is not None, result
    assert ("landlock" in result.isolation.layers) is walled
    assert isinstance(result.value, dict), result
    closed = "Permission denied" if walled else "open"
    assert set(result.value.values()) == {closed}, result


def _require_landlock() -> None:
    try:
        version()
    except OSError as error:
        pytest.skip(str(error))
