"""Backends of other packages: taken by their name alone, and refused with a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from toolcell.core import ConfigError
from toolcell.sandbox import SandboxConfig, SandboxManager

from ...support.paths import ROOT
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

EXAMPLE = ROOT / "examples" / "null_backend"
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with entry points, as pip does."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package: str, **backends: str) -> None:
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        lines = [f"{name} = {target}" for name, target in backends.items()]
        points = "\n".join(["[toolcell.backends]", *lines, ""])
        (folder / "entry_points.txt").write_text(points)

    return add


@pytest.fixture
def null(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the example."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install("toolcell_null_backend", **project["entry-points"]["toolcell.backends"])
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.mark.usefixtures("null")
async def test_a_named_one_runs_programs() -> None:
    config = SandboxConfig(backend="null", minimum_isolation="process")
    async with SandboxManager(config) as manager:
        result = await manager.run("6 * 7")

    assert (result.status, result.value, result.backend) == ("ok", 42, "null")
    assert result.isolation is not None
    assert result.isolation.level == "process"
    assert result.usage.enforced_by["memory_mib"] == "watchdog"
    assert manager.notices == (
        "cells are made by toolcell_null_backend 1.0, as backend='null' asks",
    )


@pytest.mark.usefixtures("null")
async def test_it_is_held_to_the_isolation_that_it_has() -> None:
    with pytest.raises(Exception, match="null gives 'process' isolation, 'confined'"):
        async with SandboxManager(SandboxConfig(backend="null")):
            pass


async def test_auto_takes_none_unasked(install: Install) -> None:
    own = dict.fromkeys(("auto", "docker", "subprocess", "process"), "taken:Backend")
    install("taken", **own, other="taken:Backend")
    config = SandboxConfig(minimum_isolation="process", docker_host="tcp://127.0.0.1:9")
    async with SandboxManager(config) as manager:
        result = await manager.run("1")
    named = SandboxConfig(backend="process", minimum_isolation="process")
    async with SandboxManager(named) as manager:
        last = await manager.run("1")

    assert result.backend in ("subprocess", "process")
    assert last.backend == "process"
    with pytest.raises(ConfigError, match=r"subprocess, process, other \("):
        SandboxConfig(backend="podman")


async def test_what_cannot_be_used_is_refused_by_name(
    install: Install, tmp_path: Path
) -> None:
    (tmp_path / "liar.py").write_text(
        "from toolcell.sandbox.backend_api import CellTraits\n"
        "class Backend:\n"
        "    traits = CellTraits('docker', 'kernel', ())\n"
        "    def __init__(self, config): pass\n"
        "    async def start(self): pass\n"
        "    async def aclose(self): pass\n"
    )
    install("one", twice="one:Backend", gone="nowhere:Backend", liar="liar:Backend")
    install("two", twice="two:Backend")

    for name, why in {
        "podman": "no backend 'podman'; there are auto, docker, subprocess, process, g",
        "twice": "several packages offer a backend 'twice': one 1.0, two 1.0",
    }.items():
        with pytest.raises(ConfigError, match=why):
            SandboxConfig(backend=name)
    for name, why in {
        "gone": "backend 'gone' of one 1.0 cannot be used: ModuleNotFoundError",
        "liar": "backend 'liar' of one 1.0 calls itself 'docker', with 'kernel'",
    }.items():
        with pytest.raises(ConfigError, match=why):
            async with SandboxManager(SandboxConfig(backend=name)):
                pass


def test_the_process_backend_is_named_with_what_it_gives() -> None:
    with pytest.raises(ConfigError, match="minimum_isolation='process'"):
        SandboxConfig(backend="process")
    with pytest.raises(ConfigError, match="no image"):
        SandboxConfig(backend="process", minimum_isolation="process", image="a")
    done = toolcell("run", "--backend", "podman", "-", stdin=b"1")

    assert done.returncode == 2
    assert b"there is no backend 'podman'" in done.stderr
