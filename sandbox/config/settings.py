"""Settings of a sandbox: limits, network, mounts, isolation."""

import sys
from collections.abc import Collection
from os.path import dirname, exists, join, realpath
from pathlib import Path
from shutil import which
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, field_validator, model_validator

from toolcell.core import InvalidInputError
from toolcell.core.paths import interpreter_folders

from . import mount_rules as mounts
from .backend_names import known_backend
from .base import SettingsModel
from .credentials import Credential, why_not_together
from .network import Network
from .package_rules import (
    NpmRequirement,
    PackageRules,
    Requirement,
    npm_dependency,
)

IsolationLevel = Literal["kernel", "container", "namespaces", "confined", "process"]
"""The wall around a cell: its own kernel (gVisor), a container, Linux namespaces,
rules of Landlock and seccomp on the machine's own namespaces, or a process with limits
alone."""

Enforcer = Literal["cgroup", "watchdog", "rlimit", "affinity"]
"""The means by which a limit is held."""

LEVELS: tuple[IsolationLevel, ...] = (
    "process",
    "confined",
    "namespaces",
    "container",
    "kernel",
)
"""Isolation levels from the weakest to the strongest."""

ENFORCERS: tuple[Enforcer, ...] = ("affinity", "rlimit", "watchdog", "cgroup")
"""Enforcers of a limit from the weakest to the strongest."""

_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
Name = Annotated[str, Field(pattern=_NAME, max_length=256)]
_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class LimitRule(NamedTuple):
    """The way a limit is held, as a part of its annotation in `Limits`."""

    enforcer: Enforcer | None = None
    """The enforcer where no cgroup holds it; None: this process, or a file system."""

    in_cgroup: bool = False
    """True if a cgroup holds it where there is one."""

    of_cell: bool = False
    """True if cells are made with it: a run with another value needs another cell."""

    rlimit: str = ""
    """Its rlimit, as `cell/kernel/confine.py` names it; empty if it has none."""


class Limits(SettingsModel):
    """The resources that one run may use.

    Every limit is held by something outside the program;
    `ExecutionResult.usage.enforced_by` names it. Sizes in `_mib` are 2**20 bytes.
    """

    wall_seconds: Annotated[_Seconds, LimitRule("watchdog")] = 30.0
    """Seconds of real time. When it is reached the run's processes are killed
    and the status is `timeout`."""

    cpu_seconds: Annotated[_Seconds | None, LimitRule("watchdog")] = None
    """Seconds of CPU time of all processes together. When it is reached the run
    is killed and the status is `cpu_limit`. None: no limit but `wall_seconds`."""

    cpus: Annotated[
        float,
        Field(ge=0.05, le=1024, allow_inf_nan=False),
        LimitRule("affinity", in_cgroup=True, of_cell=True),
    ] = 1.0
    """CPUs' worth of time per second. When it is reached the program is slowed,
    never killed. Held by affinity, where only that exists, it is rounded up."""

    memory_mib: Annotated[
        int,
        Field(ge=32, le=1_048_576),
        LimitRule("watchdog", in_cgroup=True, of_cell=True),
    ] = 256
    """MiB of memory of all processes and scratch files together. When it is
    reached the kernel, or a watchdog where no cgroup holds memory, kills the
    program and the status is `out_of_memory`."""

    pids: Annotated[
        int,
        Field(ge=4, le=32_768),
        LimitRule("rlimit", in_cgroup=True, of_cell=True, rlimit="processes"),
    ] = 64
    """Processes and threads, the supervisor's included. When it is reached
    fork and thread creation fail."""

    disk_mib: Annotated[int, Field(ge=1, le=65_536), LimitRule(of_cell=True)] = 64
    """MiB of the work dir, and as much each of /tmp and /dev/shm; all three live
    in memory and count as such. When it is reached writes fail with ENOSPC; a
    program that dies of it has the status `disk_limit`."""

    output_bytes: Annotated[int, Field(ge=2, le=2**40), LimitRule("watchdog")] = (
        1_048_576
    )
    """Bytes kept of each of stdout and stderr, 32 MiB at most, or streamed. When it
    is reached the middle is left out and counted in `truncated`, and the program
    runs on."""

    stop_at_output_limit: Annotated[bool, LimitRule()] = False
    """True kills the run when it reaches `output_bytes`, with the status
    `output_limit`."""

    open_files: Annotated[
        int,
        Field(ge=16, le=65_536),
        LimitRule("rlimit", of_cell=True, rlimit="open_files"),
    ] = 256
    """File descriptors per process. When it is reached open() fails with EMFILE."""

    connections: Annotated[int, Field(ge=1, le=1_000_000), LimitRule()] = 1000
    """Connections that one run may ask for over the network, refused ones included;
    128 at once, others wait. When it is reached further ones are closed unanswered
    and not recorded."""

    network_bytes: Annotated[int, Field(ge=1, le=2**40), LimitRule()] = 1_073_741_824
    """Bytes of one run over the network, both directions together. When it is reached
    its connections are closed, further ones are refused, and the program runs on."""

    code_bytes: Annotated[int, Field(ge=1, le=33_554_432), LimitRule()] = 1_048_576
    """Bytes of the program's UTF-8 text. More is refused with InvalidInputError before
    a cell is spent. Inputs, arguments and standard input that are larger together go as
    a file of the cell, which the program never sees."""

    input_bytes: Annotated[int, Field(ge=1, le=268_435_456), LimitRule()] = 33_554_432
    """Bytes of the inputs of a program as JSON, and as many each of its arguments and
    of its standard input. More is refused with InvalidInputError before a cell is
    spent. What goes as a file takes up `disk_mib` and `memory_mib` as any other."""

    @property
    def of_cell(self) -> dict[str, float]:
        """The limits that cells are made with, by name."""
        return {
            name: getattr(self, name) for name, rule in LIMITS.items() if rule.of_cell
        }

    def narrowed_by(self, other: "Limits") -> "Limits":
        """Return these limits with the fields that were set in `other`.

        Raises:
            InvalidInputError: A field of `other` is wider than here.
        """
        changes = {name: getattr(other, name) for name in other.model_fields_set}
        wider = sorted(n for n, v in changes.items() if _wider(v, getattr(self, n)))
        if wider:
            raise InvalidInputError(
                f"a run can only narrow limits; wider here: {', '.join(wider)}",
                hint="raise them in SandboxConfig(limits=...)",
            )
        return self.model_copy(update=changes)


