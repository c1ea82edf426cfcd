"""Images that declare volumes: no program gets a folder of the host's disk."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import Limits, Mount, SandboxManager
from toolcell.sandbox.backends.docker_volumes import covers

from ...conftest import IMAGE, BackendRow

VOLUMES = ["/data", "/var//lib/deep/er", "/work", "/work/inner", "/tmp", "/dev/shm/x"]

LOOK = """
import os
def attempt(path):
    try:
        open(path + "/written", "w").write("x")
    except OSError as error:
        return error.strerror
    return "written"
kinds = {}
for line in open("/proc/mounts"):
    device, place, kind, *_ = line.split()
    kinds[place] = kind if not device.startswith("/dev/") else device
[{path: attempt(path) for path in paths}, kinds]
"""


@contextmanager
def image_with(volumes: str, name: str) -> Iterator[str]:
    """Build an image that declares volumes, with something in one of them."""
    import docker

    client = docker.from_env()
    tag = f"toolcell-test-volumes/{name}"
    made = "RUN mkdir /data && echo theirs > /data/file"
    text = f"FROM {IMAGE}\n{made}\nVOLUME {volumes}\n"
    client.images.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True)
    try:
        yield tag
    finally:
        client.images.remove(tag, force=True)
        client.close()


def volumes_of_engine() -> set[str]:
    """Return the folders of the host that the engine has made for containers."""
    import docker

    client = docker.from_env()
    volumes = client.api.volumes()["Volumes"] or []
    client.close()
    # One with options is no folder: containers of tests beside this one have theirs.
    return {volume["Name"] for volume in volumes if not volume["Options"]}


@pytest.mark.promise("A26", "QD1")
@pytest.mark.anyio
async def test_volumes_of_an_image_are_no_place_to_write(
    backend: BackendRow, tmp_path: Path
) -> None:
    if backend.name == "subprocess":
        pytest.skip("it has no images")
    before = volumes_of_engine()
    tmp_path.chmod(0o755)
    (tmp_path / "given").write_text("mine")
    mounts = (Mount(source=str(tmp_path), target="/data/mounted"),)
    with image_with(str(VOLUMES).replace("'", '"'), backend.name) as image:
        config = backend.config(image=image, mounts=mounts, limits=Limits(disk_mib=1))
        async with SandboxManager(config) as manager:
            paths = ["/data", "/var/lib/deep/er", "/work", "/work/inner", "/tmp"]
            result = await manager.run(LOOK, inputs={"paths": paths})
            shown = await manager.run("open('/data/mounted/given').read()")

    assert isinstance(result.value, list), result
    written, kinds = result.value
    assert isinstance(written, dict)
    assert isinstance(kinds, dict)
    assert {path for path, what in written.items() if what == "written"} == {
        "/work", "/tmp"
    }  # fmt: skip
    assert {kinds[path] for path in paths} == {"tmpfs"}
    assert shown.value == "mine"
    assert result.isolation is not None
    assert "read_only_root" in result.isolation.layers
    assert volumes_of_engine() <= before


@pytest.mark.promise("A26")
@pytest.mark.parametrize(
    "volume", ["/", "//", "rel", "/proc", "/sys/x", "/dev", "/dev/pts", "/a/..", "../x"]
)
def test_volumes_where_nothing_can_be_put_over_them_are_refused(volume: str) -> None:
    with pytest.raises(SandboxUnavailableError, match="declares a volume"):
        covers([volume], ())


@pytest.mark.promise("A26")
def test_volumes_are_covered_where_the_engine_puts_them() -> None:
    declared = ["/data/", "//x", "/y/../z", "/a b:ro", "/tmp", "/dev/shm/x", "/process"]

    assert set(covers(declared, {"/tmp"})) == {
        "/data", "/x", "/z", "/a b:ro", "/dev/shm/x", "/process"
    }  # fmt: skip
