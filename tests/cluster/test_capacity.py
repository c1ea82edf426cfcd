"""What is held of machines, and asked for, by a clock that tests turn."""

from __future__ import annotations

import pytest

from toolcell.cluster.membership.capacity import (
    DEMAND_SECONDS,
    IDLE_SECONDS,
    MAX_DEMAND,
    Demand,
    Holding,
)


def test_a_machine_is_held_in_quarters() -> None:
    holding = Holding(16)
    assert holding.part == 4
    assert [holding.parts(busy, 0) for busy in (0, 1, 4, 5, 16, 99)] == [
        *(0, 1, 1, 2, 4, 4)
    ]


def test_a_small_machine_is_held_slot_by_slot() -> None:
    holding = Holding(3)
    assert (holding.part, holding.parts(2, 0), holding.parts(3, 0)) == (1, 2, 3)


@pytest.mark.promise("cluster-45")
def test_what_is_idle_is_let_go_after_a_while() -> None:
    holding = Holding(8)
    assert holding.parts(8, 0) == 4
    assert holding.parts(0, 10) == 4
    assert holding.parts(0, 10 + IDLE_SECONDS - 0.1) == 4
    assert holding.parts(0, 10 + IDLE_SECONDS) == 0


def test_a_short_pause_lets_nothing_go() -> None:
    holding = Holding(8)
    holding.parts(8, 0)
    holding.parts(0, 10)
    assert holding.parts(8, 50) == 4
    assert holding.parts(0, 60) == 4
    assert holding.parts(0, 60 + IDLE_SECONDS - 0.1) == 4


@pytest.mark.promise("cluster-45")
def test_what_waits_for_a_while_is_asked_for() -> None:
    demand = Demand()
    demand.tell("one", 3, until=100)
    demand.tell("two", 4, until=100)
    assert demand.waiting(0) == 7
    assert demand.slots(0) == 0
    assert demand.slots(DEMAND_SECONDS) == 7
    demand.tell("one", 0, until=100)
    assert demand.slots(DEMAND_SECONDS) == 4
    demand.tell("two", 10 * MAX_DEMAND, until=100)
    assert demand.slots(DEMAND_SECONDS) == MAX_DEMAND


def test_a_driver_that_says_nothing_more_waits_no_more() -> None:
    demand = Demand()
    demand.tell("one", 3, until=5)
    demand.slots(0)
    assert demand.slots(5) == 0
    demand.tell("one", 3, until=20)
    assert demand.slots(6) == 0
    assert demand.slots(6 + DEMAND_SECONDS) == 3
