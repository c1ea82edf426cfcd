"""One machine's sandbox has the shape that tools and hosts are typed by."""

from __future__ import annotations

from inspect import signature

from toolcell.sandbox import Process, Sandbox, SandboxManager, SandboxSession
from toolcell.sandbox.spi import SandboxProcess


def as_process(process: Process) -> SandboxProcess:
    """Hold by types alone: mypy is the test."""
    return process


def test_methods_of_commands_take_the_same_arguments() -> None:
    methods = [
        name
        for name, member in vars(SandboxProcess).items()
        if callable(member) and not name.startswith("_")
    ]

    assert len(methods) > 5
    for name in methods:
        taken = signature(getattr(Process, name)).parameters
        assert signature(getattr(SandboxProcess, name)).parameters == taken, name


def test_a_manager_and_its_session_are_told_apart() -> None:
    manager = SandboxManager()

    assert isinstance(manager, Sandbox)
    assert not isinstance(manager, SandboxSession)
