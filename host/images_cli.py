"""`toolcell images`: the container images that cells can run in."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

images = typer.Typer(help="Container images for cells.", no_args_is_help=True)


@images.command()
def build(
    name: Annotated[str, typer.Argument(help="A folder of images/.")] = "python",
    base: Annotated[
        str | None, typer.Option(help="The image to build on; default the public one.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The name to give it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build an image with the Docker engine."""
    built = _build(name, base, tag, quiet=as_json)
    print(json.dumps({"tag": built}) if as_json else f"built {built}")


def _build(name: str, base: str | None, tag: str | None, *, quiet: bool) -> str:
    """Build and show each step: a bar on a terminal, plain lines elsewhere."""
    from rich.console import Console
    from rich.progress import Progress

    from toolcell.sandbox import build_image

    console = Console(file=sys.stderr, quiet=quiet)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"building {name}", total=None)

        def on_step(done: int, total: int, text: str) -> None:
            bar.update(task, total=total, completed=done, description=text)
            if not console.is_terminal:
                console.print(text, markup=False)

        return build_image(name, base=base, tag=tag, on_step=on_step)
