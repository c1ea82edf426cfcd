"""The events that a streamed run yields, in order; `Finished` is always the last."""

from __future__ import annotations

from dataclasses import dataclass

from .output import Output
from .result import Artifact, Connection, ExecutionResult


@dataclass(frozen=True, slots=True)
class Stdout:
    """A piece of standard output, as it came."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Stderr:
    """A piece of standard error, as it came."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Displayed:
    """Something that the program displayed, between what it printed before and after.

    The result of the run has it as well.
    """

    output: Output


@dataclass(frozen=True, slots=True)
class ArtifactMade:
    """A file that the program left in `artifacts`."""

    artifact: Artifact


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection over the network that has ended, or was refused."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of the run. The result holds everything but the streamed output."""

    result: ExecutionResult


Event = Stdout | Stderr | Displayed | ArtifactMade | Connected | Finished
"""One item of a stream; `Finished` is the last."""
