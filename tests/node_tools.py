"""Programs of npm that tests run, installed once into a folder of the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from .conftest import missing

EVERYTHING = ("node@22", "@modelcontextprotocol/server-everything@2026.8.31")
_SECONDS = 300


def node_folder(*packages: str) -> Path:
    """Return a `node_modules` that holds packages, as `name@version`.

    Without npm the test that asks is skipped; in CI it fails.
    """
    if shutil.which("npm") is None:
        missing("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    folder = cache / "toolcell-tests" / f"node-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, packages)
    return folder / "node_modules"


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    (folder / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--no-audit", "--no-fund", *packages]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        missing(f"npm did not install {packages} within {_SECONDS} s")
    if done.returncode != 0:
        missing(f"npm cannot install {packages}: {done.stderr[-500:]}")
    (folder / "complete").touch()


def node(folder: Path) -> str:
    """Return the path of the installed Node itself."""
    return str(folder / "node" / "bin" / "node")
