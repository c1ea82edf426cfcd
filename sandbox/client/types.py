"""Types that the parts of a cell's host end share."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ..config.settings import Enforcer, IsolationLevel, Limits
from .host_calls import HostCalls

if TYPE_CHECKING:
    from ..cell.wire.frames import Frame
    from ..network.egress import Egress
    from ..results.output import Output

Language = Literal["python", "bash", "node"]
"""The language of a program."""

Freshness = Literal["program", "cell"]
"""The part that no earlier program may have used: `program` is the interpreter and its
files, `cell` the whole cell."""

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
"""Takes each piece of output, with the name of its stream."""

OnDisplay = Callable[["Output"], None]
"""Takes each thing that a program displays."""


class Spawn(Protocol):
    """Starts a task that may live as long as the manager."""

    def __call__(
        self, function: Callable[..., Coroutine[Any, Any, object]], /, *args: Any
    ) -> object: ...


class Listener(NamedTuple):
    """Functions of the caller that follow a run while it goes on."""

    on_output: OnOutput | None = None
    on_display: OnDisplay | None = None

    def notify(self, frame: "Frame", displayed: "Sequence[Output]") -> None:
        """Pass on the output in a frame, and what it displayed."""
        if self.on_output is not None and frame.header["type"] in ("output", "tail"):
            self.on_output(frame.header["stream"], frame.payload)
        if self.on_display is not None:
            for output in displayed:
                self.on_display(output)


NOBODY = Listener()


class Program(NamedTuple):
    """A checked and packed program, ready for a cell."""

    code: bytes
    language: Language
    inputs: bytes
    """Variables, and secrets, as JSON; empty if there are none."""

    limits: Limits
    source: str = ""
    large_inputs: bytes = b""
    """Variables as JSON that go as a file; empty if there are none."""

    inputs_file: str = ""
    """The file of the work dir that they are in; empty until they are sent."""

    restricted_imports: tuple[str, ...] | None = None
    refused: tuple[str, ...] = ()
    """Reasons not to run it at all; empty if it may run."""

    unwatched: bool = False
    """True if the supervisor leaves memory to the kernel alone (probes only)."""

    final: bool = False
    """True if this is the cell's last program, so that it prepares no other."""

    again: bool = False
    """True if its cell may run another program after it."""

    branch: str | None = None
    """The interpreter that runs it and keeps its state; None is a new one."""

    calls: HostCalls | None = None
    """The functions of the host that it may call."""

    packages: str = ""
    """The path of its packages in the cell; empty if it has none."""

    egress: "Egress | None" = None
    """Its proxy to the network; None if it has none."""

    streamed: bool = False
    """True if output is passed on as it comes, and not kept for the result."""

    @property
    def max_pause_seconds(self) -> float:
        """Seconds for which its clock may stand still in all."""
        calls = 0.0 if self.calls is None else self.calls.max_pause_seconds
        requests = 0.0 if self.egress is None else self.egress.max_pause_seconds
        return max(calls, requests)

    def __repr__(self) -> str:
        """Show no value: inputs and secrets are among them."""
        return f"<{self.language} program of {len(self.code)} bytes>"


class CellTraits(NamedTuple):
    """The promises of a backend about the cells that it makes."""

    backend: str
    level: IsolationLevel
    layers: tuple[str, ...]
    enforced_by: Mapping[str, Enforcer] = MappingProxyType({})
    has_network: bool = True
    """False if programs can be given no network."""

    image: str = ""
    """The id of the image of its cells; empty if they have none."""


class RequestChannel(Protocol):
    """Something that a cell is asked through: the cell itself, or what passes beside
    its runs."""

    @property
    def traits(self) -> CellTraits:
        """The promises of its backend."""
        ...

    async def ask(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Return the header and the payload of an answer. Raises CellLostError."""
        ...


class CellProcess(Protocol):
    """The handle by which a cell is killed."""

    async def kill(self) -> None:
        """Kill every process of the cell; return when none is left. Never raises.

        Called again if it was cut short, and only then.
        """

    async def killed_for_memory(self, known: int, since: float) -> bool:
        """Return True if a cell that ended ran out of memory. Never raises.

        An engine may date a kill later than the supervisor has reported it. A backend
        that goes by `since` then takes it for another one.

        Args:
            known: The number of kills for memory that the supervisor has reported.
            since: The start of the last run, or the report of the last of these kills
                if that is later, by `time.monotonic`.
        """
