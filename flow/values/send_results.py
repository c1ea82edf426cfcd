"""The results of a batch: by send, or folded into one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Literal

from toolcell.core import InvalidInputError

from .send import SendResult


def is_enough(succeeded: int, total: int, min_success: int | float | None) -> bool:
    """Return whether enough sends succeeded.

    Args:
        succeeded: The number of sends that did.
        total: The number of all sends.
        min_success: A whole number is a count, another a share from 0 to 1.
    """
    if min_success is None:
        return True
    if isinstance(min_success, int):
        return succeeded >= min_success
    return succeeded >= min_success * total


def extract_send_results(
    results: Sequence[SendResult],
    key: str = "result",
    *,
    failures: Literal["error", "include", "skip"] = "error",
) -> dict[str, Any]:
    """Return one value of each result by its send id.

    Args:
        results: The results of the batch.
        key: A field of `SendResult`; else a key of the result, which is then a dict.
        failures: The treatment of sends that failed: an error, a value as of any other
            (a key of a dict result is None there), or nothing.

    Raises:
        InvalidInputError: A send failed, or a result has no such key.
    """
    if failures == "error":
        _refuse_failures(results)
    wanted = [result for result in results if result.success or failures != "skip"]
    return {result.send_id: _value(result, key) for result in wanted}


def _value(result: SendResult, key: str) -> Any:
    if key in SendResult.model_fields:
        return getattr(result, key)
    if not result.success:
        return None
    if isinstance(result.result, Mapping) and key in result.result:
        return result.result[key]
    raise InvalidInputError(
        f"the result of send {result.send_id} has no key {key!r}",
        hint="name a field of SendResult, or a key of what the worker returned",
    )


def aggregate_send_results(
    results: Sequence[SendResult],
    reducer: Callable[[Any, Any], Any] | None = None,
    *,
    on_failure: Literal["fail", "skip"] = "fail",
    min_success: int | float | None = None,
) -> Any:
    """Return the results as a list, or folded by a reducer; nothing to fold is None.

    Args:
        results: The results of the batch.
        reducer: Called with what there is so far and the next result.
        on_failure: `fail`: a failed send is an error. `skip`: it is not in the result.
        min_success: The successes that are needed: a count, or a share from 0.0 to
            1.0. None: any number will do.

    Raises:
        InvalidInputError: A send failed, or too few succeeded.
    """
    if on_failure == "fail":
        _refuse_failures(results)
    values = [result.result for result in results if result.success]
    if not is_enough(len(values), len(results), min_success):
        raise InvalidInputError(
            f"{len(values)} of {len(results)} sends succeeded, {min_success} have to",
            hint="look at `error` of those that failed",
        )
    if reducer is None:
        return values
    return reduce(reducer, values) if values else None


def _refuse_failures(results: Sequence[SendResult]) -> None:
    failed = [result.send_id for result in results if not result.success]
    if failed:
        raise InvalidInputError(
            f"{len(failed)} of {len(results)} sends failed: {', '.join(failed[:10])}",
            hint="say what becomes of them, or look at their `error`",
            details={"failed": failed},
        )
