"""Files by which processes know whether an owner of theirs is alive."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from toolcell.core.storage.processes import OwnerFile


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something done once, while the next lock is held."""
    lock = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        lock(fd, operation)
        monkeypatch.setattr(fcntl, "flock", lock)
        act()

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def dead(tmp_path: Path) -> str:
    """The name of an owner that ended with open holds."""
    owner = OwnerFile(tmp_path / "db")
    owner.close(holds=True)
    return owner.name


def test_an_owner_is_alive_until_it_ends(tmp_path: Path) -> None:
    first, second = OwnerFile(tmp_path / "db"), OwnerFile(tmp_path / "db")

    assert second.state_of(first.name) == "alive"
    first.close(holds=True)
    assert second.state_of(first.name) == "dead"
    second.remove(first.name)
    assert second.state_of(first.name) == "missing"


@pytest.mark.parametrize("first", [OwnerFile.state_of, OwnerFile.remove])
def test_two_that_look_at_once_do_not_take_each_other_for_the_owner(
    tmp_path: Path,
    dead: str,
    first: Callable[[OwnerFile, str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = OwnerFile(tmp_path / "db"), OwnerFile(tmp_path / "db")
    seen: list[str] = []
    meanwhile(monkeypatch, lambda: seen.append(other.state_of(dead)))

    first(one, dead)

    assert seen == ["dead"]


def test_who_looks_does_not_keep_a_dead_owners_file(
    tmp_path: Path, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = OwnerFile(tmp_path / "db"), OwnerFile(tmp_path / "db")
    meanwhile(monkeypatch, lambda: other.remove(dead))

    assert one.state_of(dead) == "dead"
    assert one.state_of(dead) == "missing"


def test_a_living_owners_file_is_not_removed(tmp_path: Path) -> None:
    one, other = OwnerFile(tmp_path / "db"), OwnerFile(tmp_path / "db")

    other.remove(one.name)

    assert other.state_of(one.name) == "alive"
