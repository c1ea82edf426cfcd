"""Gauges of what is open in this process, and the buckets of histograms.

They are silent where no SDK of OpenTelemetry is set up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

T = TypeVar("T")

SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""The bounds of the buckets of histograms in seconds. Those of OpenTelemetry are for
milliseconds."""


class Gauges(Generic[T]):
    """Gauges that are read from all open things of one kind.

    Args:
        meter: The name of their meter.
    """

    def __init__(self, meter: str) -> None:
        self._meter = metrics.get_meter(meter)
        self._open: list[T] = []

    @contextmanager
    def watched(self, thing: T) -> Iterator[None]:
        """Report a thing while the context is open."""
        self._open.append(thing)
        try:
            yield
        finally:
            self._open.remove(thing)

    def add_sum(self, name: str, amount: Callable[[T], int], **about: str) -> None:
        """Add a gauge of the sum of an amount over all things.

        Args:
            name: The name of the gauge.
            amount: The amount of one thing.
            **about: `unit` and `description`.
        """
        self.add(name, lambda found: [Observation(sum(map(amount, found)))], **about)

    def add(
        self,
        name: str,
        observe: Callable[[Sequence[T]], Iterable[Observation]],
        **about: Any,
    ) -> None:
        """Add a gauge of what is observed in all things together."""

        def look(options: CallbackOptions) -> Iterable[Observation]:
            return observe(tuple(self._open))

        self._meter.create_observable_gauge(name, [look], **about)
