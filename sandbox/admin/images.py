"""The container images of cells: built, pulled by digest, listed, removed."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import anyio
from pydantic import BaseModel, ConfigDict

from toolcell.core import InvalidInputError, SandboxUnavailableError

from ..config.package_rules import PackageRules
from ..config.settings import SandboxConfig

if TYPE_CHECKING:
    import docker

    from ..packages.installer import PackageInstaller

LABEL = "dev.toolcell.image"
"""The label of every image that `build_image` made; its value is the name."""

_REQUIREMENTS = "requirements.txt"
# The longest silence of a build or a pull.
_SILENT_SECONDS = 60
OnImageStep = Callable[[int, int, str], None]


class ImageInfo(BaseModel):
    """An image of the engine, as `toolcell images list` shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    names: tuple[str, ...]
    """Its tags; empty if newer builds took them all."""

    pinned: tuple[str, ...]
    """Names with a digest, for `SandboxConfig(image=...)`; empty if never pulled."""

    built_as: str | None
    """Its name in `image_names()`; None if toolcell did not build it."""

    size_bytes: int
    """Bytes of all its layers."""

    own_bytes: int
    """Bytes of the layers that no other image has; its removal frees them."""

    in_use: bool
    """True if a container uses it."""


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
    on_step: OnImageStep | None = None,
) -> str:
    """Build an image and return its tag. Blocks until the engine is done.

    Packages of an image are installed as for programs, by uv on this machine, for
    the interpreter of the base, which must be on the engine then.

    Args:
        name: One of `image_names()`.
        base: The image to build on; None takes the Dockerfile's public one.
        arguments: Other arguments of the Dockerfile, such as NODE.
        tag: The name to give it; None takes `toolcell/NAME:latest`.
        on_step: Called with the step's number, the number of steps and its text.

    Raises:
        InvalidInputError: There is no image of this name.
        PackageError: A package of the image cannot be installed.
        SandboxUnavailableError: The engine does not answer, or the build failed.
    """
    if name not in image_names():
        known = ", ".join(image_names())
        raise InvalidInputError(f"there is no image {name!r}", hint=f"known: {known}")
    wanted = tag or f"toolcell/{name}:latest"
    with (
        resources.as_file(resources.files("toolcell.images") / name) as folder,
        tempfile.TemporaryFile() as context,
    ):
        with ThreadPoolExecutor(1) as thread:
            # Its own loop, whether or not the caller is in one.
            pack = thread.submit(anyio.run, _pack, folder, base, context, on_step)
            pack.result()
        context.seek(0)
        build_arguments = {**(arguments or {}), **({"BASE": base} if base else {})}
        _build(context, name, wanted, build_arguments, on_step)
    return wanted


def _build(
    context: IO[bytes],
    name: str,
    tag: str,
    arguments: dict[str, str],
    on_step: OnImageStep | None,
) -> None:
    with _engine("build it") as client:
        steps = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            buildargs=arguments,
            labels={LABEL: name},
            rm=True,
            decode=True,
        )
        for step in steps:
            _follow(step, on_step)


async def _pack(
    folder: Path, base: str | None, context: IO[bytes], on_step: OnImageStep | None
) -> None:
    """Write the build context: the Dockerfile, and installed packages."""
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.add(folder / "Dockerfile", "Dockerfile")
        if not (folder / _REQUIREMENTS).exists():
            return
        from ..packages.layer_store import LayerStore

        lines = (folder / _REQUIREMENTS).read_text().splitlines()
        wanted = tuple(filter(None, map(str.strip, lines)))
        config = SandboxConfig(
            backend="docker",
            image=base or _public_base(folder / "Dockerfile"),
            package_rules=PackageRules(allow=wanted),
        )

        def tell(line: str) -> None:
            if on_step is not None:
                on_step(0, 1, line)

        async with _packages(config) as packages:
            shown_at = await packages.layer(wanted, tell)
            layer = LayerStore().layers / Path(shown_at).name
            archive.add(layer, "packages", filter=_as_root)


@asynccontextmanager
async def _packages(config: SandboxConfig) -> AsyncIterator[PackageInstaller]:
    """Open a backend for long enough to install packages for its cells."""
    from ..backends.selection import check_strength, open_backend
    from ..packages.installer import PackageInstaller

    backend, _ = await open_backend(config)
    try:
        check_strength(config, backend.traits)
        packages = PackageInstaller(config, backend)
        try:
            yield packages
        finally:
            packages.close()
    finally:
        with anyio.CancelScope(shield=True):
            await backend.aclose()


