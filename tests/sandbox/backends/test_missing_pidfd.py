"""A kernel without pidfd_open, such as gVisor's, of 2022."""

from __future__ import annotations

import errno
import os

import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.spi import diagnose

pytestmark = pytest.mark.anyio
DEAD_ENGINE = "unix:///nowhere/docker.sock"


@pytest.fixture(autouse=True)
def no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)


async def test_the_refusal_names_the_layer_and_what_helps() -> None:
    with pytest.raises(SandboxUnavailableError) as told:
        async with SandboxManager(SandboxConfig(docker_host=DEAD_ENGINE)):
            pass
    report = await diagnose(SandboxConfig(docker_host=DEAD_ENGINE))

    assert "pidfd_open: Function not implemented" in told.value.message
    assert told.value.hint is not None
    assert "gVisor" in told.value.hint
    assert report.level is None
    assert report.summary.startswith(
        "programs cannot run here; to have them run: cells"
    )


async def test_what_is_asked_for_by_name_runs() -> None:
    config = SandboxConfig(docker_host=DEAD_ENGINE, minimum_isolation="process")
    async with SandboxManager(config) as manager:
        result = await manager.run("6 * 7")

    assert result.value == 42
    assert result.isolation is not None
    assert result.isolation.level == "process"
