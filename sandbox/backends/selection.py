"""Chooses the backend for a configuration: never a weaker one than it asks for."""

from __future__ import annotations

from toolcell.core import ConfigError, SandboxUnavailableError, ToolcellError

from ..client.backend import Backend
from ..client.types import CellTraits
from ..config.backend_names import offered, package_of
from ..config.mount_rules import require_local
from ..config.network import Network
from ..config.settings import (
    ENFORCERS,
    LEVELS,
    LIMITS,
    IsolationLevel,
    SandboxConfig,
    is_weaker,
)


async def open_backend(config: SandboxConfig) -> tuple[Backend, tuple[str, ...]]:
    """Return a started backend, and notices about the choice for the user.

    Raises:
        ConfigError: The backend of another package cannot be loaded.
        SandboxUnavailableError: No backend here provides the isolation asked for.
    """
    if config.backend == "docker" or config.names_docker:
        return await _start_docker(config), ()
    if config.backend == "process":
        return await _start_process(config), ()
    if config.backend == "subprocess":
        return await _open_subprocess(config)
    if config.backend != "auto":
        return await _open_foreign(config)
    if config.strongest_isolation == "confined":
        return await _open_subprocess(config)
    try:
        return await _start_docker(config), ()
    except SandboxUnavailableError as error:
        if config.minimum_isolation in ("container", "kernel"):
            raise
        why = error
    try:
        backend, notices = await _open_subprocess(config)
    except SandboxUnavailableError as error:
        raise _neither(why, error) from None
    return backend, (f"using the subprocess backend: {why.message}", *notices)


def _neither(
    docker: SandboxUnavailableError, local: SandboxUnavailableError
) -> SandboxUnavailableError:
    """Return the error of a place that has no cells; what Docker lacks comes first.

    An engine that answers needs one command more, and this machine may never do.
    """
    hint = docker.hint if docker.details.get("reason") else local.hint
    return SandboxUnavailableError(
        f"{docker.message}; {local.message}", hint=hint, details=docker.details
    )


async def _start_docker(config: SandboxConfig) -> Backend:
    from .docker import DockerBackend

    backend = DockerBackend(config)
    await backend.start()
    return backend


async def _open_subprocess(config: SandboxConfig) -> tuple[Backend, tuple[str, ...]]:
    from .namespaces import SubprocessBackend

    backend = SubprocessBackend(config)
    try:
        await backend.start()
    except SandboxUnavailableError as error:
        # A cause that may pass weakens nothing.
        if config.minimum_isolation != "process" or "kernel" not in error.details:
            raise
        why = error.message
    else:
        return backend, backend.notices
    notice = f"no OS isolation, only RestrictedPython and rlimits: {why}"
    return await _start_process(config), (notice,)


async def _start_process(config: SandboxConfig) -> Backend:
    from .restricted import ProcessBackend

    backend = ProcessBackend(config)
    await backend.start()
    return backend


async def _open_foreign(config: SandboxConfig) -> tuple[Backend, tuple[str, ...]]:
    """Return the backend of another package, which was asked for by its name."""
    name = config.backend
    [entry] = offered()[name]
    package = package_of(entry)
    try:
        backend: Backend = entry.load()(config)
    except ToolcellError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the backend {name!r} of {package} cannot be used: "
            f"{type(error).__name__}: {error}",
            hint="repair that package, or use another backend",
        ) from error
    await backend.start()
    traits = backend.traits
    if traits.backend != name or traits.level not in LEVELS:
        await backend.aclose()
        raise ConfigError(
            f"the backend {name!r} of {package} calls itself {traits.backend!r}, "
            f"with {traits.level!r} isolation",
            hint=f"its traits must name {name!r} and one of {', '.join(LEVELS)}",
        )
    return backend, (f"cells are made by {package}, as backend={name!r} asks",)


