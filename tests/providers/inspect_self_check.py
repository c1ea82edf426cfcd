"""Inspect AI's own checks of a sandbox, on toolcell; run by test_inspect_ai.py.

It runs in an environment that has Inspect AI: `pytest --noconftest` on this file.
"""

import json
import os
from collections.abc import AsyncIterator

import pytest
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

pytestmark = pytest.mark.anyio

# Programs have one user, and no right to become another.
EXPECTED = {"test_exec_as_user"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def sandbox_env(
    request: pytest.FixtureRequest,
) -> AsyncIterator[SandboxEnvironment]:
    if request.node.originalname in EXPECTED:
        request.node.add_marker(pytest.mark.xfail(strict=True))
    provider = registry_find_sandboxenv("toolcell")
    config = provider.config_deserialize(
        json.loads(os.environ["TOOLCELL_SUITE_CONFIG"])
    )
    await provider.task_init("task", config)
    environments = await provider.sample_init("task", config, {})
    yield environments["default"]
    await provider.sample_cleanup("task", config, environments, False)
    await provider.task_cleanup("task", config, True)
