"""Which backend a configuration gets: never weaker than asked, never silently."""

from __future__ import annotations

from toolcell.core import SandboxUnavailableError

from .cell_client import Backend
from .config import SandboxConfig


async def open_backend(config: SandboxConfig) -> tuple[Backend, tuple[str, ...]]:
    """Return a started backend and what its choice is worth saying.

    Raises:
        SandboxUnavailableError: Nothing here gives what is asked for.
    """
    if config.backend == "docker":
        return await _start_docker(config), ()
    if config.backend == "subprocess":
        return await _open_subprocess(config)
    try:
        return await _start_docker(config), ()
    except SandboxUnavailableError as error:
        if config.minimum_isolation in ("container", "kernel"):
            raise
        why = error.message
    backend, notices = await _open_subprocess(config)
    return backend, (f"using the subprocess backend: {why}", *notices)


async def _start_docker(config: SandboxConfig) -> Backend:
    from .docker_backend import DockerBackend

    backend = DockerBackend(config)
    await backend.start()
    return backend


async def _open_subprocess(config: SandboxConfig) -> tuple[Backend, tuple[str, ...]]:
    from .subprocess_backend import SubprocessBackend

    backend = SubprocessBackend(config)
    try:
        await backend.start()
    except SandboxUnavailableError as error:
        if config.minimum_isolation != "process":
            raise
        why = error.message
    else:
        return backend, ()
    from .process_backend import ProcessBackend

    last = ProcessBackend(config)
    await last.start()
    return last, (f"no OS isolation, only RestrictedPython and rlimits: {why}",)
