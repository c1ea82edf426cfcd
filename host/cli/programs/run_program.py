"""`toolcell run`: live output, one line of summary, or one line of JSON."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from toolcell.core import InvalidInputError
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.spi import save_artifact

from ...terminal.output import print_json, print_notice, print_value
from ...terminal.progress import progress
from ...terminal.signals import run_async
from ..base.artifact_folder import new_folder
from .program_view import ProgramView, shows_in_one_place
from .run_hints import hints

if TYPE_CHECKING:
    from toolcell.sandbox import Artifact, ExecutionResult

_MAX_UNREACHED = 10


class RunOptions(NamedTuple):
    """The options of one `toolcell run`."""

    code: str
    language: str
    inputs: dict[str, Any]
    config: SandboxConfig
    argv: list[str]
    stdin: bytes | None
    shows_value: bool
    files: dict[str, bytes]
    packages: list[str]
    out: Path | None
    as_json: bool


def run_program(options: RunOptions) -> tuple[int, bool]:
    """Run it and show it; return its exit code, and True if all is saved.

    Raises:
        ToolcellError: It could not be run.
    """
    with new_folder(options.out):
        result, notices = run_async(_run, options)
    pictures = _pictures(result)
    left = {each.name: each for each in (*result.artifacts, *pictures.values())}
    unsaved = (
        [] if options.out is None else save_artifacts([*left.values()], options.out)
    )
    for line in (*unsaved, *notices):
        print_notice(line, as_json=options.as_json)
    if options.as_json:
        print_json(result.to_json())
    else:
        for reason in result.reasons:
            print_notice(f"refused: {reason}", as_json=False)
        for number, picture in pictures.items():
            if picture in result.artifacts:
                print_notice(f"output {number} is {picture.name}", as_json=False)
        if options.shows_value:
            print_value(result)
        helps = hints(
            result,
            left=[*left],
            has_network=options.config.network.mode != "none",
            has_stdin=options.stdin is not None,
            saved=options.out is not None,
        )
        for line in (*result.warnings, *unreached(result), *helps, summary(result)):
            print_notice(line, as_json=False)
    return result.shell_exit_code, not unsaved


async def _run(options: RunOptions) -> "tuple[ExecutionResult, tuple[str, ...]]":
    """Run it and show what it prints and displays; return the result, and notices."""
    async with SandboxManager(options.config) as sandbox:
        if options.packages:
            with progress("installing packages", quiet=options.as_json) as on_step:
                step = partial(on_step, 0, None)
                await sandbox.install(options.packages, on_step=step)
        run = partial(
            sandbox.run,
            options.code,
            language=options.language,  # type: ignore[arg-type] # checked by run
            inputs=options.inputs,
            files=options.files,
            argv=options.argv,
            stdin=options.stdin,
            packages=options.packages,
        )
        if options.as_json:
            return await run(), sandbox.notices
        view = ProgramView()
        result = await run(
            merge_stderr=shows_in_one_place(),
            on_output=view.show,
            on_display=view.display,
        )
        view.finish()
        return result, sandbox.notices


def _pictures(result: "ExecutionResult") -> "dict[int, Artifact]":
    if not result.outputs:
        return {}
    from .shown_outputs import picture_files

    return picture_files(result)


def save_artifacts(artifacts: "Iterable[Artifact]", folder: Path) -> list[str]:
    """Write the artifacts below a folder; return why some were not saved."""
    unsaved = []
    for artifact in artifacts:
        try:
            save_artifact(artifact, folder)
        except InvalidInputError as error:
            unsaved.append(f"an artifact was not saved: {error.message}")
    return unsaved


def unreached(result: "ExecutionResult") -> list[str]:
    """Return a line for each connection that failed, without repetition."""
    lines = [
        f"network: {connection.host}:{connection.port} {connection.verdict}: "
        f"{connection.reason}"
        for connection in result.connections
        if connection.verdict != "allowed"
    ]
    return list(dict.fromkeys(lines))[:_MAX_UNREACHED]


def summary(result: "ExecutionResult") -> str:
    """Return one line: status, time, memory, backend, isolation."""
    usage = result.usage
    parts: list[str] = [result.status]
    if result.signal:
        parts.append(result.signal)
    elif result.exit_code:
        parts.append(f"exit code {result.exit_code}")
    if result.self_reported:
        parts.append("by its own account")
    parts.append(f"{usage.wall_ms:.0f} ms")
    parts.append(f"{usage.peak_memory_bytes / 1048576:.0f} MiB")
    if result.isolation is not None:
        parts.append(f"{result.backend} backend, {result.isolation.level} isolation")
    if result.truncated:
        omitted = result.truncated.stdout + result.truncated.stderr
        parts.append(f"{omitted} bytes of output left out")
    return ", ".join(parts)
