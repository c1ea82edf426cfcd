"""The result of a run and its parts."""

from typing import Any, Literal

from pydantic import Field, JsonValue

from ..config.settings import Enforcer, IsolationLevel
from .output import Output
from .output import ResultModel as _ResultModel
from .process_end import signal_number
from .status import STATUSES, Status


class OpaqueValue(_ResultModel):
    """A value that is not plain JSON, or too large: its type and a short repr."""

    type: str
    repr: str = ""


class ExceptionInfo(_ResultModel):
    """An exception that ended the program, as the program reported it."""

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
    """The resources that a run used, measured from outside the program."""

    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    """CPU milliseconds of all processes of the run: by the cgroup where a cell has
    one and is used once, else by wait4(2), which knows nothing of children that their
    parent does not wait for."""

    peak_memory_bytes: int = 0
    """Largest resident size of one process of the run, from wait4(2)."""

    connections: int = 0
    """Connections that the program asked for, refused ones included."""

    network_bytes: int = 0
    """Bytes over the network, both directions together."""

    enforced_by: dict[str, Enforcer] = Field(default_factory=dict)
    """The enforcer of each limit; limits that are not listed need none."""


class Isolation(_ResultModel):
    """The walls that stood around the run."""

    level: IsolationLevel
    layers: tuple[str, ...] = ()
    reused: bool = False
    """True if programs of the same agent ran in the cell before; see
    `SandboxConfig.programs_per_cell`."""

    program_number: int = 1
    """The number of the program in its cell, from 1; each found the cell new."""


class Artifact(_ResultModel):
    """A file that a program left under `./artifacts`, or one of its plots."""

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
    """The name or address that the program asked for; empty if it was unreadable."""

    port: int
    verdict: Literal["allowed", "refused", "failed"]
    """`refused`: the rules forbid it. `failed`: it was allowed, and not reached."""

    reason: str = ""
    """The cause if it was refused, failed or ended early; else empty."""

    address: str | None = None
    """The IP address that was connected to; None if there was none."""

    bytes_in: int = 0
    """Bytes to the program."""

    bytes_out: int = 0
    """Bytes from the program."""


class ExecutionResult(_ResultModel):
    """The result of one run.

    `signal`, `usage`, `truncated` and the statuses of limits come from outside the
    program and can be trusted. `exception`, `stdout`, `stderr`, `value` and `outputs`
    come from the program, which can make them up.
    """

    status: Status
    value: JsonValue | OpaqueValue = None
    """The value of the program's last expression, if it is plain JSON of at most
    512 KiB and 100,000 values; else its description."""

    stdout_bytes: bytes = Field(default=b"", repr=False, exclude=True)
    stderr_bytes: bytes = Field(default=b"", repr=False, exclude=True)
    stdout: str = ""
    """Standard output as text; bytes that are not UTF-8 are replaced."""

    stderr: str = ""
    """Standard error as text; bytes that are not UTF-8 are replaced."""

    truncated: Truncated = Field(default_factory=Truncated)
    exception: ExceptionInfo | None = None
    exit_code: int | None = None
    """The program's exit code; None when a signal ended it or it never ran."""

    signal: str | None = None
    """The name of the signal that ended the program, as `SIGSEGV`."""

    self_reported: bool = False
    """True if the status rests on a report of the program alone: an uncaught
    MemoryError or ENOSPC."""

    reasons: tuple[str, ...] = ()
    """The findings of the code policy that refused the program, each with its line."""

    warnings: tuple[str, ...] = ()
    """Remarks for a careful reader, such as one about a forged result."""

    state: Literal["kept", "lost"] | None = None
    """`kept` if the next run of the session finds the variables of this one, `lost`
    if not; None outside of sessions."""

    outputs: tuple[Output, ...] = ()
    """All that the program displayed, in order: at most 256, of 16 MiB together. A last
    value that has more than a plain text is among them."""

    artifacts: tuple[Artifact, ...] = ()
    connections: tuple[Connection, ...] = ()
    """The connections that the program asked for, in the order of asking."""

    usage: Usage = Field(default_factory=Usage)
    backend: str | None = None
    """The name of the backend that made the cell; None where there was none."""

    isolation: Isolation | None = None

    @property
    def ok(self) -> bool:
        """True if the program ran to its end."""
        return self.status == "ok"

    @property
    def limit_reached(self) -> str:
        """The resource that the program used too much of, such as `memory`, or ""."""
        return STATUSES[self.status].limit

    @property
    def is_out_of_time(self) -> bool:
        """True if the program was ended at a limit on time."""
        return STATUSES[self.status].is_out_of_time

    @property
    def shell_exit_code(self) -> int:
        """The exit code of `toolcell run` for it, in the way of shells.

        It is 124 for a limit on time, and 128 and the number of a fatal signal.
        """
        code = STATUSES[self.status].exit_code
        if code is not None:
            return code
        return 128 + signal_number(self.signal) if self.signal else self.exit_code or 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values; raw bytes are left out."""
        return self.model_dump(mode="json")
