"""Finds the Docker engine that the `docker` command of this user speaks to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

UNIX = "unix://"
DEFAULT = "unix:///var/run/docker.sock" if os.name == "posix" else ""
# Where engines of one user listen: rootless Docker, Docker Desktop, Colima.
_OF_ONE_USER = (
    "$XDG_RUNTIME_DIR/docker.sock",
    "~/.docker/run/docker.sock",
    "~/.colima/default/docker.sock",
)


def address(docker_host: str | None) -> str:
    """Return the address of the engine.

    It is the configured one; else DOCKER_HOST; else that of the context which `docker
    context use` or DOCKER_CONTEXT has chosen; else the socket of the machine, or of
    this user where the machine has none.
    """
    named = docker_host or os.environ.get("DOCKER_HOST") or _of_context()
    if named or os.path.exists(DEFAULT.removeprefix(UNIX)):
        return named or DEFAULT
    for path in _OF_ONE_USER:
        socket = os.path.expanduser(os.path.expandvars(path))
        if os.path.exists(socket):
            return UNIX + socket
    return DEFAULT


def _of_context() -> str:
    """Return the address of the current context; empty if there is none."""
    chosen = os.environ.get("DOCKER_CONFIG")
    folder = Path(chosen) if chosen else Path("~/.docker").expanduser()
    name = os.environ.get("DOCKER_CONTEXT")
    # Any of the files may be missing, or have another form in a later version.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not name:
            name = json.loads((folder / "config.json").read_bytes())["currentContext"]
        known = hashlib.sha256(name.encode()).hexdigest()
        facts = json.loads(
            (folder / "contexts" / "meta" / known / "meta.json").read_bytes()
        )
        return str(facts["Endpoints"]["docker"]["Host"])
    return ""
