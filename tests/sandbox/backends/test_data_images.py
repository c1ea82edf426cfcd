"""Real programs with numpy, pandas, matplotlib and scipy; images that carry them."""

from __future__ import annotations

import gzip
import hashlib
import importlib.resources
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import docker
import pytest

from toolcell.core import InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import Limits, PackageRules, SandboxConfig, SandboxManager
from toolcell.sandbox.admin.images import LABEL
from toolcell.sandbox.spi import (
    build_image,
    image_names,
    list_images,
    prune_images,
    pull_image,
)

from ...conftest import DOCKER, IMAGE, SUBPROCESS, missing, run_apart, why_no_docker
from ...support.toolcell_command import toolcell

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

DATA_IMAGE = "toolcell-test/python-data:latest"
REQUIREMENTS = tuple(
    (importlib.resources.files("toolcell.images") / "python-data/requirements.txt")
    .read_text()
    .split()
)
PROGRAM = """
import numpy, pandas, scipy.stats
from matplotlib import pyplot
frame = pandas.DataFrame({"x": numpy.arange(50), "y": numpy.arange(50) * 2 + 1})
fit = scipy.stats.linregress(frame.x, frame.y)
frame.plot(x="x", y="y")
[round(float(fit.slope), 6), round(float(fit.intercept), 6), int(frame.y.sum())]
"""
LIMITS = Limits(memory_mib=1024, wall_seconds=60)


def needs_docker() -> None:
    if why := why_no_docker(None):
        missing(why)


async def draw(config: SandboxConfig) -> None:
    async with SandboxManager(config) as manager:
        result = await manager.run(PROGRAM)

    assert result.status == "ok", result.stderr
    assert result.value == [2.0, 1.0, 2500]
    [picture] = result.artifacts
    assert (picture.name, picture.mime) == ("figure-1.png", "image/png")
    assert picture.data.startswith(b"\x89PNG")
    assert picture.size > 5_000


@pytest.fixture(scope="module")
def installed() -> SandboxConfig:
    """The packages of images/python-data, for cells of this machine."""
    config = SUBPROCESS.config(
        packages=REQUIREMENTS, package_rules=PackageRules(seconds=300), limits=LIMITS
    )

    async def install() -> None:
        async with SandboxManager(config):
            pass

    run_apart(install)
    return config


async def test_a_program_draws_with_packages(installed: SandboxConfig) -> None:
    await draw(installed)


@pytest.mark.docker
def test_the_image_is_built_and_draws(installed: SandboxConfig) -> None:
    needs_docker()
    steps: list[str] = []
    tag = build_image(
        "python-data",
        base=IMAGE,
        tag=DATA_IMAGE,
        on_step=lambda done, total, text: steps.append(text),
    )

    assert tag == DATA_IMAGE
    assert any("FROM" in step for step in steps)
    [image] = [each for each in list_images() if DATA_IMAGE in each.names]
    assert image.built_as == "python-data"
    assert 0 < image.own_bytes < image.size_bytes
    run_apart(draw, DOCKER.config(image=DATA_IMAGE, limits=LIMITS))


@pytest.mark.docker
def test_superseded_builds_are_pruned_and_names_stay() -> None:
    needs_docker()
    tags = [build_image("python", base=IMAGE, tag="toolcell-test/pruned:1")]
    tags.append(build_image("python", base=tags[0], tag="toolcell-test/pruned:2"))
    prune_images()
    names = {name for image in list_images() for name in image.names}

    assert set(tags) <= names
    assert all(image.names for image in list_images() if image.built_as == "python")
    removed = toolcell("images", "prune", "--json")
    assert json.loads(removed.stdout) == {"removed": []}


@pytest.mark.docker
def test_images_that_somebody_else_removes_meanwhile_stop_no_prune() -> None:
    needs_docker()
    start = threading.Barrier(4)

    def prune() -> list[str]:
        start.wait(60)
        return prune_images()

    with closing(docker.from_env()) as client, ThreadPoolExecutor(4) as threads:
        made = {superseded_build(client, f"{number}") for number in range(12)}
        removed = [each.result(120) for each in [threads.submit(prune) for _ in "1234"]]
        left = {image["Id"] for image in client.api.images()}

    assert not made & left
    assert made <= {name for names in removed for name in names}


def superseded_build(client: docker.DockerClient, text: str) -> str:
    """Make an image without a name, as if `build_image` had; return its id."""
    dockerfile = io.BytesIO(f'FROM scratch\nLABEL {LABEL}="{text}"\n'.encode())
    image, _ = client.images.build(fileobj=dockerfile, rm=True)
    return str(image.id)


