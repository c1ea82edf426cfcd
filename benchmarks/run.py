"""Measure toolcell against named baselines; see docs/benchmarks.md."""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
from harness.measure import Missing, Row, Sample, WrongResult
from harness.options import Options
from rich.console import Console
from rich.table import Table
from rows.runs import ROWS

from toolcell.core import ToolcellError
from toolcell.sandbox import SandboxConfig

_COLUMNS = (
    *("work", "p50", "p95", "runs"),
    *("baseline", "its p50", "its runs", "ratio", "gate", ""),
)
_GATE_TEXT = {
    "faster": "≥ {:g}x",
    "rate": "≥ {:g}x",
    "share": "≤ {:g}x",
    "absolute": "≤ {:g} {unit}",
}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py", description=f"Rows: {', '.join(ROWS)}."
    )
    parser.add_argument(
        "--only", nargs="+", choices=ROWS, metavar="NAME", help="measure these rows"
    )
    parser.add_argument(
        "--runs",
        type=_positive,
        default=200,
        help="of each quick piece of work (200); of a slow one three tenths of that",
    )
    parser.add_argument("--image", default=SandboxConfig().image)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument(
        "--gate", action="store_true", help="exit with 1 if a gate does not hold"
    )
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def main() -> int:
    """Measure, print, write; return the exit code."""
    wanted = arguments()
    options = Options(runs=wanted.runs, image=wanted.image)
    console = Console(width=None if sys.stdout.isatty() else 200)
    rows: list[Row] = []
    broken = False
    for name in wanted.only or ROWS:
        try:
            rows += anyio.run(functools.partial(ROWS[name], options))
        except Missing as error:
            console.print(f"{name}: left out, {error}", highlight=False)
        except (WrongResult, ToolcellError, TimeoutError, ExceptionGroup) as error:
            broken = True
            console.print(f"{name}: FAILED, {error!r}", highlight=False, markup=False)
    if rows:
        console.print(table(rows))
    if wanted.json is not None:
        figures = {"machine": machine(), "rows": [row.to_json() for row in rows]}
        wanted.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = any(row.passed is False for row in rows)
    return 1 if broken or (wanted.gate and missed) else 0


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    result = Table(*_COLUMNS)
    for row in rows:
        result.add_row(*cells(row))
    return result


def cells(row: Row) -> list[str]:
    """Return a row's columns as text."""
    ours, other = row.ours, row.baseline
    gate = ""
    if row.gate is not None:
        gate = _GATE_TEXT[row.compare].format(row.gate, unit=ours.unit)
    verdict = {True: "pass", False: "FAIL", None: ""}[row.passed]
    return [
        row.work,
        _figure(ours, ours.p50),
        # The worst twentieth of a handful of rounds says nothing.
        _figure(ours, ours.p95) if ours.unit == "ms" else "",
        str(len(ours.values)),
        other.name if other else "",
        _figure(other, other.p50) if other else "",
        str(len(other.values)) if other else "",
        f"{row.ratio:.2f}x" if row.ratio is not None else "",
        gate,
        verdict,
    ]


def _figure(sample: Sample, value: float) -> str:
    digits = 0 if value >= 100 else 2
    return f"{value:.{digits}f} {sample.unit}"


def machine() -> dict[str, str]:
    """Say where the figures come from."""
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "processor": _processor(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    raise SystemExit(main())
