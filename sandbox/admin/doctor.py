"""Tries every layer of isolation on this machine and reports which ones hold."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import anyio
from pydantic import BaseModel, ConfigDict

from toolcell.core import ToolcellError

from ..backends import docker_engine
from ..backends.launcher import NAMESPACES_FIX
from ..client.backend import Backend
from ..client.cell import Cell
from ..client.types import Program
from ..config.settings import Limits, SandboxConfig
from . import kernel_helpers

_CGROUP_FIX = "systemd-run --user --scope -p Delegate=yes toolcell ..., or run as root"
_DOCKER_FIX = "install and start Docker, or set DOCKER_HOST"
_TIMED_CELLS = 3
_TIMED_SECONDS = 0.1
_USUAL_POOL = 8
_FIXED_RUNC = ((1, 2, 8), (1, 3, 3))
_NAMESPACES = {
    "user": 0x10000000,
    "mount": 0x00020000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}

_PROBE = """\
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
USER, uid = 0x10000000, os.geteuid()
def entered(flags):
    if libc.unshare(flags) != 0:
        return ctypes.get_errno()
    if flags & USER:
        try:
            users = os.open("/proc/self/uid_map", os.O_WRONLY)
            os.write(users, b"%d %d 1" % (uid, uid))
        except OSError as error:
            return error.errno
    return 0
def attempt(flags):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, str(entered(flags)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(read, 16))
result = {}
for name, flag in json.loads(sys.argv[1]).items():
    error = attempt(flag)
    if error and flag != USER:
        error = attempt(flag | USER)
    result[name] = os.strerror(error) if error else ""
print(json.dumps(result))
"""


class DoctorCheck(BaseModel):
    """The finding about one layer of isolation or one service."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str
    ok: bool
    """True if it works here."""

    detail: str = ""
    """A version, a cause or a measurement; may be empty."""

    fix: str = ""
    """A command or an advice that makes it work; empty if `ok`."""


_Findings: TypeAlias = tuple[list[DoctorCheck], str | None]
"""The findings about a backend, and the level of its cells if they run."""


