"""The values that the host's end of a cell is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from ..config.settings import Enforcer, IsolationLevel, Limits
from .host_calls import HostCalls

if TYPE_CHECKING:
    from ..network.egress import Egress

Language = Literal["python", "bash", "node"]
Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a cell is asked to run."""

    code: bytes
    source: str = ""
    language: Language
    inputs: bytes = field(repr=False)
    """Variables, and secrets, as JSON; empty if there are none."""

    limits: Limits
    restricted_imports: tuple[str, ...] | None = None
    refused: tuple[str, ...] = ()
    """Why it must not run at all; empty if it may."""

    unwatched: bool = False
    """Whether the supervisor leaves memory to the kernel alone (probes only)."""

    final: bool = False
    """Whether this is the cell's last program: it need not prepare another."""

    branch: str | None = None
    """The interpreter that runs it and keeps its state; None is a new one."""

    calls: HostCalls | None = None
    """What it may call on the host."""

    packages: str = ""
    """Where the cell shows its packages; empty if it has none."""

    egress: Egress | None = None
    """Its way to the network."""

    streamed: bool = False
    """Whether output is passed on only, not kept for the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTraits:
    """What a backend promises about the cells that it makes."""

    backend: Literal["docker", "subprocess"]
    level: IsolationLevel
    layers: tuple[str, ...]
    enforced_by: dict[str, Enforcer] = field(default_factory=dict)
    required_layers: tuple[str, ...] = ()


class CellProcess(Protocol):
    """How a backend kills what it made."""

    async def kill(self) -> None:
        """Kill every process of the cell; return when none is left. Never raises.

        Called again if it was cut short, and only then.
        """

    async def killed_for_memory(self, known: int, since: float) -> bool:
        """Tell whether a cell that ended ran out of memory at last. Never raises.

        Args:
            known: How many kills for memory the supervisor has told of.
            since: When the last run began, by `time.monotonic`.
        """
