"""The doctor says how long a cell takes, and what a pool of them keeps."""

from __future__ import annotations

import re

import pytest

from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import diagnose

from ...conftest import DOCKER, IMAGE, missing, why_no_docker

pytestmark = pytest.mark.anyio


@pytest.mark.promise("P-28")
async def test_the_doctor_times_a_cell_of_each_backend() -> None:
    report = await diagnose(SandboxConfig(docker_host="tcp://127.0.0.1:1", pool=3))
    checks = {check.name: check.detail for check in report.checks}

    said = re.fullmatch(
        r"a cell is ready in \d+ ms; pool=3 keeps 3 never-used cells and is full "
        r"after \d+\.\d s",
        checks["subprocess pool"],
    )
    assert said is not None
    assert "docker pool" not in checks


@pytest.mark.promise("P-28")
@pytest.mark.docker
async def test_the_doctor_times_a_container() -> None:
    if why := why_no_docker(None):
        missing(why)
    report = await diagnose(SandboxConfig(**{**DOCKER.options, "backend": "auto"}))
    [pool] = [check for check in report.checks if check.name == "docker pool"]

    assert pool.ok
    assert "pool=8 would keep 8" in pool.detail, IMAGE