def test_images_that_are_not_there() -> None:
    assert set(image_names()) == {"node", "python", "python-data"}
    with pytest.raises(InvalidInputError, match="no image"):
        build_image("ruby")
    done = toolcell("images", "build", "node", "--arg", "NODE")
    assert done.returncode == 2
    assert b"NAME=VALUE" in done.stderr


@contextmanager
def registry(files: dict[str, tuple[str, bytes]]) -> Iterator[str]:
    """Serve an image registry on loopback; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, data = files.get(self.path, ("", b""))
            self.send_response(200 if kind or self.path == "/v2/" else 404)
            self.send_header("Content-Type", kind or "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", digest(data))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def served(
    name: str, settings: bytes, layers: list[bytes]
) -> tuple[dict[str, tuple[str, bytes]], str]:
    """Return what a registry serves of an image, and the image's digest."""
    kind = "application/vnd.docker.{}"
    settings_kind = kind.format("container.image.v1+json")
    layer_kind = kind.format("image.rootfs.diff.tar.gzip")
    manifest_kind = kind.format("distribution.manifest.v2+json")

    def about(kind: str, data: bytes) -> dict[str, object]:
        return {"mediaType": kind, "size": len(data), "digest": digest(data)}

    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": manifest_kind,
            "config": about(settings_kind, settings),
            "layers": [about(layer_kind, layer) for layer in layers],
        }
    ).encode()
    files = {f"/v2/{name}/blobs/{digest(settings)}": (settings_kind, settings)}
    for layer in layers:
        files[f"/v2/{name}/blobs/{digest(layer)}"] = (layer_kind, layer)
    for tag in ("1", digest(manifest)):
        files[f"/v2/{name}/manifests/{tag}"] = (manifest_kind, manifest)
    return files, digest(manifest)


def image_files() -> tuple[dict[str, tuple[str, bytes]], str]:
    """Return what a registry serves of a tiny image, and the image's digest."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("file"))
    rootfs = {"type": "layers", "diff_ids": [digest(layer.getvalue())]}
    settings = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}
    ).encode()
    return served("tiny", settings, [gzip.compress(layer.getvalue(), mtime=0)])


@pytest.mark.docker
def test_an_image_is_pulled_and_pinned_by_its_digest() -> None:
    import docker

    needs_docker()
    files, mark = image_files()
    with registry(files) as address:
        steps: list[str] = []
        name = f"{address}/tiny"
        try:
            pinned = pull_image(
                f"{name}:1", on_step=lambda done, total, text: steps.append(text)
            )
            assert pinned == f"{name}@{mark}"
            assert steps
            assert pull_image(pinned) == pinned
            assert pinned in {each for i in list_images() for each in i.pinned}
            done = toolcell("images", "pull", pinned)
            assert done.stdout.decode() == f"{pinned}\n", done.stderr
            other = digest(b"another image")
            with pytest.raises(SandboxUnavailableError, match="tiny"):
                pull_image(f"{name}@{other}")
        finally:
            client = docker.from_env()
            for image in client.images.list(name):
                client.images.remove(str(image.id), force=True)
            client.close()


@pytest.mark.docker
@pytest.mark.full
def test_cells_run_in_a_pinned_image() -> None:
    import docker

    needs_docker()
    client = docker.from_env()
    saved = io.BytesIO(b"".join(client.images.get(IMAGE).save()))
    with tarfile.open(fileobj=saved) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file is not None
            return file.read()

        [parts] = json.loads(read("manifest.json"))
        layers = [read(layer) for layer in parts["Layers"]]
        files, mark = served("cells", read(parts["Config"]), layers)

    async def value(image: str) -> object:
        async with SandboxManager(DOCKER.config(image=image)) as manager:
            return (await manager.run("6 * 7")).value

    try:
        with registry(files) as address:
            pinned = pull_image(f"{address}/cells:1")
        assert pinned == f"{address}/cells@{mark}"
        assert run_apart(value, pinned) == 42
        with pytest.raises(SandboxUnavailableError, match="no image"):
            run_apart(value, f"{address}/cells@{digest(b'other')}")
    finally:
        if client.images.list(f"{address}/cells"):
            client.images.remove(f"{address}/cells@{mark}")
        client.close()


@pytest.mark.docker
def test_the_command_line_shows_what_images_cost() -> None:
    needs_docker()
    told = toolcell("images", "list").stdout.decode()
    [image] = [each for each in list_images() if IMAGE in each.names]

    size, own = image.size_bytes >> 20, image.own_bytes >> 20
    assert f"{size:>6} MiB, {own:>5} MiB its own  " in told
    assert IMAGE in told
    assert told.splitlines()[-1].endswith("MiB unshared")
