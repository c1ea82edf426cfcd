"""Every supported Python runs cells, and importing a room loads little."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from toolcell.sandbox import SandboxConfig, SandboxManager

from ..support.project.modules import CELL, fresh_python, modules_of

HEAVY = ("docker", "requests", "rich", "typer", "RestrictedPython", "IPython", "mcp")
CURRENT = f"{sys.version_info[0]}.{sys.version_info[1]}"
PYTHONS = ("3.8", "3.9", "3.10", CURRENT)


def interpreter(version: str) -> str:
    """Return an interpreter that really is of this version; skip without one."""
    if version == CURRENT:
        return os.path.realpath(sys.executable)
    for name in (f"python{version}", *pyenv_interpreters(version)):
        found = shutil.which(name)
        if found is None:
            continue
        ask = [found, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(ask, capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return found
    # Not `missing`: few machines, CI's included, have interpreters this old.
    pytest.skip(f"there is no python{version}")


def pyenv_interpreters(version: str) -> list[str]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [str(path) for path in root.glob(f"versions/{version}.*/bin/python")]


@pytest.mark.parametrize("version", PYTHONS)
def test_a_cell_can_be_imported_by_every_python(version: str) -> None:
    script = """
import importlib, sys, warnings
warnings.simplefilter("error")
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
"""
    names = [
        ".".join(path.relative_to(CELL.parent).with_suffix("").parts)
        for path in modules_of("sandbox/cell")
        if path.stem != "__init__"
    ]
    done = subprocess.run(
        [interpreter(version), "-I", "-c", script, str(CELL.parent), *names],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.promise("QD3")
@pytest.mark.anyio
@pytest.mark.parametrize("version", PYTHONS)
async def test_a_program_runs_under_every_python(version: str) -> None:
    python = interpreter(version)
    config = SandboxConfig(backend="subprocess", python=python)
    async with SandboxManager(config) as sandbox:
        result = await sandbox.run(
            "import sys\nfrom IPython.display import HTML\ndisplay(HTML('x'))\n"
            "'%d.%d' % sys.version_info[:2]"
        )

    assert (result.status, result.value) == ("ok", version), result.stderr
    assert [output.text("text/html") for output in result.outputs] == ["x"]


@pytest.mark.promise("RG-42", "flow-48")
@pytest.mark.parametrize("room", ["core", "sandbox", "tools", "flow"])
def test_importing_a_room_is_light(room: str) -> None:
    script = f"import sys, toolcell.{room}; print(*sys.modules, sep='\\n')"
    loaded = set(fresh_python(script).splitlines())

    assert f"toolcell.{room}" in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)
    if room == "core":
        assert not {name for name in loaded if name.startswith("toolcell.sandbox")}
        assert "anyio" not in loaded


@pytest.mark.promise("RG-42")
def test_asking_for_help_is_light() -> None:
    script = """
import sys
from toolcell.host import main
sys.argv = ["toolcell", "--version-of-nothing"]
try:
    main()
except SystemExit:
    pass
print(*sys.modules, sep="\\n")
"""
    loaded = set(fresh_python(script).splitlines())

    assert not loaded & {"docker", "requests", "RestrictedPython", "toolcell.sandbox"}
