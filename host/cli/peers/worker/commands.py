"""Sandboxes that are a command for each program."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from tempfile import TemporaryFile

from .kind import Kind, Run
from .processes import output

PYTHON = "/usr/bin/python3"
"""The interpreter of programs where sandboxes are processes of this machine."""

_WAITS = "import sys; print(1, flush=True); sys.stdin.read()"


@asynccontextmanager
async def _command(*arguments: str) -> AsyncIterator[Run]:
    """Start a command for a program; the first line of its output is the result.

    What it says on standard error is the reason where it prints nothing.
    """
    with ExitStack() as stack:
        errors = stack.enter_context(TemporaryFile())

        def run(code: str) -> str:
            process = stack.enter_context(
                subprocess.Popen(
                    [*arguments, code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            )
            assert process.stdout is not None
            if line := process.stdout.readline():
                return line.decode()
            process.wait()
            errors.seek(0)
            raise RuntimeError(errors.read().decode(errors="replace"))

        yield run


@asynccontextmanager
async def bwrap(_: str) -> AsyncIterator[Kind]:
    """bubblewrap, with every namespace and a read-only `/usr`."""
    words = (
        *("bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib"),
        *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all"),
        *(PYTHON, "-I", "-c"),
    )
    yield Kind(
        version=output("bwrap", "--version").split()[-1],
        open=partial(_command, *words),
        waits=_WAITS,
        blocking=True,
    )


def _docker_version() -> str:
    return output("docker", "version", "--format", "{{.Server.Version}}").strip()


@asynccontextmanager
async def docker_run(image: str) -> AsyncIterator[Kind]:
    """A container for each program; the client stays as long as it."""
    words = ("docker", "run", "--rm", "-i", image, "python3", "-I", "-c")
    yield Kind(
        version=_docker_version(),
        open=partial(_command, *words),
        waits=_WAITS,
        blocking=True,
        containers=True,
    )


@asynccontextmanager
async def docker_exec(image: str) -> AsyncIterator[Kind]:
    """A process for each program, in one container."""
    # If this process is killed, the container ends with the day.
    sleeps = "import time; time.sleep(86_400)"
    words = ("docker", "run", "--rm", "--detach", image, "python3", "-c", sleeps)
    name = output(*words).strip()
    try:
        yield Kind(
            version=_docker_version(),
            open=partial(_command, "docker", "exec", "-i", name, "python3", "-I", "-c"),
            waits=_WAITS,
            blocking=True,
            containers=True,
        )
    finally:
        output("docker", "rm", "--force", name)
