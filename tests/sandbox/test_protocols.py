"""One machine's sandbox has the shape that tools and hosts are typed by."""

from __future__ import annotations

from inspect import signature

import pytest

from toolcell.sandbox import (
    Process,
    Sandbox,
    SandboxManager,
    SandboxProcess,
    SandboxSession,
    Session,
)

PAIRS = [
    (Sandbox, SandboxManager),
    (SandboxSession, Session),
    (SandboxProcess, Process),
]


def as_sandbox(manager: SandboxManager) -> Sandbox:
    """Hold by types alone: mypy is the test."""
    return manager


def as_session(session: Session) -> SandboxSession:
    """Hold by types alone: mypy is the test."""
    return session


def as_process(process: Process) -> SandboxProcess:
    """Hold by types alone: mypy is the test."""
    return process


@pytest.mark.parametrize(("shape", "kind"), PAIRS)
def test_methods_take_the_same_arguments(shape: type, kind: type) -> None:
    methods = [
        name
        for name, member in vars(shape).items()
        if callable(member) and not name.startswith("_")
    ]

    assert len(methods) > 5
    for name in methods:
        taken = signature(getattr(kind, name)).parameters
        asked = signature(getattr(shape, name)).parameters
        # Later names of one machine need not be here yet.
        assert list(asked) == [each for each in taken if each in asked], name
        given = {n: p.default for n, p in asked.items() if p.default is not ...}
        assert given == {n: taken[n].default for n in given}, name


def test_a_manager_and_its_session_are_told_apart() -> None:
    manager = SandboxManager()

    assert isinstance(manager, Sandbox)
    assert not isinstance(manager, SandboxSession)
