"""What SWE-ReX's own tests ask for, on toolcell; it becomes their conftest.py.

Those of their tests that look at a file from both sides get a folder that the cell has
mounted at the same path.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)

from toolcell.providers.swe_rex import ToolcellDeployment, ToolcellRuntime
from toolcell.sandbox import Mount, SandboxConfig


class _Action(BashAction):
    timeout: float | None = 30


class _Command(Command):
    timeout: float | None = 30


@pytest.fixture(scope="session")
def shared_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="toolcell-", dir="/srv") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def tmp_path(shared_folder: Path) -> Path:
    path = Path(tempfile.mkdtemp(dir=shared_folder))
    path.chmod(0o777)
    return path


@pytest.fixture
async def remote_runtime(shared_folder: Path) -> AsyncIterator[ToolcellRuntime]:
    config = SandboxConfig.model_validate_json(os.environ["TOOLCELL_SUITE_CONFIG"])
    path = str(shared_folder)
    mount = Mount(source=path, target=path, read_only=False)
    deployment = ToolcellDeployment(config.model_copy(update={"mounts": (mount,)}))
    await deployment.start()
    yield deployment.runtime
    await deployment.stop()


@pytest.fixture
async def runtime_with_default_session(
    remote_runtime: ToolcellRuntime,
) -> AsyncIterator[ToolcellRuntime]:
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())
