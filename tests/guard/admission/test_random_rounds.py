"""Random rounds of calls at once: each answer must be right in one common order.

Rows RG-23 and RG-37. A failure names its round, which names what was asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ...support.guard.builders import NOON
from ...support.guard.contenders import (
    Burst,
    Crew,
    Processes,
    processes,
    tasks,
    threads,
)
from ...support.guard.linearizability import check
from ...support.guard.random_rounds import Round
from ...support.guard.store_table import SHARED, STORES, sizes, store_places

SECOND = 1_000_000


def play(name: str, rounds: int, burst: Burst) -> None:
    """Play rounds with workers that live."""
    now = int(NOON) * SECOND
    for number in range(rounds):
        one = Round(f"{name} {number}", now)
        try:
            for jobs in one.bursts():
                one.heard(burst(one.now, jobs))
            check(one)
        except BaseException as error:
            error.add_note(f"in round {one.name!r}")
            raise
        now = one.now


def play_deadly(name: str, rounds: int, crew: Processes, *, reaps: bool) -> None:
    """Play rounds with workers that are killed at random moments."""
    now = int(NOON) * SECOND
    for number in range(rounds):
        one = Round(f"{name} {number}", now, in_doubt=True)
        crew.forget()
        try:
            for jobs in one.bursts():
                one.heard(crew.burst(one.now, jobs))
                one.buried(crew.dead)
            check(one, reaps=reaps)
        except BaseException as error:
            error.add_note(f"in round {one.name!r}")
            raise
        now = one.now


@pytest.mark.promise("E-113", "RG-37")
@pytest.mark.parametrize("rounds", sizes(30, 5000, 3600))
@pytest.mark.parametrize("crew", [tasks, threads], ids=["tasks", "threads"])
@pytest.mark.parametrize("name", STORES)
def test_calls_at_once_are_answered_as_in_one_order(
    name: str, crew: Crew, rounds: int
) -> None:
    with store_places(name) as place, crew(place()) as burst:
        play(name, rounds, burst)


@pytest.mark.promise("E-113", "RG-23", "RG-37")
@pytest.mark.parametrize("rounds", sizes(20, 2000, 3600))
@pytest.mark.parametrize("name", SHARED)
def test_processes_are_answered_as_in_one_order(
    tmp_path: Path, name: str, rounds: int
) -> None:
    with (
        store_places(name) as place,
        processes(place(), tmp_path, name, deadly=False) as crew,
    ):
        play(name, rounds, crew.burst)


@pytest.mark.promise("E-114")
@pytest.mark.parametrize("rounds", sizes(8, 1000, 3600))
@pytest.mark.parametrize("name", SHARED)
def test_processes_that_are_killed_with_open_holds_leave_an_exact_account(
    tmp_path: Path, name: str, rounds: int
) -> None:
    with (
        store_places(name) as place,
        processes(place(), tmp_path, name, deadly=True) as crew,
    ):
        play_deadly(name, rounds, crew, reaps=name == "sqlite")
