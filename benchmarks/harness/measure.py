"""Timing: contenders take turns in short bursts, medians are compared.

A machine that others use is slow for seconds at a time. Two things measured one
after the other may differ by that alone; two things measured in turns meet the
same weather, so their ratio holds where the milliseconds do not. The weather changes
between turns as well: a ratio is the median of those of about twenty stretches of
time, not that of two medians, one of which may have met more of the sun.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

Compare = Literal["faster", "share", "rate", "absolute"]
BURST = 10
"""Runs of a quick contender before the next one has its turn."""

SLOW_BURST = 3
"""The same for a contender that takes more than about 100 ms."""

QUICK_BURST = 100
"""The same for one that takes less than about 1 ms. A turn of ten would be over before
the caches hold what it needs, which the turns of others, much longer, have emptied."""

CALLS = 50
"""Times that work of microseconds is done in one run: once is too short for a clock."""

_WARM_UPS = 2
_STRETCHES = 20
_LEAST = 3
"""Values of each contender that a stretch must have."""


class Missing(Exception):
    """This machine lacks what a row needs; the message says what."""


class WrongResult(Exception):
    """Something that is measured did not do its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One way to do a piece of work."""

    name: str
    run: Callable[[], Awaitable[float | None]]
    """Does the work once; may return milliseconds by its own clock."""

    settle: Callable[[], Awaitable[None]] | None = None
    """Waits, off the clock, until what an earlier run left has been cleared away."""

    burst: int = BURST


@dataclass(slots=True, kw_only=True)
class Sample:
    """The measurements of one contender."""

    name: str
    unit: str = "ms"
    values: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    """By the contender's own clock, if it has one."""

    def by_own_clock(self) -> Sample:
        """Return what the contender itself measured."""
        return Sample(name=self.name, unit=self.unit, values=self.own)

    @property
    def p50(self) -> float:
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        return self._percentile(0.95)

    @property
    def p99(self) -> float:
        return self._percentile(0.99)

    def split(self, count: int) -> list[list[float]]:
        """Return the values in `count` stretches of time, each about as long."""
        ends = [len(self.values) * number // count for number in range(count + 1)]
        return [self.values[start:end] for start, end in pairwise(ends)]

    def slowest(self) -> Sample:
        """Return what one in a hundred takes, in each of the stretches."""
        parts = self.split(min(_STRETCHES, len(self.values)))
        values = [Sample(name=self.name, values=part).p99 for part in parts]
        return Sample(name=self.name, unit=self.unit, values=values)

    def _percentile(self, share: float) -> float:
        ordered = sorted(self.values)
        return ordered[math.ceil(share * len(ordered)) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Our work against one baseline, or against a fixed bound.

    `compare` says what the ratio is and which way it must go: "faster" is
    baseline / ours, at least `gate`; "share" is ours / baseline, at most `gate`;
    "rate" is ours / baseline of things per second, at least `gate`; "absolute"
    has no baseline, ours is at most `gate`. Without a gate it is only reported.
    """

    work: str
    ours: Sample
    compare: Compare
    baseline: Sample | None = None
    gate: float | None = None

    @property
    def ratio(self) -> float | None:
        if self.baseline is None:
            return None
        shares = _shares(self.ours, self.baseline)
        if self.compare == "faster":
            return statistics.median(1 / share for share in shares)
        return statistics.median(shares)

    @property
    def passed(self) -> bool | None:
        """True if the gate holds; None where there is none."""
        value = self.ours.p50 if self.compare == "absolute" else self.ratio
        if self.gate is None or value is None:
            return None
        if self.compare in ("faster", "rate"):
            return value >= self.gate
        return value <= self.gate

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        return {
            "work": self.work,
            "compare": self.compare,
            "ours": _sample_json(self.ours),
            "baseline": _sample_json(self.baseline) if self.baseline else None,
            "ratio": self.ratio,
            "gate": self.gate,
            "passed": self.passed,
        }


def _shares(ours: Sample, baseline: Sample) -> list[float]:
    """Return ours / baseline in each stretch of the time that both took turns in."""
    fewest = min(len(ours.values), len(baseline.values))
    count = max(1, min(_STRETCHES, fewest // _LEAST))
    return [
        statistics.median(one) / statistics.median(other)
        for one, other in zip(ours.split(count), baseline.split(count), strict=True)
    ]


def _sample_json(sample: Sample) -> dict[str, Any]:
    return {
        "name": sample.name,
        "unit": sample.unit,
        "runs": len(sample.values),
        "p50": round(sample.p50, 4),
        "p95": round(sample.p95, 4),
    }


def repeated(name: str, work: Callable[[], Awaitable[object]]) -> Contender:
    """Return a contender that does a piece of work `CALLS` times, by its own clock."""

    async def run() -> float:
        started = time.perf_counter()
        for _ in range(CALLS):
            await work()
        return (time.perf_counter() - started) * 1_000

    return Contender(name=name, run=run)


async def take_turns(contenders: Sequence[Contender], runs: int) -> list[Sample]:
    """Measure all contenders in turns; a quick one gets at least `runs` runs.

    Slow ones get `SLOW_BURST / BURST` of that.
    """
    for contender in contenders:
        for _ in range(min(_WARM_UPS, runs)):
            await _once(contender, Sample(name="thrown away"))
    samples = [Sample(name=contender.name) for contender in contenders]
    for _ in range(math.ceil(runs / BURST)):
        for contender, sample in zip(contenders, samples, strict=True):
            for _ in range(min(contender.burst, runs)):
                await _once(contender, sample)
    return samples


async def _once(contender: Contender, sample: Sample) -> None:
    if contender.settle is not None:
        await contender.settle()
    started = time.perf_counter()
    own = await contender.run()
    sample.values.append((time.perf_counter() - started) * 1000)
    if own is not None:
        sample.own.append(own)


def against(
    work: str,
    samples: Sequence[Sample],
    gates: Sequence[float | None],
    compare: Compare = "faster",
) -> list[Row]:
    """Return a row for each baseline; the first sample is ours."""
    ours, *baselines = samples
    return [
        Row(work=work, ours=ours, baseline=baseline, compare=compare, gate=gate)
        for baseline, gate in zip(baselines, gates, strict=True)
    ]