class DoctorReport(BaseModel):
    """The findings of `toolcell doctor`."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    backend: str | None
    """The backend that the configuration takes here; None if none can be taken."""

    level: str | None
    """The isolation level of that backend."""

    checks: tuple[DoctorCheck, ...]

    summary: str = ""
    """A sentence: where programs run here, and the one thing that would raise that."""


async def diagnose(config: SandboxConfig | None = None) -> DoctorReport:
    """Try Docker and this machine with real cells; report which layers hold.

    Backends of other packages are not tried: `backend="auto"` never takes them.
    It starts, and removes, a few cells of each. A backend that fails is a
    finding, never an exception.

    Args:
        config: The configuration to try; None takes the defaults.
    """
    config = config or SandboxConfig()
    found: dict[str, _Findings] = {}

    async def look(name: str, checks: Awaitable[_Findings]) -> None:
        found[name] = await checks

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, "subprocess", _subprocess_checks(config))
        tasks.start_soon(look, "docker", _docker_checks(config))
    backend = level = None
    of_docker, of_here = found["docker"][1], found["subprocess"][1]
    if of_docker and config.backend != "subprocess":
        backend, level = "docker", of_docker
    elif of_here and config.backend != "docker" and not config.names_docker:
        backend, level = "subprocess", of_here
    checks = (*found["subprocess"][0], *found["docker"][0])
    return DoctorReport(
        backend=backend,
        level=level,
        checks=(*checks, *_kernel_helpers()),
        summary=_summary(backend, level, checks),
    )


def _summary(
    backend: str | None, level: str | None, checks: Sequence[DoctorCheck]
) -> str:
    """Return what runs here, and the next thing that would run it behind more walls."""
    here = f"programs run here in cells of {level!r} isolation ({backend})"
    so = "to raise it:"
    if level is None:
        here, so = "programs cannot run here", "to have them run:"
    fixes = {check.name: check.fix for check in checks if not check.ok}
    engine = "docker engine" not in fixes
    wanted = {
        None: ("docker cell", "subprocess cell", "docker engine"),
        "confined": ("docker cell", "subprocess level", "docker engine"),
        "namespaces": ("docker cell", "docker engine"),
        "container": ("gVisor",),
    }
    names = wanted.get(level, ())
    if not engine:
        names = tuple(name for name in names if name != "docker cell")
    fix = next((fixes[name] for name in names if fixes.get(name)), "")
    return f"{here}; {so} {fix}" if fix else here


def _probe_namespaces() -> list[DoctorCheck]:
    names = [f"namespace {name}" for name in _NAMESPACES]
    if sys.platform != "linux":
        why = f"there are no namespaces on {sys.platform}"
        return [
            DoctorCheck(name=name, ok=False, detail=why, fix=_DOCKER_FIX)
            for name in names
        ]
    command = [sys.executable, "-I", "-S", "-c", _PROBE, json.dumps(_NAMESPACES)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=30)  # noqa: S603
    found: dict[str, str] = json.loads(done.stdout or b"{}")
    return [
        DoctorCheck(
            name=f"namespace {name}",
            ok=found.get(name) == "",
            detail=found.get(name, "the probe did not answer"),
            fix="" if found.get(name) == "" else NAMESPACES_FIX,
        )
        for name in _NAMESPACES
    ]


async def _subprocess_checks(config: SandboxConfig) -> _Findings:
    from ..backends.namespaces import SubprocessBackend

    backend = SubprocessBackend(config)
    namespaces: list[DoctorCheck] = []

    async def probe() -> None:
        namespaces.extend(await docker_engine.in_thread(_probe_namespaces))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe)
            tried = await _try_cells(backend, config)
        if isinstance(tried, ToolcellError):
            fixes = [check.fix for check in namespaces if not check.ok]
            fix = fixes[0] if fixes else tried.hint or ""
            failed = DoctorCheck(
                name="subprocess cell", ok=False, detail=tried.message, fix=fix
            )
            return [*namespaces, failed], None
        layers, pool = tried
        why, level = backend.why_no_cgroups, backend.traits.level
        checks = [
            *namespaces,
            DoctorCheck(name="subprocess cell", ok=True, detail=", ".join(layers)),
            DoctorCheck(
                name="cgroup limits",
                ok=not why,
                detail=f"{why}; rlimits and a watchdog hold instead" if why else "",
                fix=_CGROUP_FIX if why else "",
            ),
            DoctorCheck(name="seccomp filter", ok="seccomp" in layers),
            pool,
        ]
        if level != "namespaces":
            checks.append(_weaker_level(level, backend.notices))
            checks.append(_shared_memory())
        return checks, level
    finally:
        await backend.aclose()


async def _try_cells(
    backend: Backend, config: SandboxConfig
) -> tuple[tuple[str, ...], DoctorCheck] | ToolcellError:
    """Start a backend and some cells; return a run's layers, and the pool's time.

    A backend that does not work is an error that is returned.
    """
    seconds: list[float] = []
    layers: tuple[str, ...] = ()
    try:
        await backend.start()
        while len(seconds) < _TIMED_CELLS and sum(seconds) < _TIMED_SECONDS:
            started = anyio.current_time()
            async with await backend.create_cell(config.limits) as cell:
                await cell.wait_ready()
                seconds.append(anyio.current_time() - started)
                layers = layers or await _layers_of_a_run(cell, config.limits)
    except ToolcellError as error:
        return error
    return layers, _pool_check(backend, config, statistics.median(seconds))


def _weaker_level(level: str, notices: Sequence[str]) -> DoctorCheck:
    return DoctorCheck(
        name="subprocess level",
        ok=False,
        detail="; ".join(notices) or level,
        fix=NAMESPACES_FIX,
    )


def _shared_memory() -> DoctorCheck:
    """Look for the folder of shared memory, which these cells have from the machine."""
    ok = Path("/dev/shm").is_dir()  # noqa: S108 - only looked at
    without = "no /dev/shm: locks, queues and shared memory of multiprocessing fail"
    fix = "mount a tmpfs at /dev/shm (`docker run` does it, but for `--ipc none`)"
    return DoctorCheck(
        name="shared memory",
        ok=ok,
        detail="" if ok else without,
        fix="" if ok else fix,
    )


async def _layers_of_a_run(cell: Cell, limits: Limits) -> tuple[str, ...]:
    program = Program(code=b"1", language="python", inputs=b"", limits=limits)
    result = cell.result(await cell.run(program), program)
    return result.isolation.layers if result.isolation else ()


def _pool_check(backend: Backend, config: SandboxConfig, each: float) -> DoctorCheck:
    """Report the seconds that a cell takes to get ready, and a whole pool."""
    size = config.pool or _USUAL_POOL
    would = "keeps" if config.pool else "would keep"
    return DoctorCheck(
        name=f"{backend.traits.backend} pool",
        ok=True,
        detail=f"a cell is ready in {each * 1000:.0f} ms; pool={size} {would} {size} "
        f"never-used cells and is full after {each * size:.1f} s",
    )


async def _docker_checks(config: SandboxConfig) -> _Findings:
    """Return the findings about Docker, and its isolation level if cells run."""
    name, quick = "docker engine", docker_engine.QUICK_SECONDS
    try:
        with anyio.fail_after(quick):
            facts = await docker_engine.in_thread(
                lambda: _engine_facts(config.docker_host)
            )
    except TimeoutError:
        why = f"it has not answered for {quick:g} seconds"
        return [DoctorCheck(name=name, ok=False, detail=why, fix="`docker info`")], None
    except Exception as error:  # noqa: BLE001 - any cause is worth reporting
        why = str(error).splitlines()[0][:200]
        return [DoctorCheck(name=name, ok=False, detail=why, fix=_DOCKER_FIX)], None
    cell_checks, level = await _docker_cell(config)
    return [
        DoctorCheck(name=name, ok=True, detail=facts["version"]),
        _runc_check(facts["runc"]),
        _gvisor_check(facts["runtimes"]),
        *cell_checks,
    ], level


async def _docker_cell(config: SandboxConfig) -> _Findings:
    from ..backends.docker import DockerBackend

    backend = DockerBackend(config)
    try:
        tried = await _try_cells(backend, config)
        traits = backend.traits
    finally:
        await backend.aclose()
    if isinstance(tried, ToolcellError):
        failed = DoctorCheck(
            name="docker cell", ok=False, detail=tried.message, fix=tried.hint or ""
        )
        return [failed], None
    layers, pool = tried
    held = ", ".join(f"{name}: {by}" for name, by in sorted(traits.enforced_by.items()))
    return [
        DoctorCheck(name="docker cell", ok=True, detail=", ".join(layers)),
        DoctorCheck(name="docker limits", ok=True, detail=held),
        pool,
    ], traits.level


def _kernel_helpers() -> list[DoctorCheck]:
    """Return facts, never faults, about what the kernel starts outside of cells."""
    return [
        DoctorCheck(name=name, ok=True, detail=detail)
        for name, detail in kernel_helpers.facts().items()
    ]


def _engine_facts(docker_host: str | None) -> dict[str, Any]:
    client = docker_engine.connect(docker_host)
    try:
        version, info = client.version(), client.info()
    finally:
        client.close()
    runc = next(
        (
            str(part.get("Version", ""))
            for part in version.get("Components") or []
            if part.get("Name") == "runc"
        ),
        "",
    )
    return {
        "version": str(version.get("Version", "")),
        "runc": runc,
        "runtimes": sorted(info.get("Runtimes") or {}),
    }


def _runc_check(version: str) -> DoctorCheck:
    """Warn of a runc older than the fixes of CVE-2025-31133, -52565 and -52881."""
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None:
        return DoctorCheck(name="runc version", ok=True, detail=version or "unknown")
    found = tuple(int(number) for number in numbers.groups())
    same_line = [fixed for fixed in _FIXED_RUNC if fixed[:2] == found[:2]]
    ok = found >= (same_line[0] if same_line else _FIXED_RUNC[-1])
    return DoctorCheck(
        name="runc version",
        ok=ok,
        detail=version,
        fix=""
        if ok
        else "update to runc 1.2.8, 1.3.3 or newer (CVE-2025-31133, "
        "CVE-2025-52565, CVE-2025-52881)",
    )


def _gvisor_check(runtimes: list[str]) -> DoctorCheck:
    ok = "runsc" in runtimes
    fix = "" if ok else "install gVisor and register `runsc` for 'kernel' isolation"
    return DoctorCheck(name="gVisor", ok=ok, detail=", ".join(runtimes), fix=fix)
