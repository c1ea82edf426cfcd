"""Metrics of drivers; silent where no SDK of OpenTelemetry is set up.

No label is the name of a node, an agent or anything else that grows without end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation


class Watched(Protocol):
    """The nodes of one open driver."""

    @property
    def waiting(self) -> int:
        """Runs and sessions that wait for a place."""

    @property
    def states(self) -> Iterable[str]:
        """The state of each node with a link."""


_STATES = ("ready", "draining", "sick")
_open: list[Watched] = []


def watch(nodes: Watched) -> None:
    """Report a driver from now on."""
    _open.append(nodes)


def forget(nodes: Watched) -> None:
    """Report a driver no more; again: nothing."""
    if nodes in _open:
        _open.remove(nodes)


def _queue(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(sum(each.waiting for each in list(_open)))]


def _nodes(options: CallbackOptions) -> Iterable[Observation]:
    found = Counter(state for each in list(_open) for state in each.states)
    return [
        Observation(found[state], {"toolcell.node.state": state}) for state in _STATES
    ]


_meter = metrics.get_meter("toolcell.cluster")
_meter.create_observable_gauge(
    "toolcell.cluster.queue",
    [_queue],
    unit="{run}",
    description="Runs and sessions that wait for a place on a node.",
)
_meter.create_observable_gauge(
    "toolcell.cluster.nodes",
    [_nodes],
    unit="{node}",
    description="Nodes with a link, by their state.",
)
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
)
