"""The `toolcell` command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcell.core import (
    ConfigError,
    ErrorInfo,
    InvalidInputError,
    PolicyError,
    ToolcellError,
    ToolNotFoundError,
    ToolValidationError,
)

from .approvals_cli import approvals
from .audit_cli import audit
from .bench_cli import bench
from .budget_cli import budget
from .call_cli import call
from .images_cli import images
from .init_cli import init
from .interrupts import run_async
from .options import AllowHost, Backend, Image, Memory, Runtime
from .packages_cli import packages
from .policy_cli import policy
from .repl_cli import repl
from .serve_cli import serve
from .show import tell_error
from .tokens_cli import tokens
from .tools_cli import tools

EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
EXIT_COULD_NOT_RUN = 4
_BAD_INPUT = (
    ConfigError,
    InvalidInputError,
    PolicyError,
    ToolNotFoundError,
    ToolValidationError,
)
_EXIT_BY_STATUS = {
    "ok": 0,
    "error": 1,
    "disk_limit": 1,
    "refused": EXIT_REFUSED,
    "timeout": 124,
    "cpu_limit": 124,
    "out_of_memory": 137,
    "output_limit": 137,
    "killed": 137,
    "cancelled": 130,
}

_LANGUAGES = {".sh": "bash"} | dict.fromkeys(
    (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"), "node"
)

app = typer.Typer(
    name="toolcell",
    help="Run code and call tools that you do not trust, and see what they did.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(init)
app.command()(repl)
app.command()(call)
app.command()(serve)
app.command()(budget)
app.command()(bench)
app.add_typer(tools, name="tools")
app.add_typer(policy, name="policy")
app.add_typer(approvals, name="approvals")
app.add_typer(audit, name="audit")
app.add_typer(images, name="images")
app.add_typer(tokens, name="tokens")
app.add_typer(packages, name="packages")


def main() -> None:
    """Run the command line; typed errors become one line and an exit code.

    With `--json` that line is JSON, also of an error in the command line itself.
    """
    as_json = "--json" in sys.argv[1:]
    try:
        raise SystemExit(app(standalone_mode=not as_json))
    except ToolcellError as error:
        tell_error(ErrorInfo.of(error), as_json=as_json)
        bad_input = isinstance(error, _BAD_INPUT)
        raise SystemExit(EXIT_BAD_INPUT if bad_input else EXIT_COULD_NOT_RUN) from None
    except typer.TyperException as error:
        # Without `--json` typer shows them itself.
        usage = ErrorInfo(kind="usage", message=error.format_message())
        tell_error(usage, as_json=True)
        raise SystemExit(EXIT_BAD_INPUT) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


_Package = Annotated[
    list[str] | None,
    typer.Option(help="A package to import, such as 'numpy==2.1.*'."),
]
_Build = Annotated[
    list[str] | None,
    typer.Option(help="A package to build from its source, in a cell."),
]


@app.command()
def run(
    file: Annotated[str, typer.Argument(help="The program; - reads standard input.")],
    backend: Backend = "auto",
    language: Annotated[
        str | None, typer.Option(help="python, bash or node; else by the file's name")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds of real time.")] = 30.0,
    memory: Memory = 256,
    input_: Annotated[
        list[str] | None,
        typer.Option("--input", help="k=v: a variable; v is JSON, else text."),
    ] = None,
    file_: Annotated[
        list[str] | None,
        typer.Option("--file", help="LOCAL[:PATH]: a file for the work dir."),
    ] = None,
    package: _Package = None,
    build: _Build = None,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the program's artifacts.")
    ] = None,
    image: Image = None,
    runtime: Runtime = None,
    isolation: Annotated[
        str,
        typer.Option(
            help="The weakest accepted: kernel, container, namespaces or process."
        ),
    ] = "namespaces",
    allow_host: AllowHost = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON line only.")
    ] = False,
) -> None:
    """Run a program in a cell of its own."""
    from .run_command import RunOptions, run_program

    options = RunOptions(
        code=read_program(file),
        language=language or _LANGUAGES.get(Path(file).suffix, "python"),
        inputs=dict(parse_input(text) for text in input_ or []),
        config={
            "backend": backend,
            "minimum_isolation": isolation,
            "runtime": runtime,
            "limits": {"wall_seconds": timeout, "memory_mb": memory},
            **({"image": image} if image else {}),
            "package_rules": {"allow": package or [], "build": build or []},
            **({"network": _network(allow_host)} if allow_host else {}),
        },
        files=dict(read_file(text) for text in file_ or []),
        packages=package or [],
        out=out,
        as_json=as_json,
    )
    status, exit_code, signal_name = run_program(options)
    raise typer.Exit(exit_code_of(status, exit_code, signal_name))


def _network(hosts: list[str]) -> dict[str, Any]:
    return {"mode": "allow", "hosts": hosts}


def read_program(file: str) -> str:
    """Return a program's text. Raises InvalidInputError that names the file."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except FileNotFoundError:
        raise InvalidInputError(f"there is no file {file}") from None
    except IsADirectoryError:
        raise InvalidInputError(f"{file} is a directory, not a program") from None
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{file} is not UTF-8 (byte {error.start})",
            hint="save the program as UTF-8",
        ) from None
    except OSError as error:
        raise InvalidInputError(f"cannot read {file}: {error.strerror}") from None


def read_file(text: str) -> tuple[str, bytes]:
    """Return the path in the work dir and the bytes of LOCAL[:PATH]."""
    local, _, path = text.partition(":")
    try:
        return path or Path(local).name, Path(local).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read {local}: {error.strerror}") from None


def parse_input(text: str) -> tuple[str, Any]:
    """Split k=v; v is JSON where it can be read as such, else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(f"--input {text!r} is not of the form name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def exit_code_of(status: str, exit_code: int | None, signal_name: str | None) -> int:
    """Return the exit code of `toolcell run` for a finished program."""
    if status == "exit":
        return exit_code or 0
    if status == "crashed":
        import signal

        return 128 + getattr(signal.Signals, signal_name or "SIGABRT", 6)
    return _EXIT_BY_STATUS[status]


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    image: Annotated[
        str | None, typer.Option(help="The image to try in a Docker cell.")
    ] = None,
    runtime: Annotated[str | None, typer.Option(help="The runtime to try.")] = None,
) -> None:
    """Try every layer of isolation here; say what holds and how to get the rest."""
    from toolcell.sandbox import SandboxConfig, examine

    config = SandboxConfig(runtime=runtime)
    if image is not None:
        config = SandboxConfig(runtime=runtime, image=image)
    report = run_async(examine, config)
    if as_json:
        print(report.model_dump_json())
    else:
        _print_report(report)
    raise typer.Exit(0 if report.backend else EXIT_COULD_NOT_RUN)


def _print_report(report: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("layer", "holds", "detail", "how to get it")
    for check in report.checks:
        mark = "[green]yes[/]" if check.ok else "[red]no[/]"
        table.add_row(check.name, mark, check.detail, check.fix)
    console = Console()
    console.print(table)
    if report.backend:
        console.print(f"programs run in: {report.backend} ({report.level} isolation)")
    else:
        console.print("programs cannot run here: see the column 'how to get it'")


@app.command()
def clean(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove containers, cgroups and folders of toolcell hosts that died."""
    from toolcell.sandbox import clean as sweep

    removed = run_async(sweep)
    if as_json:
        print(json.dumps({"removed": removed}))
    else:
        for name in removed:
            print(f"removed {name}")
        print(f"{len(removed)} leftovers removed")