def check_strength(config: SandboxConfig, traits: CellTraits) -> None:
    """Raise an error if a backend is weaker than the configuration.

    Raises:
        ConfigError: Its cells cannot run several programs, as is configured.
        SandboxUnavailableError: It is weaker in another way.
    """
    wanted = config.minimum_isolation
    if is_weaker(traits.level, wanted):
        raise SandboxUnavailableError(
            f"{traits.backend} gives {traits.level!r} isolation, "
            f"{wanted!r} was asked for",
            hint="choose a stronger `runtime` or `backend`; see `toolcell doctor`",
        )
    check_packages(config, traits.level)
    if config.mounts and traits.level == "process":
        raise SandboxUnavailableError(
            "'process' isolation has no file system of its own to mount into",
            hint="`toolcell doctor` says how to get namespaces, or use Docker",
        )
    _check_mounts(config, traits.level)
    _check_npm(config, traits)
    _check_work_dir(config, traits.level)
    check_network(config.network, traits)
    if config.programs_per_cell > 1 and traits.level == "process":
        raise ConfigError(
            "cells of 'process' isolation run one program each, and "
            f"programs_per_cell is {config.programs_per_cell}",
            hint="set programs_per_cell to 1, or use Docker or namespaces",
        )
    weakest = ENFORCERS.index(config.minimum_enforcement)
    for limit in (name for name, rule in LIMITS.items() if rule.in_cgroup):
        held = traits.enforced_by.get(limit)
        if weakest > 0 and (held is None or ENFORCERS.index(held) < weakest):
            raise SandboxUnavailableError(
                f"{limit} is held by {held or 'nothing'} here, "
                f"{config.minimum_enforcement!r} was asked for",
                hint="`toolcell doctor` says how to get cgroups",
            )


def _check_mounts(config: SandboxConfig, level: IsolationLevel) -> None:
    moved = [mount for mount in config.mounts if mount.source != mount.target]
    if level == "confined" and moved:
        raise SandboxUnavailableError(
            f"'confined' cells see {moved[0].source} at its own path, not at "
            f"{moved[0].target}",
            hint="name the source as the target, or use Docker or namespaces",
        )


def _check_npm(config: SandboxConfig, traits: CellTraits) -> None:
    shows = traits.backend in ("docker", "subprocess")
    if config.npm and (not shows or traits.level in ("confined", "process")):
        raise SandboxUnavailableError(
            f"{traits.level!r} cells of {traits.backend} show no packages of npm",
            hint="use Docker, or `subprocess` with namespaces; `toolcell doctor` says "
            "how to get them",
        )


def require_engine_here(config: SandboxConfig) -> None:
    """Refuse an engine on another machine, before anything is made for its cells.

    Raises:
        ConfigError: The configuration means one.
    """
    confined = config.strongest_isolation == "confined"
    if config.backend in ("auto", "docker") and not confined:
        from .docker_address import address

        require_local(address(config.docker_host))


def _check_work_dir(config: SandboxConfig, level: IsolationLevel) -> None:
    usual = SandboxConfig.model_fields["work_dir"].default
    if level in ("confined", "process") and config.work_dir != usual:
        raise SandboxUnavailableError(
            f"programs of {level!r} cells start in folders of this machine, not in "
            f"{config.work_dir}",
            hint="leave `work_dir` out, or use Docker or namespaces",
        )


def check_packages(config: SandboxConfig, level: IsolationLevel) -> None:
    """Raise SandboxUnavailableError if cells of a level cannot have packages."""
    if config.wants_packages and level == "process":
        raise SandboxUnavailableError(
            "'process' isolation imports no packages",
            hint="`toolcell doctor` says how to get namespaces, or use Docker",
        )


def check_network(network: Network, traits: CellTraits) -> None:
    """Raise SandboxUnavailableError if the cells of a backend have no network."""
    if network.mode == "none":
        return
    if traits.level == "process":
        raise SandboxUnavailableError(
            "'process' isolation has no network of its own to let anything out of",
            hint="`toolcell doctor` says how to get namespaces, or use Docker",
        )
    if not traits.has_network:
        raise SandboxUnavailableError(
            "this gVisor container has its host's network, and its namespaces none",
            hint="start runsc without `--network=host`, or use no `network`",
        )
