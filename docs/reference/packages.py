"""Lays out the rooms as the package `toolcell`, where the reference reads them.

Their folders have no `toolcell/` above them, and nothing is imported to read them. The
icon of the site is that of the console.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).resolve().parents[2]


def on_startup(**_: Any) -> None:
    """Make links to the rooms in `build/packages`."""
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    packages = _ROOT / "build/packages"
    shutil.rmtree(packages, ignore_errors=True)
    for name, folder in settings["tool"]["setuptools"]["package-dir"].items():
        place = packages.joinpath(*name.split("."))
        place.parent.mkdir(parents=True, exist_ok=True)
        if "." in name:
            place.symlink_to(_ROOT / folder)
        else:
            place.mkdir()
            (place / "__init__.py").write_text("")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the icon."""
    icon = _ROOT / "host/console/static/icon.svg"
    files.append(File.generated(config, "images/icon.svg", abs_src_path=str(icon)))
    return files
