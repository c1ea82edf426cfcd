"""`toolcell map`: a file of programs, each in a cell of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal.exit_codes import EXIT_NOT_ALL_RUN
from ..terminal.output import print_json, print_notice
from ..terminal.signals import SignalExit, run_async
from .options import (
    AsJson,
    BackendOption,
    Image,
    Isolation,
    Memory,
    Packages,
    Runtime,
    Timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolcell.sandbox import SandboxConfig

    from .batch_files import ProgramsFile, ResultsFile


def map(  # noqa: A001 - the command is called so
    programs: Annotated[Path, typer.Argument(help="A JSON object in each line.")],
    out: Annotated[Path, typer.Option(help="Takes a result in each line.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Programs at once; else one a CPU.")
    ] = None,
    backend: BackendOption = "auto",
    programs_per_cell: Annotated[
        int, typer.Option(min=1, help="Programs that one cell may run, each as new.")
    ] = 1,
    timeout: Timeout = 30.0,
    memory: Memory = 256,
    package: Packages = None,
    image: Image = None,
    runtime: Runtime = None,
    isolation: Isolation = "namespaces",
    as_json: AsJson = False,
) -> None:
    """Run a file of programs, and go on where an earlier run ended.

    A program is a JSON object with `code`, and maybe `id`, `inputs`, `language`,
    `files` and `limits`; a result has `id`, `line`, `status`, and `result` or `error`.

    Exits with 0 if all were run, well or badly, and with 1 if some could not be.
    """
    from ..terminal.rate_bar import rate_bar
    from .batch_files import ProgramsFile, ResultsFile
    from .cell_options import config_of

    config = config_of(
        {
            "backend": backend,
            "minimum_isolation": isolation,
            "runtime": runtime,
            "limits": {"wall_seconds": timeout, "memory_mb": memory},
            "packages": package or [],
            "programs_per_cell": programs_per_cell,
            **({"image": image} if image else {}),
            **({"max_concurrency": concurrency} if concurrency else {}),
        }
    )
    source = ProgramsFile(programs)
    with ResultsFile(out) as results:
        try:
            with rate_bar(source.size, results.size, quiet=as_json) as show:
                notices = run_async(_map, config, source, results, concurrency, show)
        except SignalExit:
            print_notice(
                f"{results.size} of {source.size} have a result; "
                "the same command goes on",
                as_json=as_json,
            )
            raise
    for line in notices:
        print_notice(line, as_json=as_json)
    if as_json:
        print_json(_facts(source, results))
    else:
        print(_summary(source, results))
    if results.statuses["not_run"]:
        raise typer.Exit(EXIT_NOT_ALL_RUN)


async def _map(
    config: SandboxConfig,
    source: ProgramsFile,
    results: ResultsFile,
    concurrency: int | None,
    show: Callable[[int], None],
) -> tuple[str, ...]:
    from toolcell.sandbox import SandboxManager

    async with (
        SandboxManager(config) as sandbox,
        sandbox.map(
            source.without_result(results), concurrency=concurrency, ordered=False
        ) as ended,
    ):
        async for each in ended:
            results.add(each)
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
    return f"{results.size} results{before}: {', '.join(counts) or 'none'}"
