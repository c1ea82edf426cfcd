"""The wheel holds exactly the rooms, and works without the checkout."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.metadata import Metadata
from packaging.specifiers import SpecifierSet
from trove_classifiers import classifiers

from ..conftest import missing
from ..support.paths import README, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS: dict[str, Any] = PROJECT["tool"]["setuptools"]
# The namespace is no package: it holds `__main__` alone.
PACKAGES = [name for name in SETUPTOOLS["packages"] if name != "toolcell"]
ROOMS = {n: f for n, f in SETUPTOOLS["package-dir"].items() if n != "toolcell"}


def repository_files() -> list[str]:
    """Return the files that belong to the project, new ones included."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        missing("this is not a git checkout")
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = sorted(set(done.stdout.split("\0")) - {""})
    return [name for name in names if (ROOT / name).is_file()]


UV = str(Path(sys.executable).with_name("uv"))


def uv(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [UV, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        **options,
    )
    if "setuptools" in done.stderr and "No solution found" in done.stderr:
        missing("the package index does not answer, so nothing can be built")
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that was built of it.

    Both are built from a copy, so that nothing is left in the checkout.
    """
    source = tmp_path_factory.mktemp("source")
    for name in repository_files():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    target = tmp_path_factory.mktemp("built")
    done = uv("build", "--quiet", "--out-dir", str(target), str(source))
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    [found] = built.glob("*.tar.gz")
    return found


def test_the_wheel_is_the_tree(wheel: Path) -> None:
    in_rooms = {
        f"toolcell/{name}"
        for name in repository_files()
        if name.partition("/")[0] in ROOMS.values()
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}

    assert names == in_rooms | {"toolcell/__main__.py"}
    assert "toolcell/sandbox/cell/supervisor/main.py" in names
    assert "toolcell/images/python/Dockerfile" in names
    assert "toolcell/core/py.typed" in names


def test_the_wheel_carries_its_licence_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = {
            Path(name).name: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }

    assert "Apache License" in info["LICENSE"]
    assert "toolcell = toolcell.host.cli.main:entry_point" in info["entry_points.txt"]
    for dependency in PROJECT["project"]["dependencies"]:
        assert f"Requires-Dist: {dependency}\n" in info["METADATA"]


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from toolcell.sandbox import SandboxConfig, run
import toolcell.host, toolcell.images, toolcell.sandbox
for room in (toolcell.host, toolcell.images, toolcell.sandbox):
    assert room.__file__.startswith(sys.argv[1]), room.__file__
print(run("6 * 7", config=SandboxConfig(backend="subprocess")).value)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=180,
    )

    assert (done.stdout, done.stderr) == ("42\n", "")


@pytest.mark.promise("N20")
def test_the_wheel_runs_as_a_module(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    version = PROJECT["project"]["version"]
    for option in ("--version", "-V"):
        done = subprocess.run(
            [sys.executable, "-m", "toolcell", option],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            timeout=180,
        )
        assert (done.returncode, done.stdout) == (0, f"toolcell {version}\n")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text("print(6 * 7)")
    return str(path)


RUN = ("run", "--backend", "subprocess")


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_is_installed_as_anyone_does(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, program: str
) -> None:
    """`pip install toolcell`, then `toolcell run`: with its dependencies alone."""
    venv = tmp_path / "venv"
    file = request.getfixturevalue(kind)
    assert uv("venv", "--quiet", "--python", sys.executable, str(venv)).returncode == 0
    python = str(venv / "bin" / "python")
    done = uv("pip", "install", "--quiet", "--python", python, str(file))
    assert done.returncode == 0, done.stderr
    ran = subprocess.run(
        [str(venv / "bin" / "toolcell"), *RUN, program],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=180,
    )

    assert (ran.returncode, ran.stdout) == (0, "42\n"), ran.stderr
    listed = uv("pip", "list", "--python", python, "--format", "json").stdout
    names = {each["name"] for each in json.loads(listed)}
    assert "toolcell" in names
    # What extras bring is not installed unasked.
    assert not names & {"mcp", "starlette", "uvicorn", "openapi-pydantic", "ray"}


def test_uvx_runs_it_without_installing_it(wheel: Path, program: str) -> None:
    """`uvx toolcell run`, which makes an environment for one command."""
    python = ("--python", sys.executable)
    done = uv(
        *("tool", "run", "--quiet", *python, "--from", str(wheel), "toolcell"),
        *(*RUN, program),
        cwd="/",
    )

    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_the_metadata_is_what_an_index_accepts(sdist: Path) -> None:
    folder = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        info = archive.extractfile(f"{folder}/PKG-INFO")
        assert info is not None
        metadata = Metadata.from_email(info.read())

    assert metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "Apache-2.0"
    assert set(metadata.classifiers or ()) <= classifiers
    assert metadata.requires_python == SpecifierSet(">=3.11")
    assert metadata.description is not None
    targets = re.findall(r"\]\(([^)]*)\)|<img|(?:src|href)=", metadata.description)
    assert [each for each in targets if "://" not in each] == [], "no file is there"
    assert "the guard (`docs/guard.md`)" in metadata.description
    assert metadata.description.count("```") == README.read_text().count("```")


def test_every_package_is_listed() -> None:
    found = {
        "toolcell." + ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS.values()
        for path in (ROOT / room).rglob("__init__.py")
    }

    assert sorted(PACKAGES) == sorted(found)
    assert len(found) > 40


def test_only_the_roots_are_mapped() -> None:
    assert {f"toolcell.{folder}": folder for folder in ROOMS.values()} == ROOMS


def test_every_room_says_that_it_is_typed() -> None:
    unmarked = [f for f in ROOMS.values() if not (ROOT / f / "py.typed").is_file()]

    assert unmarked == []


def test_the_stubs_of_faces_are_as_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write them anew: .venv/bin/python typings/generate.py"""
    folder = ROOT / "typings"
    monkeypatch.syspath_prepend(str(folder))
    generate = importlib.import_module("generate")
    names = [*map(generate.path_of, [*generate.FACES, *generate.SPI])]
    wanted: dict[str, str] = generate.stubs()

    assert {name: (folder / name).read_text() for name in names} == {
        name: wanted[name] for name in names
    }


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    changelog = ROOT / "CHANGELOG.md"
    text = changelog.read_text() if changelog.exists() else ""
    released = re.findall(r"^## \[?v?(\d+\.\d+\.\d+[^\]\s]*)", text, re.M)

    assert released[:1] == [version], "the newest `## x.y.z` of CHANGELOG.md"
    assert importlib.metadata.version("toolcell") == version
