"""The commands of the command line, and how they end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from toolcell.core import (
    CheckpointNotFoundError,
    ConfigError,
    InvalidInputError,
    PolicyError,
    ToolcellError,
    ToolNotFoundError,
    ToolValidationError,
)
from toolcell.core.text.printable import escaped

from ..terminal.exit_codes import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_COULD_NOT_RUN
from ..terminal.output import print_error
from ..terminal.streams import OutputError, drop_output, flush_streams

_BAD_INPUT = (
    CheckpointNotFoundError,
    ConfigError,
    InvalidInputError,
    PolicyError,
    ToolNotFoundError,
    ToolValidationError,
)
_COMMANDS = {
    "run": "programs.run",
    "map": "programs.map",
    "repl": "programs.repl",
    "doctor": "machine.cells",
    "init": "serving.init",
    "serve": "serving.serve",
    "console": "serving.console",
    "call": "tools.call",
    "tools": "tools.tools",
    "policy": "guard.policy",
    "budget": "guard.budget",
    "approvals": "guard.approvals",
    "flow": "flow.flow",
    "credentials": "guard.credentials",
    "audit": "guard.audit",
    "records": "guard.records",
    "backup": "serving.backup",
    "restore": "serving.backup",
    "tokens": "serving.tokens",
    "cluster": "machine.cluster",
    "packages": "machine.packages",
    "images": "machine.images",
    "clean": "machine.cells",
    "bench": "machine.bench",
}
"""The module of each command, in the order in which `--help` lists them."""


def run_command() -> None:
    """Run the command line; typed errors become one line and an exit code.

    With `--json` that line is JSON, also of an error in the command line itself.
    """
    as_json = "--json" in sys.argv[1:]
    try:
        try:
            _run(as_json=as_json)
        finally:
            flush_streams()
    except OutputError as error:
        if error.exit_code != EXIT_BROKEN_PIPE:
            from toolcell.core import ErrorInfo

            with contextlib.suppress(OutputError):
                info = ErrorInfo(kind="output", message=str(error))
                print_error(info, as_json=as_json)
        drop_output()
        raise SystemExit(error.exit_code) from None


def _run(*, as_json: bool) -> None:
    try:
        app = make_app(_named(sys.argv[1:2]))
        raise SystemExit(app(standalone_mode=not as_json))
    except (ToolcellError, BaseExceptionGroup) as raised:
        from toolcell.core import ErrorInfo

        error = typed_error(raised)
        if not as_json and error.details.get("reason") == "image_missing":
            try:
                pulled = _pulls_missing_image(error)
            except ToolcellError as failed:
                pulled, error = False, failed
            if pulled:
                return _run(as_json=as_json)
        print_error(ErrorInfo.of(error), as_json=as_json)
        bad_input = isinstance(error, _BAD_INPUT)
        raise SystemExit(EXIT_BAD_INPUT if bad_input else EXIT_COULD_NOT_RUN) from None
    except typer.TyperException as error:
        from toolcell.core import ErrorInfo

        # Without `--json` typer shows them itself.
        usage = ErrorInfo(kind="usage", message=escaped(error.format_message()))
        print_error(usage, as_json=True)
        raise SystemExit(EXIT_BAD_INPUT) from None


def _pulls_missing_image(error: ToolcellError) -> bool:
    """Ask, on a terminal, to pull the image that is missing; True if it is here now.

    A program that is typed at the terminal has been read already, so it is not asked.

    Args:
        error: The error that ended a command.

    Raises:
        SandboxUnavailableError: The engine cannot pull it.
    """
    missing = error.details.get("reason") == "image_missing"
    image = error.details.get("image")
    seen = sys.stdin.isatty() and sys.stderr.isatty() and "-" not in sys.argv
    if not (missing and image and seen):
        return False
    typer.echo(f"toolcell: {error.message}", err=True)
    if not typer.confirm(f"pull {image} now?", default=True, err=True):
        return False
    from toolcell.sandbox.spi import pull_image

    from ..terminal.progress import progress

    with progress(f"pulling {image}", quiet=False) as on_step:
        pull_image(str(image), on_step=on_step)
    return True


def _named(first: Sequence[str]) -> Collection[str]:
    """Return the commands that the first argument needs: building all takes long."""
    if first in (["--version"], ["-V"]):
        return ()
    return _COMMANDS.keys() & first or _COMMANDS


def typed_error(raised: ToolcellError | BaseExceptionGroup) -> ToolcellError:
    """Return the typed error in what was raised; task groups wrap errors.

    Raises:
        BaseExceptionGroup: It holds an error of another type, a bug.
    """
    errors: list[BaseException] = [raised]
    while groups := [
        error for error in errors if isinstance(error, BaseExceptionGroup)
    ]:
        errors.remove(groups[0])
        errors += groups[0].exceptions
    typed = [error for error in errors if isinstance(error, ToolcellError)]
    if len(typed) < len(errors):
        raise raised
    return typed[0]


class _InOrder(TyperGroup):
    """Lists commands in the order of `_COMMANDS`, groups among them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in _COMMANDS if name in self.commands]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"toolcell {version('toolcell')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Show the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options of the command line itself."""


def make_app(names: Collection[str] = _COMMANDS.keys()) -> typer.Typer:
    """Return the command line with some commands, or all."""
    app = typer.Typer(
        name="toolcell",
        cls=_InOrder,
        help="Run code and call tools that you do not trust, and see what they did.",
        no_args_is_help=True,
        # What rich needs for its boxes takes as long to import as all else.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        # Without a callback a single command would need no name.
        callback=_options,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        module = import_module(f".{_COMMANDS[name]}", __package__)
        command: Any = getattr(module, name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app
