"""`toolcell bench`: measures cells and calls here, or other sandboxes beside cells."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import InvalidInputError

from ...terminal.output import print_json, print_notice, print_table
from ...terminal.signals import run_async
from ..base.options import AsJson, BackendOption, Image

if TYPE_CHECKING:
    from ...config.host_config import HostConfig

_BASELINE = "a bare interpreter"
_CALLS_A_RUN = 20


def bench(
    runs: Annotated[
        int, typer.Option(min=3, max=10_000, help="Measurements of each work.")
    ] = 20,
    backend: BackendOption = "auto",
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Measure other sandboxes beside toolcell: uv installs their newest"
            " releases, which run unconfined, as you.",
        ),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="With --peers, a folder for the results and their plots."),
    ] = None,
    image: Image = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine against `python -c pass`.

    This is a first impression. The measurements behind toolcell's promises are in
    benchmarks/run.py of a checkout, with named baselines and gates.
    """
    if peers:
        if backend != "auto":
            raise InvalidInputError("--peers measures cells of all backends", hint=None)
        _bench_peers(runs, image, report, as_json)
    elif report is not None or image is not None:
        raise InvalidInputError("--report and --image need --peers", hint=None)
    else:
        _bench_cells(runs, backend, as_json)


def _bench_peers(
    runs: int, image: str | None, report: Path | None, as_json: bool
) -> None:
    """Measure all contenders; print what was found, and write the report."""
    from datetime import UTC, datetime

    from toolcell.sandbox import SandboxConfig

    from ..peers import contenders, measure
    from ..peers.report import machine, make_folder, table_rows, write_report

    if report is not None:
        make_folder(report)
    tell = partial(print_notice, as_json=as_json)
    image = image or SandboxConfig().image
    found = run_async(measure.measure, contenders.CONTENDERS, runs, image, tell)
    results: dict[str, Any] = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "contenders": found,
    }
    if as_json:
        print_json(results)
    else:
        columns = ("sandbox", "version", "isolation", *measure.MEASURES)
        print_table(columns, table_rows(results))
    if report is not None:
        write_report(report, results)


def _bench_cells(runs: int, backend: str, as_json: bool) -> None:
    """Measure cells and calls of this installation, and print their times."""
    import statistics

    times = run_async(_measure, runs, backend)
    base = statistics.median(times[_BASELINE])
    rows = []
    for work, found in times.items():
        p95 = statistics.quantiles(found, n=20, method="inclusive")[-1]
        rows.append((work, statistics.median(found), p95))
    if as_json:
        facts = [
            {"work": work, "p50_ms": p50, "p95_ms": p95, "ratio": p50 / base}
            for work, p50, p95 in rows
        ]
        print_json({"runs": runs, "baseline": _BASELINE, "rows": facts})
        return
    shown = [
        (work, f"{p50:.3g} ms", f"{p95:.3g} ms", f"{p50 / base:.3g}x")
        for work, p50, p95 in rows
    ]
    print_table(("work", "p50", "p95", f"of {_BASELINE}"), shown)


async def _measure(runs: int, backend: str) -> dict[str, list[float]]:
    """Return milliseconds by work; the kinds of work take turns."""
    from toolcell.sandbox import SandboxManager

    from ...runtime.host import Host
    from ..base.cell_options import config_of

    config = config_of({"backend": backend})
    async with (
        SandboxManager(config) as sandbox,
        sandbox.session() as session,
        Host(_calling()) as host,
    ):

        async def spawn() -> None:
            subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)  # noqa: ASYNC221 - it is what is measured

        async def fresh() -> None:
            await sandbox.run("pass")

        async def again() -> None:
            await session.run("pass")

        async def call() -> None:
            for _ in range(_CALLS_A_RUN):
                await host.call("get_today_date", agent_id="bench")

        works: dict[str, Callable[[], Awaitable[None]]] = {
            _BASELINE: spawn,
            "a program in a new cell": fresh,
            "a program in a session": again,
            f"{_CALLS_A_RUN} guarded calls of a plain function": call,
        }
        for work in works.values():
            await work()
        times: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(runs):
            for name, work in works.items():
                began = time.perf_counter()
                await work()
                times[name].append((time.perf_counter() - began) * 1000)
        return times


def _calling() -> HostConfig:
    from ...config.host_config import HostConfig

    policy = {"agent_id": "bench", "allow": ["get_today_date"]}
    tables = {"tools": {"builtin": ["clock"]}, "policies": [policy]}
    return HostConfig.model_validate(tables)
