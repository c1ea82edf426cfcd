"""The name of who makes the calls of the present task, for the audit log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

present_caller: ContextVar[str | None] = ContextVar("present_caller", default=None)
"""The name; None: nobody has said."""


@contextmanager
def called_by(name: str) -> Iterator[None]:
    """Name who makes the calls inside, those of programs that they run included.

    The audit log has it as `caller`, such as `token 1f2e3d4c5b6a7980`. Rules do not
    see it: they judge the agent.

    Args:
        name: The credential, or the person.
    """
    before = present_caller.set(name)
    try:
        yield
    finally:
        present_caller.reset(before)
