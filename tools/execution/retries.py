"""The policy for trying failed calls again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class RetryPolicy(BaseModel):
    """Tries a tool again when it failed or timed out.

    It applies to tools that are declared idempotent, and to no others: a payment
    that may have gone through is not made twice. Each attempt is admitted by the
    guard and charged on its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Attempts in all; default 3. When it is reached the last failure is the result."""

    first_seconds: _Seconds = 0.5
    """The longest pause before the second attempt, in seconds; it doubles each time."""

    longest_seconds: _Seconds = 30.0
    """The longest pause, in seconds. When it is reached the pause grows no more."""

    def pause(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Return seconds to wait after an attempt that failed.

        Args:
            attempt: The number of the attempt that failed; 1 is the first.
            chance: Returns numbers from 0 to 1. Callers that failed together
                should not come back together.
        """
        return chance() * min(
            self.longest_seconds, self.first_seconds * 2.0 ** (attempt - 1)
        )
