"""`toolcell run`: a program in its own cell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from toolcell.core import InvalidInputError

from ...terminal.exit_codes import EXIT_COULD_NOT_RUN
from ..base.head_start import set_up
from ..base.options import (
    AllowHost,
    BackendOption,
    Image,
    Isolation,
    Memory,
    Packages,
    Runtime,
    Timeout,
)

_Build = Annotated[
    list[str] | None,
    typer.Option(help="A package to build from its source, in a cell."),
]
_Args = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGS", help="Its arguments; after -- options, too."),
]
_Language = Annotated[
    str | None, typer.Option(help="python, bash or node; else by the file's name.")
]
_Stdin = Annotated[
    bool, typer.Option("--stdin", help="Pass standard input on, read to its end.")
]
_Input = Annotated[
    list[str] | None,
    typer.Option("--input", help="k=v: a variable; v is JSON, else text."),
]
_Env = Annotated[
    list[str] | None,
    typer.Option("--env", help="NAME=VALUE: an environment variable."),
]
_Pids = Annotated[int, typer.Option(help="Processes and threads at once.")]
_File = Annotated[
    list[str] | None,
    typer.Option("--file", help="LOCAL[:PATH]: a file for the work dir."),
]
_Out = Annotated[
    Path | None,
    typer.Option(readable=False, help="A new folder for the program's artifacts."),
]
_AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON line only.")
]


def run(
    file: Annotated[str, typer.Argument(help="The program; - reads standard input.")],
    args: _Args = None,
    backend: BackendOption = "auto",
    language: _Language = None,
    timeout: Timeout = 30.0,
    memory: Memory = 256,
    pids: _Pids = 64,
    env: _Env = None,
    input_: _Input = None,
    file_: _File = None,
    stdin: _Stdin = False,
    package: Packages = None,
    build: _Build = None,
    out: _Out = None,
    image: Image = None,
    runtime: Runtime = None,
    isolation: Isolation = "confined",
    allow_host: AllowHost = None,
    as_json: _AsJson = False,
) -> None:
    """Run a program in its own cell."""
    from ..base.cell_options import config_of

    text = read_program(file)
    name = _name(file)
    own = {} if file == "-" else {name: text.encode()}
    files = {**own, **dict(read_file(text) for text in file_ or [])}
    config = config_of(
        {
            "backend": backend,
            "minimum_isolation": isolation,
            "runtime": runtime,
            "limits": {"wall_seconds": timeout, "memory_mib": memory, "pids": pids},
            "env": dict(_variable(text) for text in env or []),
            **({"image": image} if image else {}),
            "package_rules": {"allow": package or [], "build": build or []},
            **({"network": _network(allow_host)} if allow_host else {}),
        }
    )
    set_up(config)
    from .program_files import program_of
    from .run_program import RunOptions, run_program

    code, language = program_of(file, text, language)
    options = RunOptions(
        code=code,
        language=language,
        argv=[name, *(args or [])],
        stdin=_read_stdin(file) if stdin else None,
        shows_value=file == "-" and sys.stdout.isatty(),
        inputs=dict(parse_input(text) for text in input_ or []),
        config=config,
        files=files,
        packages=package or [],
        out=out,
        as_json=as_json,
    )
    exit_code, all_saved = run_program(options)
    raise typer.Exit(exit_code if all_saved else EXIT_COULD_NOT_RUN)


def _name(file: str) -> str:
    """Return the program's file name in its cell."""
    name = "main.py" if file == "-" else Path(file).name
    return name if name.isprintable() else "main.py"


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(
            f"--env {text!r} is not of the form NAME=VALUE",
            hint="write it like --env TZ=Europe/Berlin",
        )
    return name, value


def _network(hosts: list[str]) -> dict[str, Any]:
    return {"mode": "allow", "hosts": hosts}


def read_program(file: str) -> str:
    """Return a program's text. Raises InvalidInputError that names the file."""
    from toolcell.sandbox import Limits

    what = "standard input" if file == "-" else file
    limits = Limits()
    # Beside its code a notebook holds pictures.
    is_notebook = file.endswith(".ipynb")
    size = limits.disk_mib << 20 if is_notebook else limits.code_bytes
    data = _read(what, size, 0 if file == "-" else file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{what} is not UTF-8 (byte {error.start})",
            hint="save the program as UTF-8",
        ) from None


def _read_stdin(file: str) -> bytes:
    if file == "-":
        raise InvalidInputError(
            "standard input is the program already",
            hint="leave out --stdin, or give the program as a file",
        )
    from toolcell.sandbox import Limits

    return _read("standard input", Limits().input_bytes, 0)


def read_file(text: str) -> tuple[str, bytes]:
    """Return the path in the work dir and the bytes of LOCAL[:PATH].

    A file whose own name has the colon is meant by all of it.
    """
    from toolcell.sandbox import Limits

    local, _, path = text.partition(":")
    if os.path.isfile(text):
        local, path = text, ""
    return path or Path(local).name, _read(local, Limits().disk_mib << 20, local)


def _read(file: str, max_bytes: int, source: str | int) -> bytes:
    try:
        with open(source, "rb", closefd=source != 0) as opened:
            data = opened.read(max_bytes + 1)
    except FileNotFoundError:
        raise InvalidInputError(
            f"there is no file {file}",
            hint="check the path; it is relative to the current folder",
        ) from None
    except IsADirectoryError:
        raise InvalidInputError(
            f"{file} is a directory", hint="name a file; --file takes one file each"
        ) from None
    except OSError as error:
        raise InvalidInputError(
            f"cannot read {file}: {error.strerror}",
            hint="name a file that this user may read",
        ) from None
    if len(data) > max_bytes:
        raise InvalidInputError(
            f"{file} has more than {max_bytes} bytes", hint="split it"
        )
    return data


def parse_input(text: str) -> tuple[str, Any]:
    """Split k=v; v is JSON if it is valid JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(
            f"--input {text!r} is not of the form name=value",
            hint="write it like --input n=3",
        )
    try:
        value.encode()
        return name, json.loads(value)
    except UnicodeEncodeError:
        # The locale cannot read these bytes of the command line.
        raise InvalidInputError(
            f"--input {name} is not UTF-8, or the locale is not",
            hint="pass bytes with --file; set LC_ALL=C.UTF-8 for text",
        ) from None
    except RecursionError:
        raise InvalidInputError(
            f"--input {name} is nested too deeply",
            hint="make it flatter, or pass a file with --file",
        ) from None
    except ValueError:
        return name, value
