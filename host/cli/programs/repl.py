"""`toolcell repl`: runs Python line by line in a session of one cell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from toolcell.core import InvalidInputError

from ..base.options import BackendOption, Image, Memory, Runtime

_DAY = 86_400.0
MAX_LINES = 1_000
"""Lines in the file. When it is reached the oldest are deleted."""


def repl(
    backend: BackendOption = "auto",
    timeout: Annotated[
        float, typer.Option(help="Seconds of real time of each input.")
    ] = 600.0,
    memory: Memory = 256,
    out: Annotated[
        Path | None, typer.Option(help="A new folder for artifacts.")
    ] = None,
    image: Image = None,
    runtime: Runtime = None,
    isolation: Annotated[
        str,
        typer.Option(
            help="The weakest accepted: kernel, container, namespaces or confined."
        ),
    ] = "confined",
    history: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="A file for what was typed; default below ~/.local/state.",
        ),
    ] = None,
) -> None:
    """Run Python in a cell line by line; variables and files stay. `:help` helps."""
    from anyio.from_thread import start_blocking_portal

    from toolcell.core.text.printable import escaped_line
    from toolcell.sandbox import SandboxManager

    from ..base.artifact_folder import new_folder
    from ..base.cell_options import config_of
    from .repl_loop import Repl

    options = {
        "backend": backend,
        "minimum_isolation": isolation,
        "runtime": runtime,
        "limits": {"wall_seconds": timeout, "memory_mib": memory},
        # A person may be away for long.
        "session_idle_seconds": _DAY,
        "session_lifetime_seconds": _DAY,
        **({"image": image} if image else {}),
    }
    manager = SandboxManager(config_of(options))
    # The loop has its own thread: this one has the terminal, and gets Ctrl-C.
    with (
        new_folder(out),
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(manager),
        stored_history(history or default_history()),
    ):
        for line in manager.notices:
            print(f"toolcell: {escaped_line(line)}", file=sys.stderr)
        Repl(manager, portal, out).run()


def default_history() -> Path:
    """Return the file for the history of this user."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state, "toolcell", "history").expanduser()


@contextmanager
def stored_history(path: Path) -> Iterator[None]:
    """Let lines be edited and recalled; the file is for this user alone.

    Where standard input is no terminal nothing is read or stored.

    Raises:
        InvalidInputError: The file cannot be used.
    """
    if not sys.stdin.isatty():
        yield
        return
    import readline

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        readline.read_history_file(path)
    except OSError as error:
        raise InvalidInputError(
            f"the history {path} cannot be used: {error.strerror}",
            hint="name another file with --history",
        ) from None
    readline.set_history_length(MAX_LINES)
    readline.parse_and_bind("tab: self-insert")
    try:
        yield
    finally:
        readline.write_history_file(path)
        path.chmod(0o600)
