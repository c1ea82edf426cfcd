"""Metrics of nodes."""

from __future__ import annotations

from typing import Protocol

from opentelemetry import metrics

from toolcell.core.gauges import Gauges


class MeasuredAgent(Protocol):
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


agents = Gauges[MeasuredAgent]("toolcell.cluster")
agents.add_sum(
    "toolcell.node.slots",
    lambda agent: agent.slots,
    unit="{cell}",
    description="Cells that this node may have at once.",
)
agents.add_sum(
    "toolcell.node.busy",
    lambda agent: agent.busy,
    unit="{cell}",
    description="Cells of this node in use by runs and sessions.",
)
agents.add_sum(
    "toolcell.node.drivers",
    lambda agent: agent.drivers,
    unit="{driver}",
    description="Drivers that place runs on this node.",
)
agents.add_sum(
    "toolcell.node.ready",
    lambda agent: agent.takes_runs,
    unit="{node}",
    description="1 while this node takes runs; 0 while it is sick or draining.",
)
runs = metrics.get_meter("toolcell.cluster").create_counter(
    "toolcell.node.runs",
    unit="{run}",
    description="Runs of this node that ended, by their status.",
)