def _public_base(dockerfile: Path) -> str:
    lines = dockerfile.read_text().splitlines()
    return next(line[9:] for line in lines if line.startswith("ARG BASE="))


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def _follow(step: dict[str, Any], on_step: OnImageStep | None) -> None:
    if "error" in step:
        raise SandboxUnavailableError(
            f"the build failed: {step['error']}", hint="see docs/images.md"
        )
    text = str(step.get("stream") or "").strip()
    if on_step is not None and text.startswith("Step "):
        done, _, total = text.split()[1].partition("/")
        on_step(int(done), int(total), text)


def pull_image(image: str, *, on_step: OnImageStep | None = None) -> str:
    """Fetch an image and return its name with a digest. Blocks until it is there.

    Args:
        image: A name with a tag, or with a digest, which the engine then checks.
        on_step: Called with layers done, layers known and the engine's message.

    Raises:
        SandboxUnavailableError: The engine does not answer, or cannot have it.
    """
    done: dict[str, bool] = {}
    with _engine(f"pull {image}") as client:
        repository, at, digest = image.partition("@")
        tag = digest if at else None
        if not at and ":" not in repository.rpartition("/")[2]:
            tag = "latest"
        for step in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in step:
                raise SandboxUnavailableError(
                    f"{image} was not pulled: {step['error']}",
                    hint="is the name right, and can the engine reach the registry?",
                )
            if "id" in step and on_step is not None:
                status = str(step.get("status", ""))
                done[step["id"]] = status in ("Pull complete", "Already exists")
                on_step(sum(done.values()), len(done), f"{step['id']}: {status}")
        found = client.images.get(image)
        digests: list[str] = found.attrs.get("RepoDigests") or []
    name = repository if at else repository.rpartition(":")[0] or repository
    return next((each for each in digests if each.startswith(f"{name}@")), image)


def list_images() -> tuple[ImageInfo, ...]:
    """Return the images of the engine, the largest first.

    Raises:
        SandboxUnavailableError: The engine does not answer.
    """
    with _engine("list its images") as client:
        found: list[dict[str, Any]] = client.df()["Images"] or []
    images = (_info(image) for image in found)
    return tuple(sorted(images, key=lambda each: (-each.size_bytes, each.names)))


def _names(found: dict[str, Any]) -> list[str]:
    return [tag for tag in found.get("RepoTags") or [] if tag != "<none>:<none>"]


def _info(found: dict[str, Any]) -> ImageInfo:
    pinned = [
        digest for digest in found.get("RepoDigests") or [] if "<none>" not in digest
    ]
    size = found["Size"]
    return ImageInfo(
        names=tuple(_names(found)),
        pinned=tuple(pinned),
        built_as=(found.get("Labels") or {}).get(LABEL),
        size_bytes=size,
        own_bytes=size - max(found.get("SharedSize") or 0, 0),
        in_use=bool(found.get("Containers")),
    )


def prune_images(*, everything: bool = False) -> list[str]:
    """Remove images that toolcell built and no container is made of.

    Args:
        everything: Those that still have a name, too, not only superseded builds.

    Returns:
        Names or ids of what was removed.

    Raises:
        SandboxUnavailableError: The engine does not answer.
    """
    import docker.errors

    removed = []
    with _engine("remove images") as client:
        # `client.images.list` asks for each, and breaks if one is removed meanwhile.
        for image in client.api.images(filters={"label": LABEL}):
            names = _names(image)
            if names and not everything:
                continue
            try:
                for name in names or [image["Id"]]:
                    client.images.remove(name)
                    removed.append(name)
            except docker.errors.APIError as error:
                # In use, or another image is built on it.
                if error.status_code != 409 and _is_there(client, image["Id"]):
                    raise
    return removed


def _is_there(client: docker.DockerClient, image: str) -> bool:
    import docker.errors

    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        return False
    return True


@contextmanager
def _engine(purpose: str) -> Iterator[docker.DockerClient]:
    import docker.errors

    from ..backends.docker_engine import connect, unreached

    try:
        try:
            client = connect(None, _SILENT_SECONDS)
        except (OSError, docker.errors.DockerException) as error:
            raise unreached(error, None) from None
        try:
            yield client
        finally:
            client.close()
    except docker.errors.DockerException as error:
        raise SandboxUnavailableError(
            f"the Docker engine did not {purpose}: {error}",
            hint="is it running, and can it reach the registry? See docs/images.md",
        ) from None
