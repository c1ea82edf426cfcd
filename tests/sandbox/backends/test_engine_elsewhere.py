"""An engine that has other files: its socket is in a container, or its machine is a VM.

The engine is real; that it does not find a file of ours is pretended by its path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import Mount, SandboxConfig, SandboxManager
from toolcell.sandbox.backends import container_spec
from toolcell.sandbox.backends.docker_hosts import HostsFile

from ...conftest import DOCKER, missing, why_no_docker

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


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


@pytest.mark.finding("JE8")
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
    assert "XDG_CACHE_HOME" in told.value.hint
    # The engine has refused the only request.
    assert len(asked) == 1

    async with SandboxManager(DOCKER.config()) as manager:
        assert (await manager.run("1")).value == 1
    assert str(tmp_path) not in asked[-1]


@pytest.mark.finding("JE6")
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
