"""toolcell as its users have it: a wheel in an environment of the baseline's Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.measure import Missing

from baselines.programs import PYTHON, needs

_ROOT = Path(__file__).parents[2]
_FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


@contextmanager
def toolcell() -> Iterator[str]:
    """Install this checkout into a new environment; yield its `toolcell` command.

    An editable install, which developers have, asks its own finder at each import.

    Raises:
        Missing: There is no uv, or no index from which it could install.
    """
    uv = shutil.which("uv", path=Path(sys.executable).parent) or shutil.which("uv")
    if uv is None:
        raise Missing("uv is not installed, to install toolcell as its users do")
    needs(PYTHON)
    with TemporaryDirectory() as folder:
        source, environment = Path(folder, "source"), Path(folder, "environment")
        _copy_source(source)
        _run(uv, "venv", "--python", PYTHON, str(environment))
        python = str(environment / "bin" / "python")
        _run(uv, "pip", "install", "--compile-bytecode", "-p", python, str(source))
        yield str(environment / "bin" / "toolcell")


def _copy_source(target: Path) -> None:
    """Copy what a wheel is made of, as a build leaves its files beside it."""
    project = tomllib.loads((_ROOT / _FILES[0]).read_text())
    target.mkdir()
    for name in _FILES:
        shutil.copy2(_ROOT / name, target)
    for name in project["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(_ROOT / name, target / name)


def _run(*arguments: str) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise Missing(f"uv could not install toolcell: {' '.join(last)}")
