"""Garbage of a command that serves is looked for, but not in what there was before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from toolcell.host.terminal.interpreter import resume_collection


class Circle:
    """An object that only the collection of garbage frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*usual)


def test_what_was_made_before_a_command_serves_is_not_looked_through() -> None:
    before = weakref.ref(Circle())
    resume_collection()
    after = weakref.ref(Circle())
    gc.collect()

    assert before() is not None
    assert after() is None
