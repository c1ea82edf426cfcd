"""Runs the asynchronous part of a command so that Ctrl-C always ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run to the end, as `anyio.run` does.

    There a Ctrl-C that comes right before the event loop goes to sleep is seen only
    when something else wakes it. A handler of the loop's own wakes it.

    Raises:
        KeyboardInterrupt: Ctrl-C came.
    """
    import asyncio

    import anyio

    async def interruptible() -> T:
        task = asyncio.current_task()
        if task is None or threading.current_thread() is not threading.main_thread():
            return await function(*args)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            return await function(*args)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    try:
        return anyio.run(interruptible)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
