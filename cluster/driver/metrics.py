"""Metrics of drivers.

No label is the name of a node, an agent or anything else that grows without end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from toolcell.core.gauges import SECONDS, Gauges


class MeasuredDriver(Protocol):
    """The nodes of one open driver."""

    @property
    def waiting(self) -> int:
        """Runs and sessions that wait for a place."""

    @property
    def states(self) -> Iterable[str]:
        """The state of each node with a link."""


_STATES = ("ready", "draining", "sick")


def _by_state(drivers: Sequence[MeasuredDriver]) -> Iterator[Observation]:
    found = Counter(state for driver in drivers for state in driver.states)
    for state in _STATES:
        yield Observation(found[state], {"toolcell.node.state": state})


drivers = Gauges[MeasuredDriver]("toolcell.cluster")
drivers.add_sum(
    "toolcell.cluster.queue",
    lambda driver: driver.waiting,
    unit="{run}",
    description="Runs and sessions that wait for a place on a node.",
)
drivers.add(
    "toolcell.cluster.nodes",
    _by_state,
    unit="{node}",
    description="Nodes with a link, by their state.",
)
_meter = metrics.get_meter("toolcell.cluster")
placed = _meter.create_counter(
    "toolcell.cluster.placed",
    unit="{run}",
    description="Runs and sessions that got a place on a node.",
)
lost = _meter.create_counter(
    "toolcell.cluster.lost",
    unit="{run}",
    description="Runs and sessions in whose place a node was lost.",
)
retries = _meter.create_counter(
    "toolcell.cluster.retries",
    unit="{run}",
    description="Programs that were run again since their node was lost.",
)
overhead = _meter.create_histogram(
    "toolcell.cluster.run.overhead",
    unit="s",
    description="Time of a run at the driver, once placed, less its time in the cell.",
    explicit_bucket_boundaries_advisory=SECONDS,
)
