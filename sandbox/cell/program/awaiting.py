"""Code with `await` at its top level, on one event loop for all runs of a program."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Coroutine


_loop: Any = None


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; return its value.

    What interrupts it cancels it first, as `asyncio.run` does. Tasks that it started
    go on when the next one runs.
    """
    global _loop
    import asyncio

    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
    task = _loop.create_task(_end_of(coroutine))
    try:
        value, error = _loop.run_until_complete(task)
    except BaseException:
        task.cancel()
        _loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        raise
    if error is not None:
        raise error
    return value


async def _end_of(coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, Any]:
    """Return the value or the error: raised here it would have frames of the loop."""
    try:
        return await coroutine, None
    except BaseException as error:
        frames = error.__traceback__
        return None, error.with_traceback(frames and frames.tb_next)
