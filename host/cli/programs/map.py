"""`toolcell map`: a file of programs, each in its own cell."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import ConfigError
from toolcell.core.text.counted import counted

from ...terminal.exit_codes import EXIT_NOT_ALL_RUN
from ...terminal.output import print_json, print_notice
from ...terminal.signals import SignalExit, run_async
from ..base.options import (
    DEFAULT_CONFIG,
    AsJson,
    BackendOption,
    ConfigPath,
    CpuSeconds,
    Image,
    Isolation,
    Memory,
    OutputBytes,
    Packages,
    Runtime,
    Timeout,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from toolcell.sandbox import Sandbox, SandboxConfig

    from .batch_programs import ProgramsFile
    from .batch_results import ResultsFile


_CELLS = (
    "backend",
    "programs_per_cell",
    "timeout",
    "cpu_seconds",
    "memory",
    "output_bytes",
    "package",
    "image",
    "runtime",
    "isolation",
)


def map(  # noqa: A001 - the command is called so
    context: typer.Context,
    programs: Annotated[
        Path,
        typer.Argument(readable=False, help="JSON lines, CSV or Parquet; - is stdin."),
    ],
    out: Annotated[
        Path,
        typer.Option(readable=False, help="Takes JSON lines; or .csv, .parquet."),
    ],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Programs at once; else one a CPU.")
    ] = None,
    backend: BackendOption = "auto",
    programs_per_cell: Annotated[
        int, typer.Option(min=1, help="Programs that one cell may run, each as new.")
    ] = 1,
    timeout: Timeout = 30.0,
    cpu_seconds: CpuSeconds = None,
    memory: Memory = 256,
    output_bytes: OutputBytes = None,
    package: Packages = None,
    image: Image = None,
    runtime: Runtime = None,
    isolation: Isolation = "confined",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Run on the nodes of [cluster].")
    ] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    progress: Annotated[
        bool, typer.Option(help="Print a line for each hundredth that has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a file of programs, and go on where an earlier run ended.

    A program is a JSON object or a row of a table: `code`, maybe `id`, `inputs`,
    `language`, `files` and `limits`; a result has `id`, `line`, `status`, `result` or
    `error`, and other columns of the row as `meta`.

    Exits with 0 if all were run, well or badly, and with 1 if some could not be.
    """
    from ..base.cell_options import config_of

    cells = config_of(
        {
            "backend": backend,
            "minimum_isolation": isolation,
            "runtime": runtime,
            "limits": {
                "wall_seconds": timeout,
                "cpu_seconds": cpu_seconds,
                "memory_mib": memory,
                **({} if output_bytes is None else {"output_bytes": output_bytes}),
            },
            "packages": package or [],
            "programs_per_cell": programs_per_cell,
            **({"image": image} if image else {}),
            **({"max_concurrency": concurrency} if concurrency else {}),
        }
    )
    if cluster:
        _require_no_cells(context)
    opened = partial(_on_cluster, config) if cluster else partial(_here, cells)
    options = {"cluster": True} if cluster else _cell_options(context)
    show = {"as_json": as_json, "progress": progress}
    _map_file(opened, programs, out, options, concurrency, **show)


def _map_file(
    opened: Callable[[], AbstractAsyncContextManager[Sandbox]],
    programs: Path,
    out: Path,
    options: dict[str, Any],
    concurrency: int | None,
    *,
    as_json: bool,
    progress: bool,
) -> None:
    from ...terminal.progress import rate_bar
    from .batch_programs import ProgramsFile
    from .batch_results import ResultsFile
    from .result_tables import lines_of, write_table

    lines = lines_of(out)
    with ProgramsFile(programs) as source, ResultsFile(lines, options) as results:
        try:
            with rate_bar(source.size, results.size, as_json, progress) as show:
                notices = run_async(_map, opened, source, results, concurrency, show)
        except SignalExit:
            text = f"{results.size} of {source.size} have a result"
            print_notice(f"{text}; the same command goes on", as_json=as_json)
            raise
        if lines != out and results.size:
            write_table(lines, out)
        _end(source, results, notices, as_json=as_json)


def _end(
    source: ProgramsFile,
    results: ResultsFile,
    notices: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    for line in notices:
        print_notice(line, as_json=as_json)
    if as_json:
        print_json(_facts(source, results))
    else:
        print(_summary(source, results))
    if results.statuses["not_run"]:
        raise typer.Exit(EXIT_NOT_ALL_RUN)


def _cell_options(context: typer.Context) -> dict[str, Any]:
    """Return the options of cells that are given or have a default."""
    found = {name: context.params[name] for name in _CELLS}
    found["package"] = [*found["package"]] or None
    return {name: value for name, value in found.items() if value is not None}


def _require_no_cells(context: typer.Context) -> None:
    """Raise ConfigError if an option of cells was given: nodes have their own."""
    for name in _CELLS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"--cluster excludes --{name.replace('_', '-')}",
                hint="the cells of nodes are those of their [sandbox]",
            )


def _here(cells: SandboxConfig) -> AbstractAsyncContextManager[Sandbox]:
    from toolcell.sandbox import SandboxManager

    return SandboxManager(cells)


@asynccontextmanager
async def _on_cluster(path: Path) -> AsyncIterator[Sandbox]:
    from ...config.host_config import HostConfig
    from ...runtime.cluster import cluster_parts

    with cluster_parts(HostConfig.from_file(path)) as parts:
        async with parts.sandbox() as sandbox:
            yield sandbox


async def _map(
    opened: Callable[[], AbstractAsyncContextManager[Sandbox]],
    source: ProgramsFile,
    results: ResultsFile,
    concurrency: int | None,
    show: Callable[[int], None],
) -> tuple[str, ...]:
    async with (
        opened() as sandbox,
        sandbox.map(
            source.without_result(results), concurrency=concurrency, ordered=False
        ) as ended,
    ):
        async for result in ended:
            results.add(result)
            show(results.size)
        return sandbox.notices


def _facts(source: ProgramsFile, results: ResultsFile) -> dict[str, Any]:
    return {
        "programs": source.size,
        "results": results.size,
        "before": results.before,
        "statuses": dict(results.statuses),
    }


def _summary(source: ProgramsFile, results: ResultsFile) -> str:
    sizes = sorted((-count, status) for status, count in results.statuses.items())
    counts = [f"{-count} {status}" for count, status in sizes]
    before = f" ({results.before} from before)" if results.before else ""
    return f"{counted(results.size, 'result')}{before}: {', '.join(counts) or 'none'}"
