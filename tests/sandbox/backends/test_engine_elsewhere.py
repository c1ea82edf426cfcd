"""An engine that has other files: its socket is in a container, or its machine is a VM.

The engine is real; that it does not find a file of ours is pretended by its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import Mount, SandboxConfig, SandboxManager
from toolcell.sandbox.backends import container_spec
from toolcell.sandbox.backends.docker_hosts import HostsFile
from toolcell.sandbox.backends.docker_packages import PackageVolume

from ...conftest import DOCKER, missing, why_no_docker
from ...support.cells.package_index import filled

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """Return a folder of packages; what an engine has of it is removed."""
    folder = tmp_path / "store"
    yield folder
    client = docker.from_env()
    client.volumes.get(PackageVolume(str(folder / "layers")).name).remove()
    client.close()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    if why := why_no_docker(None):
        missing(why)

    def make(file: HostsFile) -> None:
        file._folder, file._shown = "/of/no/other/machine", True

    monkeypatch.setattr(HostsFile, "make", make)


async def value_of(config: SandboxConfig) -> object:
    async with SandboxManager(config) as manager:
        return (await manager.run("import os\nos.listdir('/data')")).value


@pytest.mark.promise("JE8")
async def test_paths_that_mean_something_else_there_are_no_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = container_spec.container_arguments

    def seen(*args: Any) -> dict[str, Any]:
        asked.append(str(made := real(*args)))
        return made

    monkeypatch.setattr(container_spec, "container_arguments", seen)
    # It exists on the engine's machine, too.
    config = DOCKER.config(mounts=[Mount(source=str(tmp_path), target="/data")])
    with pytest.raises(SandboxUnavailableError, match="has other files") as told:
        await value_of(config)

    assert told.value.hint is not None
    assert "TMPDIR" in told.value.hint
    # The engine has refused the only request.
    assert len(asked) == 1

    async with SandboxManager(DOCKER.config()) as manager:
        assert (await manager.run("1")).value == 1
    assert str(tmp_path) not in asked[-1]


@pytest.mark.promise("JE6", "QD5", "QD6")
async def test_packages_are_copied_to_an_engine_that_does_not_see_them(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    real = docker.APIClient.put_archive

    def put(*args: Any, **options: Any) -> Any:
        copied.append(args)
        return real(*args, **options)

    monkeypatch.setattr(docker.APIClient, "put_archive", put)
    rules = filled(tmp_path).rules(store, "*")
    code = "import kind, os\n[os.path.dirname(kind.__file__), kind.answer()]"
    look = "import os\nos.access('/packages', os.R_OK | os.W_OK)"
    places = []
    for _ in range(2):
        async with SandboxManager(DOCKER.config(package_rules=rules)) as manager:
            result = await manager.run(code, packages=["kind"])
            assert isinstance(result.value, list), result
            assert result.value[1] == 42
            places.append(result.value[0])
            assert (await manager.run(look)).value is False
    # The first manager copies before and after it compiles, the second one nothing.
    assert len(copied) == 2
    assert places[0] == places[1]
    assert str(places[0]).startswith("/packages/")


@pytest.mark.promise("JE6")
async def test_a_folder_that_the_machine_of_the_engine_lacks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(
        "toolcell.sandbox.config.mount_rules.follow",
        lambda binds: [bind._replace(source="/Volumes/mine") for bind in binds],
    )
    config = DOCKER.config(mounts=[Mount(source=str(tmp_path), target="/data")])
    with pytest.raises(SandboxUnavailableError, match="see /Volumes/mine") as told:
        await value_of(config)

    assert told.value.hint is not None
    assert "File sharing" in told.value.hint
