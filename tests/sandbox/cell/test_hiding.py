"""Processes that hide their files, and those that had no time to show them yet."""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.sandbox.cell.accounting.hiding import Hiding

LOOK_SECONDS = 0.2


def hides(looks: int, *, seconds: float, cpu_share: float, asleep: bool) -> bool:
    """Return what the last look says of a process that never shows its files."""
    hiding, said = Hiding(), False
    for look in range(looks):
        now = look * seconds
        said = hiding.hides("7", now, now * cpu_share, asleep=asleep)
    return said


@pytest.mark.promise("E-46", "E-63")
@pytest.mark.parametrize(
    ("cpu_share", "asleep"), [(0, True), (1, False)], ids=["it sleeps", "it runs"]
)
def test_what_shows_nothing_for_a_second_hides_it(
    cpu_share: float, asleep: bool
) -> None:
    options: dict[str, Any] = {
        "seconds": LOOK_SECONDS,
        "cpu_share": cpu_share,
        "asleep": asleep,
    }

    assert not hides(5, **options)
    assert hides(8, **options)


@pytest.mark.promise("E-46", "E-63")
def test_what_gets_no_cpu_to_start_hides_nothing_for_ten_seconds() -> None:
    options: dict[str, Any] = {"seconds": LOOK_SECONDS, "cpu_share": 0.0005}

    assert not hides(50, asleep=False, **options)
    assert hides(53, asleep=False, **options)


def test_time_without_looks_is_nobodys() -> None:
    assert not hides(5, seconds=60, cpu_share=0, asleep=True)


def test_what_shows_its_files_begins_anew() -> None:
    hiding = Hiding()
    for look in range(100):
        assert not hiding.hides("7", look / 5, 0, asleep=True)
        if look % 4 == 3:
            hiding.shows("7")


def test_a_number_that_was_free_is_another_process() -> None:
    hiding = Hiding()
    for look in range(6):
        hiding.hides("7", look / 5, 0, asleep=True)
    hiding.forget_all_but({"8"})

    assert not hiding.hides("7", 1.2, 0, asleep=True)
