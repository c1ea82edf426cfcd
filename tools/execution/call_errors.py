"""The errors that end a call outside its tool, and what errors mean for a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcell.core import (
    InvalidInputError,
    ToolCall,
    ToolcellError,
    ToolExecutionError,
    ToolTimeoutError,
)

from ..hooks.hook import CallCancelledError
from .attempt import FailureStatus

TRY_OTHERS = "try other arguments or another tool; the host's record has the cause"
"""The hint for a tool that failed by its own fault."""


def masked(name: str, error: BaseException) -> ToolExecutionError:
    """Return an error that shows a model nothing but the type of this one."""
    hidden = ToolExecutionError(f"{name} failed ({_type_name(error)})", hint=TRY_OTHERS)
    hidden.__cause__ = error
    return hidden


def failure_status(error: ToolcellError) -> FailureStatus:
    """Return the status of a call that an error of its tool or a hook ended."""
    if isinstance(error, ToolTimeoutError):
        return "timeout"
    return "cancelled" if isinstance(error, CallCancelledError) else "error"


def fault(error: BaseException) -> ToolExecutionError:
    """Return the error of a call that could not be made by a fault of ours."""
    return ToolExecutionError(
        f"the call could not be made ({_type_name(error)})", hint=TRY_OTHERS
    )


def cancelled_itself(name: str) -> ToolExecutionError:
    """Return the error of a tool that cancelled the task it ran in."""
    return ToolExecutionError(
        f"{name} cancelled itself", hint="try again, or use another tool"
    )


def cancelled(*, begun: bool) -> ToolExecutionError:
    """Return the error of a call that was cancelled from outside."""
    return ToolExecutionError(
        "the call was cancelled",
        hint="look whether it took effect before you call it again"
        if begun
        else "if its result is still wanted, call it again",
    )


def record_lost(cause: BaseException) -> ToolExecutionError:
    """Return the error of a call whose record could not be written."""
    error = ToolExecutionError(
        "the record of the call is lost",
        hint="look whether the call took effect before it is made again",
    )
    error.__cause__ = cause
    return error


def not_json(tool: str) -> ToolExecutionError:
    """Return the error of a call whose tool returned what no JSON can carry."""
    return ToolExecutionError(
        f"{tool} returned what is not JSON: NaN, an infinity or half a surrogate pair",
        hint="its function has to return numbers and texts that JSON has",
    )


def not_made(executor: object) -> ToolExecutionError:
    """Return the error of a call that an executor left out."""
    return ToolExecutionError(
        f"{type(executor).__name__} did not make the call",
        hint="make the call again; the executor has to run each call once",
    )


def read_call(
    given: ToolCall | Mapping[str, Any], index: int
) -> tuple[ToolCall, InvalidInputError | None]:
    """Return a call; one that cannot be read is a stand-in, with the reason."""
    try:
        return given if isinstance(given, ToolCall) else ToolCall(**given), None
    except InvalidInputError as error:
        return _stand_in(given, index), error
    except TypeError:
        problem = InvalidInputError(
            "a call is an object with `id` and `name`",
            hint='write it like {"id": "1", "name": "add", "arguments": {}}',
        )
        return _stand_in(given, index), problem


def _stand_in(given: Any, index: int) -> ToolCall:
    """Return a call that a result can name, for one that cannot be read."""
    fields = given if isinstance(given, Mapping) else {}
    return ToolCall(
        id=_label(fields.get("id")) or f"unreadable-{index}",
        name=_label(fields.get("name")) or "unreadable",
    )


def _label(value: Any) -> str | None:
    usable = isinstance(value, str) and len(value) <= 256 and value.isprintable()
    return value if usable else None


def is_in_doubt(error: Exception) -> bool:
    """Tell whether the tool was stopped, or does not know what took effect."""
    if isinstance(error, ToolTimeoutError):
        return True
    details = error.details if isinstance(error, ToolExecutionError) else {}
    return details.get("outcome") == "unknown"


def is_worth_retrying(error: ToolcellError) -> bool:
    """Tell whether the next attempt may succeed."""
    return error.retryable or isinstance(error, ToolExecutionError | ToolTimeoutError)


def _type_name(error: BaseException) -> str:
    return type(error).__name__
