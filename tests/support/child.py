"""Processes that tests start, and that never outlive them."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import TYPE_CHECKING, Any, AnyStr, ClassVar


class Child(subprocess.Popen[AnyStr]):
    """A process whose `with` block kills it if the block fails.

    `Popen` waits for its process there, for ever if nobody ends it. Whatever else is
    left is killed at the end of the tests.
    """

    all: ClassVar[list[Child[Any]]] = []

    if not TYPE_CHECKING:  # text or bytes: what the arguments of `Popen` say

        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.all.append(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.kill()
        super().__exit__(kind, error, trace)


def end_children() -> None:
    """Kill the children that still run."""
    for child in Child.all:
        if child.poll() is None:
            child.kill()
            child.wait()
