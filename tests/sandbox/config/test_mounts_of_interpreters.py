"""Mounts that programs write to are not where the programs of cells lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolcell.core import ConfigError
from toolcell.sandbox import Mount, SandboxConfig

pytestmark = pytest.mark.promise("E-23", "P-30")


@pytest.fixture
def software(tmp_path: Path) -> Path:
    """Return a folder with an interpreter, a node, data beside them, and links."""
    for name in ("python/bin", "python/lib", "python/data", "node", "links"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "python/bin/python3").touch()
    (tmp_path / "python/lib64").symlink_to("../elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "node/node").touch()
    (tmp_path / "links/python").symlink_to("../python")
    return tmp_path


def configured(
    software: Path, key: str, program: str | Path, source: str, *, read_only: bool
) -> SandboxConfig:
    """Return a configuration with an interpreter, and a mount at `/data`."""
    mount = Mount(source=str(software / source), target="/data", read_only=read_only)
    return SandboxConfig.model_validate(
        {key: str(software / program), "mounts": [mount]}
    )


@pytest.mark.parametrize(
    ("key", "program", "source"),
    [
        ("python", "python/bin/python3", "python"),
        ("python", "python/bin/python3", "python/bin"),
        ("python", "python/bin/python3", "python/bin/python3"),
        ("python", "python/bin/python3", "python/lib"),
        ("python", "python/bin/python3", "elsewhere"),
        ("python", "python/bin/python3", "."),
        ("python", "links/python/bin/python3", "links"),
        ("python", "links/python/bin/python3", "python/lib"),
        ("node", "node/node", "node"),
        ("node", "node/node", "node/node"),
    ],
)
def test_no_program_changes_an_interpreter_of_cells(
    software: Path, key: str, program: str, source: str
) -> None:
    """Attack: a program replaces the file that is run before any cell is made."""
    assert configured(software, key, program, source, read_only=True).mounts
    with pytest.raises(ConfigError, match=f"would let programs change {software}"):
        configured(software, key, program, source, read_only=False)


@pytest.mark.parametrize(
    ("program", "source"),
    [
        ("python/bin/python3", "python/data"),
        ("python/bin/python3", "node"),
        ("links/python/bin/python3", "python/data"),
        ("/usr/bin/python3", "python"),
        (Path(sys.executable).resolve(), "python"),
    ],
)
def test_programs_write_beside_an_interpreter(
    software: Path, program: str | Path, source: str
) -> None:
    assert configured(software, "python", program, source, read_only=False).mounts


def test_no_program_changes_an_interpreter_that_nobody_named(
    software: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a program leads the host's own Python, or the node of PATH, elsewhere."""
    (software / "elsewhere/python3").symlink_to(Path(sys.executable).resolve())
    (software / "node/node").chmod(0o755)
    (software / "bin").mkdir()
    (software / "bin/python3").symlink_to("../elsewhere/python3")
    (software / "bin/node").symlink_to("../node/node")
    monkeypatch.setattr(sys, "executable", str(software / "bin/python3"))
    monkeypatch.setenv("PATH", str(software / "bin"))

    for source in ("elsewhere", "node", "bin"):
        mount = Mount(source=str(software / source), target="/data", read_only=False)
        with pytest.raises(ConfigError, match=f"would let programs change {software}"):
            SandboxConfig(mounts=(mount,))
    data = Mount(source=str(software / "links"), target="/data", read_only=False)
    assert SandboxConfig(mounts=(data,)).mounts
