"""What signals do: in our own processes, in the program's, and in what it becomes."""

from __future__ import annotations

# Not `signal`, which makes enums of what its functions take and return.
import _signal  # type: ignore[import-not-found]

# What Python ignores in every program of its own.
_PYTHON_IGNORES = (_signal.SIGPIPE, _signal.SIGXFSZ)


def inherit_nothing() -> None:
    """Undo what the host blocks and ignores: what starts it is in our way to it."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in range(1, _signal.NSIG):
        if number in _PYTHON_IGNORES:
            _signal.signal(number, _signal.SIG_IGN)
        elif _signal.getsignal(number) == _signal.SIG_IGN:
            _signal.signal(number, _signal.SIG_DFL)


def await_program() -> None:
    """Let Ctrl-C pass where no program runs. What is exec'd meanwhile hears it."""
    _signal.signal(_signal.SIGINT, _pass)


def as_python() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, as in every program."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def as_new() -> None:
    """Have what Python ignores or handles as the kernel has it, for another program."""
    for number in (_signal.SIGINT, *_PYTHON_IGNORES):
        _signal.signal(number, _signal.SIG_DFL)


def _pass(*_: object) -> None:
    """Do nothing."""
