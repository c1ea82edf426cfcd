"""Programs of npm that tests run, installed once into a folder of the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

PACKAGES = (
    "node@22",
    "@modelcontextprotocol/conformance@0.1.16",
    "@modelcontextprotocol/inspector@2.12.0",
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
)
_SECONDS = 600


class NotInstalledError(Exception):
    """The programs are not there, and cannot be fetched."""


def node_folder() -> Path:
    """Return the `node_modules` that holds the packages.

    Raises:
        NotInstalledError: There is no npm, or it fails.
    """
    if shutil.which("npm") is None:
        raise NotInstalledError("npm is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:16]
    folder = cache / "toolcell-tests" / f"node-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder)
    return folder / "node_modules"


def _install(folder: Path) -> None:
    (folder / "package.json").write_text('{"private": true}')
    command = ["npm", "install", "--no-audit", "--no-fund", *PACKAGES]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"npm took more than {_SECONDS} s") from None
    if done.returncode != 0:
        raise NotInstalledError(f"npm failed: {done.stderr[-500:]}")
    (folder / "complete").touch()


def node(folder: Path) -> str:
    """Return the path of the installed Node itself."""
    return str(folder / "node" / "bin" / "node")
