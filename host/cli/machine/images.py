"""`toolcell images`: the container images that cells can run in."""

from __future__ import annotations

from typing import Annotated

import typer

from toolcell.core import InvalidInputError
from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json
from ...terminal.progress import progress
from ..base.options import AsJson

images = typer.Typer(
    help="Build, pull, list and prune images for cells.", no_args_is_help=True
)


@images.command()
def build(
    name: Annotated[str, typer.Argument(help="A folder of images/.")] = "python",
    base: Annotated[
        str | None, typer.Option(help="The image to build on; default the public one.")
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: another argument of the Dockerfile."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="The name to give it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Build an image with the Docker engine."""
    from toolcell.sandbox.spi import build_image

    arguments = dict(_split(text) for text in arg or [])
    with progress(f"building {name}", quiet=as_json) as on_step:
        built = build_image(
            name, base=base, arguments=arguments, tag=tag, on_step=on_step
        )
    if as_json:
        print_json({"tag": built})
    else:
        print(f"built {escaped_line(built)}")


def _split(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(
            f"--arg {text!r} is not of the form NAME=VALUE",
            hint="write it like --arg PIP_VERSION=25.0",
        )
    return name, value


@images.command()
def pull(
    image: Annotated[str, typer.Argument(help="NAME:TAG or NAME@sha256:...")],
    as_json: AsJson = False,
) -> None:
    """Fetch an image ahead of need; print its name with a digest."""
    from toolcell.sandbox.spi import pull_image

    with progress(f"pulling {image}", quiet=as_json) as on_step:
        pinned = pull_image(image, on_step=on_step)
    if as_json:
        print_json({"image": pinned})
    else:
        print(escaped_line(pinned))


@images.command(name="list")
def list_(as_json: AsJson = False) -> None:
    """Show the images of the engine and what they cost on its disk."""
    from toolcell.sandbox.spi import list_images

    found = list_images()
    if as_json:
        print_json([image.model_dump() for image in found])
        return
    for image in found:
        name = ", ".join(image.names) or "(superseded)"
        note = f", built as {image.built_as}" if image.built_as else ""
        sizes = (
            f"{image.size_bytes >> 20:>6} MiB, {image.own_bytes >> 20:>5} MiB its own"
        )
        print(f"{sizes}  {escaped_line(name)}{escaped_line(note)}")
        for pinned in image.pinned:
            print(f"{'':>29}{escaped_line(pinned)}")
    # Layers that images share are counted with none of them here.
    unshared = sum(image.own_bytes for image in found) >> 20
    print(f"{counted(len(found), 'image')}, {unshared} MiB unshared")


@images.command()
def prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Remove images that have a name, too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove images that toolcell built: superseded ones, or all."""
    from toolcell.sandbox.spi import prune_images

    removed = prune_images(everything=everything)
    if as_json:
        print_json({"removed": removed})
        return
    for name in removed:
        print(f"removed {escaped_line(name)}")
    print(f"{counted(len(removed), 'image')} removed")
