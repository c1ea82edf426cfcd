"""Ends a command at a signal, whenever it comes."""

from __future__ import annotations

import _thread
import json
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FINALIZER_SECONDS = 0.01


class SignalExit(SystemExit):
    """A signal ended the command; its code is that of shells.

    Not a KeyboardInterrupt, which libraries handle in their own ways.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def print_error(self, *, as_json: bool) -> None:
        """Print the signal's name, as one line on standard error.

        The signal may come before anything of toolcell can be imported.
        """
        message = f"ended by {signal.Signals(self.number).name}"
        error: dict[str, Any] = {
            "kind": "interrupted",
            "message": message,
            "hint": None,
            "retryable": False,
            "details": {},
        }
        line = json.dumps({"error": error}) if as_json else f"toolcell: {message}"
        print(line, file=sys.stderr, flush=True)


def end_on_signals() -> None:
    """Raise SignalExit at a signal to end, so that open resources are closed.

    Python drops what is raised while it finalizes an object; the signal comes again
    then.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    sys.unraisablehook = partial(_repeat_signal, sys.unraisablehook)
    for number in _ending_signals():
        signal.signal(number, _end)


def _repeat_signal(
    usual: Callable[[UnraisableHookArgs], object], dropped: UnraisableHookArgs
) -> None:
    if isinstance(dropped.exc_value, SignalExit):
        # Not `threading`, whose lock may be held by what the finalizer interrupts.
        _thread.start_new_thread(_send_again, (dropped.exc_value.number,))
    else:
        usual(dropped)


def _send_again(number: int) -> None:
    """Send a signal to the main thread once the finalizer has ended, as they do soon.

    If it comes too early it is dropped, and repeated, again.
    """
    time.sleep(_FINALIZER_SECONDS)
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def _ending_signals() -> list[signal.Signals]:
    """Return the signals that end a command; under `nohup` SIGHUP does not."""
    hangup_ends = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
    return [number for number in _SIGNALS if hangup_ends or number != signal.SIGHUP]


def _end(number: int, _frame: object) -> NoReturn:
    raise SignalExit(number)


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let signals to end come after what is done inside, which is short."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_async(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function to its end, as `anyio.run` does.

    With `anyio.run` a signal that comes just before the event loop sleeps is noticed
    only when something else wakes the loop. A handler of the loop's own wakes it.

    Raises:
        SignalExit: A signal came.
    """
    import asyncio

    import anyio

    from .output import escape_logs

    escape_logs()
    came: list[int] = []

    async def interruptible() -> T:
        task = asyncio.current_task()
        if task is None or threading.current_thread() is not threading.main_thread():
            return await function(*args)

        def end(number: int) -> None:
            came.append(number)
            task.cancel()

        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _ending_signals()}
        for number in before:
            loop.add_signal_handler(number, end, number)
        try:
            return await function(*args)
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler or signal.SIG_DFL)

    try:
        return anyio.run(interruptible)
    except asyncio.CancelledError:
        raise SignalExit(came[0]) from None
