"""Metrics of a node; silent where no SDK of OpenTelemetry is set up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation


class Watched(Protocol):
    """One open agent."""

    @property
    def slots(self) -> int:
        """Cells that it may have at once."""

    @property
    def busy(self) -> int:
        """Cells that runs and sessions use now."""

    @property
    def drivers(self) -> int:
        """Drivers that place runs here."""

    @property
    def takes_runs(self) -> bool:
        """True while it is neither sick nor draining."""


_open: list[Watched] = []


def watch(agent: Watched) -> None:
    """Report an agent from now on."""
    _open.append(agent)


def forget(agent: Watched) -> None:
    """Report an agent no more."""
    _open.remove(agent)


def _sum(amount: Callable[[Watched], int]) -> Any:
    def observe(options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(sum(map(amount, list(_open))))]

    return [observe]


_meter = metrics.get_meter("toolcell.cluster")
_meter.create_observable_gauge(
    "toolcell.node.slots",
    _sum(lambda agent: agent.slots),
    unit="{cell}",
    description="Cells that this node may have at once.",
)
_meter.create_observable_gauge(
    "toolcell.node.busy",
    _sum(lambda agent: agent.busy),
    unit="{cell}",
    description="Cells of this node in use by runs and sessions.",
)
_meter.create_observable_gauge(
    "toolcell.node.drivers",
    _sum(lambda agent: agent.drivers),
    unit="{driver}",
    description="Drivers that place runs on this node.",
)
_meter.create_observable_gauge(
    "toolcell.node.ready",
    _sum(lambda agent: agent.takes_runs),
    unit="{node}",
    description="1 while this node takes runs; 0 while it is sick or draining.",
)
runs = _meter.create_counter(
    "toolcell.node.runs",
    unit="{run}",
    description="Runs of this node that ended, by their status.",
)
