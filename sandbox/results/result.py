"""What came of a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ..config.settings import Enforcer, IsolationLevel

Status = Literal[
    "ok",
    "error",
    "exit",
    "timeout",
    "cpu_limit",
    "out_of_memory",
    "output_limit",
    "disk_limit",
    "crashed",
    "killed",
    "cancelled",
    "refused",
]
"""How a run ended; the causes are listed in docs/security.md."""


class _ResultModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class OpaqueValue(_ResultModel):
    """A value that is not plain JSON, or too large: its type and a short repr."""

    type: str
    repr: str = ""


class ExceptionInfo(_ResultModel):
    """An exception that ended the program, in the program's own words."""

    type: str
    message: str
    traceback: str


class Truncated(_ResultModel):
    """Bytes left out of the middle of each stream; 0 where nothing is missing."""

    stdout: int = 0
    stderr: int = 0

    def __bool__(self) -> bool:
        return bool(self.stdout or self.stderr)


class Usage(_ResultModel):
    """What the run used, measured from outside the program."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    """CPU milliseconds of all processes of the run: by the cgroup where a cell has
    one and is used once, else by wait4(2), which knows nothing of children that their
    parent does not wait for."""

    peak_memory_bytes: int = 0
    """Largest resident size of one process of the run, from wait4(2)."""

    connections: int = 0
    """Connections that it asked for over the network, refused ones included."""

    network_bytes: int = 0
    """Bytes over the network, both directions together."""

    enforced_by: dict[str, Enforcer] = Field(default_factory=dict)
    """Who held each limit; the limits that are not listed need no holder."""


class Isolation(_ResultModel):
    """The walls that stood around the run."""

    level: IsolationLevel
    layers: tuple[str, ...] = ()


class Artifact(_ResultModel):
    """A file that a program left under `./artifacts`, or that was made of its plots."""

    name: str
    """Its path below `artifacts`."""

    mime: str
    data: bytes = Field(repr=False, exclude=True)
    size: int
    """Bytes."""

    sha256: str


class Connection(_ResultModel):
    """A connection over the network that a program asked for."""

    host: str
    """The name or address that it asked for; empty if it asked for nothing
    readable."""

    port: int
    verdict: Literal["allowed", "refused", "failed"]
    """`refused` by the rules; `failed`: it was allowed, and nobody was reached."""

    reason: str = ""
    """Why it was refused, failed, or ended before its time."""

    address: str | None = None
    """The address that was connected to."""

    bytes_in: int = 0
    """Bytes to the program."""

    bytes_out: int = 0
    """Bytes from the program."""


class ExecutionResult(_ResultModel):
    """One run, finished.

    Signal, deadline, caps and counters come from outside the program and can be
    trusted; `exception`, `stdout`, `stderr` and `value` are the program's word.
    """

    status: Status
    value: JsonValue | OpaqueValue = None
    """The value of the program's last expression, if it is plain JSON of at most
    512 KiB and 100,000 values; else its description."""

    stdout_bytes: bytes = Field(default=b"", repr=False, exclude=True)
    stderr_bytes: bytes = Field(default=b"", repr=False, exclude=True)
    stdout: str = ""
    """Standard output as text; what is not UTF-8 is replaced."""

    stderr: str = ""
    """Standard error as text; what is not UTF-8 is replaced."""

    truncated: Truncated = Truncated()
    exception: ExceptionInfo | None = None
    exit_code: int | None = None
    """The program's exit code; None when a signal ended it or it never ran."""

    signal: str | None = None
    """The name of the signal that ended the program, as `SIGSEGV`."""

    self_reported: bool = False
    """True where the status rests on the program's own word: an uncaught
    MemoryError or ENOSPC."""

    reasons: tuple[str, ...] = ()
    """For `refused`: what the code policy found, each with its line."""

    warnings: tuple[str, ...] = ()
    """What a careful reader should know, such as forged result frames."""

    state: Literal["kept", "lost"] | None = None
    """For a session: whether the variables of this run are there for the next."""

    artifacts: tuple[Artifact, ...] = ()
    connections: tuple[Connection, ...] = ()
    """What was asked for over the network, in the order in which it was opened."""

    usage: Usage = Usage()
    backend: Literal["docker", "subprocess"] | None = None
    isolation: Isolation | None = None

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end."""
        return self.status == "ok"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values; raw bytes are left out."""
        return self.model_dump(mode="json")
