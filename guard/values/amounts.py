"""Amounts and times, as whole numbers: micro-dollars, microseconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Literal, get_args

from toolcell.core import InvalidInputError

Unit = Literal["usd", "tokens", "calls", "cpu_ms", "wall_ms", "bytes"]
"""US dollars, written as a decimal; the others are whole numbers."""

UNITS: tuple[Unit, ...] = get_args(Unit)
COUNTS = frozenset(UNITS) - {"usd"}
"""Those that are whole numbers."""

MEASURED = frozenset({"cpu_ms", "wall_ms", "bytes"})
"""Units that every call uses: an amount that is not reported is unknown, not 0."""

MAX_AMOUNT = 10**15
"""Largest amount of any unit: a thousand million dollars, or 31,000 years. A larger one
is refused."""

_DECIMAL = re.compile(r"[0-9]{1,10}(\.[0-9]{1,18})?")
_MICRO = 1_000_000
_CENT = 10_000

Amount = int | str | Decimal
"""An amount as callers write it: `"0.25"` or `Decimal("0.25")` for usd, else an int."""

Clock = Callable[[], float]
"""Returns seconds since 1970 (UTC)."""

MICROSECONDS = 1_000_000
"""Microseconds of a second."""

# Counts suspended time too, where the system has such a clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_START = time.time() - time.clock_gettime(_STEADY)


def parse_amount(unit: str, value: object) -> int:
    """Return an amount as a whole number; parts of a micro-dollar count as one.

    Raises:
        InvalidInputError: The unit is unknown, or the value is negative, not finite,
            not whole, too large, or a float.
    """
    if unit == "usd":
        amount = _from_text(value) if type(value) is str else _micro_dollars(value)
    elif unit not in UNITS:
        raise InvalidInputError(
            f"{unit!r} is not a unit", hint=f"units are: {', '.join(UNITS)}"
        )
    elif type(value) is int:
        amount = value
    else:
        raise InvalidInputError(
            f"{unit} are counted in whole numbers, not {value!r}",
            hint="give an int of 0 or more",
        )
    if not 0 <= amount <= MAX_AMOUNT:
        raise InvalidInputError(
            f"{unit}: {value!r} is negative or too large",
            hint=f"0 to {MAX_AMOUNT} are taken, of usd in millionths",
        )
    return amount


@lru_cache(maxsize=4096)
def _from_text(text: str) -> int:
    if not _DECIMAL.fullmatch(text):
        raise _no_money(text)
    return _from_decimal(Decimal(text))


def _from_decimal(value: Decimal) -> int:
    # Compared first: the powers of ten of an exponent may not fit into memory.
    if not value.is_finite() or value.adjusted() > 12:
        raise _no_money(value)
    return int((value * _MICRO).to_integral_value(ROUND_CEILING))


def _micro_dollars(value: object) -> int:
    if isinstance(value, str):
        return _from_text(str(value))
    if type(value) is int:
        return value * _MICRO
    if isinstance(value, Decimal):
        return _from_decimal(value)
    raise _no_money(value)


def _no_money(value: object) -> InvalidInputError:
    return InvalidInputError(
        f"usd cannot be {value!r}", hint='write a decimal as text, such as "0.25"'
    )


@lru_cache(maxsize=4096)
def show_amount(unit: str, amount: int) -> int | str:
    """Return an amount as callers write it."""
    if unit != "usd":
        return amount
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), _MICRO)
    if rest % _CENT == 0:
        return f"{sign}{whole}.{rest // _CENT:02d}"
    return f"{sign}{whole}.{rest:06d}".rstrip("0")


def steady_time() -> float:
    """Return seconds since 1970 (UTC): the time at the start of the process, and since.

    Steps of the system's clock during the life of the process have no effect.
    """
    return _START + time.clock_gettime(_STEADY)


def microseconds(seconds: float) -> int:
    """Return whole microseconds, as stores count."""
    return round(seconds * MICROSECONDS)
