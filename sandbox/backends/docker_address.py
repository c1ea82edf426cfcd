"""Finds the Docker engine that the `docker` command of this user speaks to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

UNIX = "unix://"
DEFAULT = "unix:///var/run/docker.sock" if os.name == "posix" else ""
# Where engines of one user listen: rootless Docker, Docker Desktop, Colima.
_OF_ONE_USER = (
    "$XDG_RUNTIME_DIR/docker.sock",
    "~/.docker/run/docker.sock",
    "~/.colima/default/docker.sock",
)


class Endpoint(NamedTuple):
    """An engine that a context of the `docker` command names."""

    address: str
    folder: Path
    """The place of its TLS files: `ca.pem`, `cert.pem` and `key.pem`, each of which may
    be missing."""

    verify: bool
    """False if the engine's certificate is not to be checked."""


def address(docker_host: str | None) -> str:
    """Return the address of the engine.

    It is the configured one; else DOCKER_HOST; else that of the context which `docker
    context use` or DOCKER_CONTEXT has chosen; else the socket of the machine, or of
    this user where the machine has none.
    """
    context = of_context(docker_host)
    named = docker_host or os.environ.get("DOCKER_HOST")
    if context is not None:
        named = context.address
    if named or os.path.exists(DEFAULT.removeprefix(UNIX)):
        return named or DEFAULT
    for path in _OF_ONE_USER:
        socket = os.path.expanduser(os.path.expandvars(path))
        if os.path.exists(socket):
            return UNIX + socket
    return DEFAULT


def of_context(docker_host: str | None) -> Endpoint | None:
    """Return the engine of the current context; None if another one is named."""
    if docker_host or os.environ.get("DOCKER_HOST"):
        return None
    chosen = os.environ.get("DOCKER_CONFIG")
    folder = Path(chosen) if chosen else Path("~/.docker").expanduser()
    name = os.environ.get("DOCKER_CONTEXT")
    # Any of the files may be missing, or have another form in a later version.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if not name:
            name = json.loads((folder / "config.json").read_bytes())["currentContext"]
        known = hashlib.sha256(name.encode()).hexdigest()
        contexts = folder / "contexts"
        facts = json.loads((contexts / "meta" / known / "meta.json").read_bytes())
        found = facts["Endpoints"]["docker"]
        return Endpoint(
            str(found["Host"]),
            contexts / "tls" / known / "docker",
            not found.get("SkipTLSVerify", False),
        )
    return None