def _wider(mine: float | None, theirs: float | None) -> bool:
    if isinstance(theirs, bool):
        return theirs and not mine
    return theirs is not None and (mine is None or mine > theirs)


LIMITS: dict[str, LimitRule] = {
    name: rule
    for name, field in Limits.model_fields.items()
    for rule in field.metadata
    if isinstance(rule, LimitRule)
}
"""The rule of each limit."""


def enforcers(
    *, cgroup: Collection[str] = (), missing: Collection[str] = ()
) -> dict[str, Enforcer]:
    """Return the enforcer of each limit that is held in cells.

    Args:
        cgroup: Limits that a cgroup holds, where their rule says that one can.
        missing: Limits that nothing holds but a cgroup.
    """
    found: dict[str, Enforcer] = {}
    for name, rule in LIMITS.items():
        if rule.in_cgroup and name in cgroup:
            found[name] = "cgroup"
        elif rule.enforcer is not None and name not in missing:
            found[name] = rule.enforcer
    return found


class Mount(SettingsModel):
    """A folder or file of this machine that programs find in their cell.

    It is made without set-uid programs and devices, and stays as it is when a
    cell ends. Programs have their own uid: the files must be open to others,
    except on the subprocess backend of an ordinary user. Refused are folders of
    the system, of toolcell itself and of people (`/`, `/etc`, `/root`, a home and
    its settings), sockets, and whatever contains one of these; links are followed
    first.
    """

    source: Annotated[str, Field(min_length=1, max_length=512)]
    """An absolute path of this machine, at most 512 characters."""

    target: Annotated[str, Field(min_length=2, max_length=512)]
    """The path in the cell, such as `/data`, at most 512 characters; not one of the
    cell's own folders."""

    read_only: bool = True
    """False lets programs write there. Their files are not counted by `disk_mib`, and
    are not to be trusted: links in them may lead anywhere."""

    @model_validator(mode="after")
    def _harmless(self) -> "Mount":
        why = mounts.why_not_source(self.source, read_only=self.read_only)
        if why := why or mounts.why_not_target(self.target):
            raise ValueError(why)
        return self

    @property
    def bind(self) -> mounts.Bind:
        """The mount as backends handle it."""
        return mounts.Bind(self.source, self.target, self.read_only)


class CodePolicy(SettingsModel):
    """A static check of a program's imports and names, before it gets a cell.

    It answers early and with line numbers, and is no security boundary: a program
    that gets past it is confined by its cell as any other.
    """

    imports: tuple[str, ...] = ()
    """Modules that may be imported, with their submodules."""

    denied_names: tuple[str, ...] = (
        "eval",
        "exec",
        "compile",
        "__import__",
        "open",
        "input",
        "breakpoint",
    )
    """Names that may not be used anywhere in the source."""


