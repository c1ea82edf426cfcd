"""Offers a person the one thing that an engine lacks: the image of cells."""

from __future__ import annotations

import sys

import typer

from toolcell.core import ToolcellError


def pulls_missing_image(error: ToolcellError) -> bool:
    """Ask, on a terminal, to pull the image that is missing; True if it is here now.

    A program that is typed at the terminal has been read already, so it is not asked.

    Args:
        error: The error that ended a command.

    Raises:
        SandboxUnavailableError: The engine cannot pull it.
    """
    missing = error.details.get("reason") == "image_missing"
    image = error.details.get("image")
    seen = sys.stdin.isatty() and sys.stderr.isatty() and "-" not in sys.argv
    if not (missing and image and seen):
        return False
    typer.echo(f"toolcell: {error.message}", err=True)
    if not typer.confirm(f"pull {image} now?", default=True, err=True):
        return False
    from toolcell.sandbox.spi import pull_image

    from ...terminal.progress import progress

    with progress(f"pulling {image}", quiet=False) as on_step:
        pull_image(str(image), on_step=on_step)
    return True
