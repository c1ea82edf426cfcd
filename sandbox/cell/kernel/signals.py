"""Signal handlers: of our own processes, of a program, and of what it executes."""

from __future__ import annotations

# Not `signal`, which converts arguments and results to enums at each call.
import _signal  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


LAST_WORDS = _signal.SIGURG
"""Sent to a program that will be killed. Where nothing handles it, it is ignored."""

# Python ignores these in every process.
_PYTHON_IGNORES = (_signal.SIGPIPE, _signal.SIGXFSZ)


def inherit_nothing() -> None:
    """Undo signals that the host blocks or ignores, as it may have inherited them."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in range(1, _signal.NSIG):
        if number in _PYTHON_IGNORES:
            _signal.signal(number, _signal.SIG_IGN)
        elif _signal.getsignal(number) == _signal.SIG_IGN:
            _signal.signal(number, _signal.SIG_DFL)


def wake_by(fd: int) -> None:
    """Have ends of children write to a pipe that does not block; ignore Ctrl-C."""
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    _signal.signal(_signal.SIGCHLD, _pass)
    _signal.set_wakeup_fd(fd, warn_on_full_buffer=False)


def forget_parent() -> None:
    """Undo in a fork of the supervisor how that learns of its relatives' ends."""
    _signal.set_wakeup_fd(-1)
    for number in (_signal.SIGCHLD, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_DFL)


def await_program() -> None:
    """Ignore Ctrl-C while no program runs; processes executed meanwhile receive it."""
    _signal.signal(_signal.SIGINT, _pass)


def as_python() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, as in every Python program."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def on_last_words(handler: Callable[..., object]) -> None:
    """Call a function in this process when it is about to be killed."""
    _signal.signal(LAST_WORDS, handler)


def as_new() -> None:
    """Restore the kernel's defaults for signals that Python handles, before an exec."""
    for number in (_signal.SIGINT, *_PYTHON_IGNORES):
        _signal.signal(number, _signal.SIG_DFL)


def _pass(*_: object) -> None:
    """Do nothing."""