_STRONGEST: dict[str, IsolationLevel] = {
    "subprocess": "namespaces",
    "process": "process",
}
"""The strongest isolation of backends that have no image."""


def is_weaker(level: IsolationLevel, wanted: IsolationLevel) -> bool:
    """Return True if a level isolates less than another."""
    return LEVELS.index(level) < LEVELS.index(wanted)


class SandboxConfig(SettingsModel):
    """The configuration of a `SandboxManager`; its defaults are closed."""

    backend: Annotated[str, AfterValidator(known_backend)] = "auto"
    """`docker`, `subprocess`, `process`, or the name of one that an installed package
    offers (docs/backends.md). `auto` takes Docker where its engine answers, else the
    subprocess backend if `minimum_isolation` allows that and neither `runtime` nor
    `image` is named; it never takes one of another package."""

    minimum_isolation: IsolationLevel = "confined"
    """The weakest isolation level that is accepted. Nothing weaker is ever used."""

    strongest_isolation: Literal["kernel", "confined"] = "kernel"
    """The strongest isolation level that is tried. `confined` makes such cells on every
    machine, those with namespaces or Docker too; `kernel` takes the best there is."""

    minimum_enforcement: Enforcer = "affinity"
    """The weakest enforcer of a limit that is accepted (`Usage.enforced_by`)."""

    image: Annotated[str, Field(min_length=1, max_length=255)] = "python:3.12-slim"
    """The image of Docker cells; any with python3 3.8 or newer. Whoever names one asks
    for Docker: without the engine or the image nothing runs."""

    runtime: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """The engine's runtime (runc, runsc, kata); None takes the engine's default.
    Whoever names one asks for Docker: without the engine or the runtime nothing
    runs."""

    docker_host: str | None = None
    """The engine's address; None takes DOCKER_HOST or the local socket."""

    python: str | None = None
    """The interpreter of subprocess cells, an absolute path, and of no virtual
    environment; None takes the one that runs this process."""

    node: str | None = None
    """The node of subprocess cells, an absolute path; None takes the one on this
    process's PATH. Docker cells have that of their image."""

    limits: Limits = Limits.model_construct()
    """The limits of every run; a run may narrow them."""

    network: Network = Network.none
    """The hosts that programs may reach; a run may narrow them, a session may get
    others. Not in `process` isolation."""

    credentials: Annotated[tuple[Credential, ...], Field(max_length=64)] = ()
    """Credentials that programs use at inspected hosts and never have, at most 64."""

    env: dict[Name, str] = Field(default_factory=dict)
    """Environment variables of the programs, the only ones they see."""

    work_dir: Annotated[
        str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)
    ] = "/work"
    """The folder that programs start in, and their HOME, such as `/workspace` or
    `/home/user`; not a folder of the system. It is empty, whatever an image has there.
    Cells of `confined` and `process` isolation have folders of the machine instead, and
    refuse another one than the default."""

    mounts: Annotated[tuple[Mount, ...], Field(max_length=16)] = ()
    """Folders and files of this machine to show to programs, at most 16. Not in
    `process` isolation, and not with an engine on another machine."""

    packages: Annotated[tuple[Requirement, ...], Field(max_length=64)] = ()
    """Packages that every Python program can import, at most 64, such as
    `numpy==2.1.*`; they are allowed by standing here. Not in `process` isolation."""

    npm: Annotated[tuple[NpmRequirement, ...], Field(max_length=64)] = ()
    """Packages of npm that every program finds in `/node_modules`, at most 64, such as
    `lodash@4.17.21`; commands of theirs are in PATH. Cells need node and npm for it. On
    Docker, with an engine on this machine, and on `subprocess` with namespaces."""

    package_rules: PackageRules = PackageRules.model_construct()
    """The packages that runs and sessions may ask for beside `packages`."""

    code_policy: CodePolicy | None = None
    """A static check of Python programs; those that it refuses end as `refused`."""

    pool: Annotated[int, Field(ge=0, le=1024)] = 0
    """Never-used cells to keep ready. When they are used up a run waits for a
    new one to be made."""

    programs_per_cell: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Programs that `run`, `stream` and `map` have one cell run, one after the other,
    all of one agent, or, without an agent, of one batch of `map`; each finds the cell
    as the first one did. When it is reached the cell is destroyed. At 1, and without
    both, each has a never-used cell. More than 1 closes some calls to programs in
    containers, and takes more than `process` isolation; see docs/security.md."""

    session_idle_seconds: Annotated[float, Field(gt=0, le=86_400 * 30)] = 600.0
    """Seconds that a session may go without a run, a file or a command, from the end of
    the last one. When it is reached the session is ended; its next run raises
    CellLostError."""

    session_lifetime_seconds: Annotated[float, Field(gt=0, le=86_400 * 30)] = 3600.0
    """Seconds that a session may be open. When it is reached the session is ended,
    its run too."""

    max_concurrency: Annotated[int, Field(ge=1, le=4096)] = 32
    """Cells in use at once. When it is reached a run waits its turn; agents take
    turns."""

    max_queue: Annotated[int, Field(ge=0, le=1_000_000)] = 1024
    """Runs that may wait. When it is reached a run is refused with
    SandboxUnavailableError."""

    @field_validator("python", "node")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("must be an absolute path")
        return value

    @field_validator("python")
    @classmethod
    def _no_virtual_environment(cls, value: str | None) -> str | None:
        if value is not None and exists(join(dirname(dirname(value)), "pyvenv.cfg")):
            raise ValueError(
                "is of a virtual environment, whose packages cells do not find: name"
                f" its interpreter, {realpath(value)}, and the packages in `packages`"
            )
        return value

    @field_validator("env")
    @classmethod
    def _no_nul(cls, value: dict[str, str]) -> dict[str, str]:
        if any("\0" in text for text in value.values()):
            raise ValueError("values must not hold a NUL character")
        return value

    @field_validator("mounts")
    @classmethod
    def _apart(cls, value: tuple[Mount, ...]) -> tuple[Mount, ...]:
        binds = [mount.bind for mount in value]
        real = [bind._replace(source=realpath(bind.source)) for bind in binds]
        if why := mounts.overlap(real) or mounts.why_not_fixed(binds):
            raise ValueError(why)
        return value

    @field_validator("npm")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len({npm_dependency(each)[0] for each in value}) < len(value):
            raise ValueError("each package has one version")
        return value

    @model_validator(mode="after")
    def _possible(self) -> "SandboxConfig":
        binds = [mount.bind for mount in self.mounts]
        if self.npm:
            binds.append(mounts.Bind("npm", mounts.NODE_MODULES, read_only=True))
        why = mounts.why_not_work_dir(self.work_dir, binds) or mounts.overlap(binds)
        if why:
            raise ValueError(why)
        if why := why_not_together(self.credentials, self.network.inspect):
            raise ValueError(why)
        strongest = _STRONGEST.get(self.backend)
        if strongest and is_weaker(strongest, self.minimum_isolation):
            raise ValueError(
                f"the {self.backend} backend never gives {self.minimum_isolation!r} "
                "isolation; use backend='docker'"
                if self.minimum_isolation in ("container", "kernel")
                else f"the {self.backend} backend gives {strongest!r} isolation alone; "
                f"set minimum_isolation={strongest!r}, or use another backend"
            )
        weak = self.minimum_isolation in ("confined", "process")
        docker = self.backend == "docker" or self.names_docker
        if self.strongest_isolation == "confined" and (docker or not weak):
            raise ValueError("more than strongest_isolation='confined' is asked for")
        if strongest and self._names_image:
            named = f"runtime {self.runtime!r}" if self.runtime else "image"
            raise ValueError(
                f"the {self.backend} backend has no {named}; use backend='docker'"
            )
        return self

    @model_validator(mode="after")
    def _keeps_interpreters(self) -> "SandboxConfig":
        binds = [mount.bind for mount in self.mounts if not mount.read_only]
        if binds and (why := mounts.why_not_kept(binds, self.interpreters)):
            raise ValueError(why)
        return self

    @property
    def interpreters(self) -> list[Path]:
        """The programs that run in cells, and the folders of the Python."""
        python = self.python or sys.executable
        named = [Path(path) for path in (python, self.node or which("node")) if path]
        return [*named, *interpreter_folders(python or None)]

    @property
    def wants_packages(self) -> bool:
        """True if programs may have packages."""
        return bool(self.packages or self.package_rules.allow)

    @property
    def names_docker(self) -> bool:
        """True if `auto` means Docker: a runtime or an image is named."""
        return self.backend in ("auto", "docker") and self._names_image

    @property
    def _names_image(self) -> bool:
        return self.runtime is not None or "image" in self.model_fields_set
