"""What a refusal tells people to do."""

from __future__ import annotations

import pytest

from toolcell.guard import Decision


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.001, "0.1"),
        (2.25, "2.3"),
        (9.99, "10"),
        (30.0, "30"),
        (33_220.024759, "33221"),
        (1_388_800.2, "1388801"),
    ],
)
def test_the_time_to_wait_is_never_told_too_short(seconds: float, told: str) -> None:
    error = Decision("deny", "rate_limited", retry_after=seconds).to_error()

    assert error.hint == f"try again in {told} s"
    assert error.details["retry_after"] == seconds
