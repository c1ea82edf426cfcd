"""Work of a command that can begin before its imports."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING

from ...terminal.signals import signals_wait

if TYPE_CHECKING:
    from toolcell.sandbox import SandboxConfig
    from toolcell.sandbox.spi import EarlyLauncher

_STARTERS = ("run", "doctor")
"""The commands that use a launcher, and run no code of their user in this process."""
_ENGINE = "/var/run/docker.sock"
_launcher: ContextVar[EarlyLauncher | None] = ContextVar("launcher", default=None)


@contextlib.contextmanager
def head_start(arguments: Sequence[str]) -> Iterator[None]:
    """Start the launcher before the arguments are read, if they look as if they ask.

    If they did not, it has made nothing yet and ends. Nothing but the standard library
    is imported for it: it starts while typer and pydantic are. They look for no plugins
    where a program is run.
    """
    with contextlib.ExitStack() as stack:
        if arguments[:1] and arguments[0] in _STARTERS:
            from .plugins import without_plugins

            stack.enter_context(without_plugins())
        if _asks_for_launcher(arguments) and sys.platform == "linux":
            stack.enter_context(_started_launcher())
        yield


@contextlib.contextmanager
def _started_launcher() -> Iterator[None]:
    from toolcell.core import SandboxUnavailableError
    from toolcell.sandbox.spi import early_launcher

    with contextlib.ExitStack() as stack:
        # The command itself says why, if it needs one.
        with contextlib.suppress(SandboxUnavailableError):
            token = _launcher.set(stack.enter_context(early_launcher()))
            stack.callback(_launcher.reset, token)
        yield


def _asks_for_launcher(arguments: Sequence[str]) -> bool:
    if arguments[:1] == ["doctor"]:
        return True
    if arguments[:1] != ["run"]:
        return False
    words = [word for argument in arguments for word in argument.split("=", 1)]
    if "--backend" in words:
        return ("--backend", "subprocess") in pairwise(words)
    # Without an engine the backend is this one.
    has_engine = "DOCKER_HOST" in os.environ or os.path.exists(_ENGINE)
    return not has_engine and not {"--image", "--runtime"} & set(words)


def set_up(config: SandboxConfig) -> None:
    """Have the launcher, if there is one, make its first cell while more is imported.

    Raises:
        ConfigError: A mount lies over something that cells need.
    """
    from toolcell.core import SandboxUnavailableError

    launcher = _launcher.get()
    if launcher is not None:
        # Half done, nobody would know the control groups that it made. What is missing
        # here is not missed: the manager says it, or takes another backend.
        with signals_wait(), contextlib.suppress(SandboxUnavailableError):
            launcher.set_up(config)
