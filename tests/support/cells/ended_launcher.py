"""A machine on which no cell can be made for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolcell.sandbox import Sandbox
from toolcell.sandbox.backends.cell_bundle import interpreter


def linked_interpreter(folder: Path) -> Path:
    """Return a link to the interpreter, for `SandboxConfig.python`."""
    link = folder / "python3"
    link.symlink_to(interpreter())
    return link


@contextmanager
def without_launcher(sandbox: Sandbox, link: Path) -> Iterator[None]:
    """End the launcher of a sandbox; another one starts after the block.

    Args:
        sandbox: A manager whose backend is `subprocess`.
        link: The interpreter of its configuration, as `linked_interpreter` makes it.
    """
    manager: Any = sandbox
    process = manager._open_backend._launcher._process
    link.unlink()
    process.kill()
    process.wait()
    try:
        yield
    finally:
        link.symlink_to(interpreter())
