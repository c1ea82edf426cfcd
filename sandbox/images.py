"""Builds the container images that ship with toolcell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources

from toolcell.core import InvalidInputError, SandboxUnavailableError


def image_names() -> list[str]:
    """Return the names of the images that ship with toolcell."""
    folder = resources.files("toolcell.images")
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and entry.joinpath("Dockerfile").is_file()
    )


def build_image(
    name: str,
    *,
    base: str | None = None,
    arguments: Mapping[str, str] | None = None,
    tag: str | None = None,
    on_step: Callable[[int, int, str], None] | None = None,
) -> str:
    """Build an image and return its tag. Blocks until the engine is done.

    Args:
        name: One of `image_names()`.
        base: The image to build on; None takes the Dockerfile's public one.
        arguments: Other arguments of the Dockerfile, such as NODE.
        tag: The name to give it; None takes `toolcell/NAME:latest`.
        on_step: Called with the step's number, the number of steps and its text.

    Raises:
        InvalidInputError: There is no image of this name.
        SandboxUnavailableError: The engine does not answer, or the build failed.
    """
    import docker.errors

    from .docker_backend import connect

    if name not in image_names():
        known = ", ".join(image_names())
        raise InvalidInputError(f"there is no image {name!r}", hint=f"known: {known}")
    wanted = tag or f"toolcell/{name}:latest"
    try:
        client = connect(None)
        with resources.as_file(resources.files("toolcell.images") / name) as path:
            steps = client.api.build(
                path=str(path),
                tag=wanted,
                buildargs={**(arguments or {}), **({"BASE": base} if base else {})},
                rm=True,
                decode=True,
            )
            for step in steps:
                _follow(step, on_step)
    except docker.errors.DockerException as error:
        raise SandboxUnavailableError(
            f"the Docker engine did not build it: {error}",
            hint="is it running, and can it pull the base image? See docs/images.md",
        ) from None
    return wanted


def _follow(
    step: dict[str, str], on_step: Callable[[int, int, str], None] | None
) -> None:
    if "error" in step:
        raise SandboxUnavailableError(
            f"the build failed: {step['error']}", hint="see docs/images.md"
        )
    text = str(step.get("stream") or "").strip()
    if on_step is not None and text.startswith("Step "):
        done, _, total = text.split()[1].partition("/")
        on_step(int(done), int(total), text)
