"""An engine that is there and does not answer holds up nobody for long."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.backends import (
    docker,
    docker_engine,
    limit_probe,
)
from toolcell.sandbox.spi import clean, diagnose

from ...support.cells.engine_stand_in import engine
from ...support.child import Child
from ...support.polling import until

pytestmark = [pytest.mark.anyio, pytest.mark.promise("F7")]

EVERYWHERE = "/"
# It waits for a silent engine longer than this test waits for it.
PATIENT_DOCTOR = """
import sys
from toolcell.host.cli.main import entry_point
from toolcell.sandbox.backends import docker_engine
docker_engine.QUICK_SECONDS = 600
docker_engine.connect.__defaults__ = (600, None)
sys.argv = ["toolcell", "doctor"]
entry_point()
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait half a second where five are right."""
    import docker.utils  # noqa: F401 - takes time itself

    monkeypatch.setattr(docker_engine, "QUICK_SECONDS", 0.5)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as the engine is silent where five seconds are right."""
    monkeypatch.setattr(docker_engine, "QUICK_SECONDS", 60)


@pytest.fixture(autouse=True)
def patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDK itself wait as long as the engine is silent."""
    monkeypatch.setattr(docker_engine.connect, "__defaults__", (60, None))


@pytest.fixture(autouse=True)
def known_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no cells to see what holds."""
    monkeypatch.setattr(
        limit_probe, "load_cached", lambda _: limit_probe.EnforcedLimits()
    )


@contextmanager
def prompt(seconds: float) -> Iterator[None]:
    """Fail when the body takes longer, also where it cannot be cancelled."""
    began = anyio.current_time()
    yield
    assert anyio.current_time() - began < seconds


@pytest.mark.usefixtures("impatient")
async def test_a_silent_engine_is_given_up(tmp_path: Path) -> None:
    async with engine(tmp_path, EVERYWHERE) as server:
        with (
            prompt(20),
            pytest.raises(SandboxUnavailableError, match="has not answered"),
        ):
            async with SandboxManager(
                SandboxConfig(backend="docker", docker_host=server.address)
            ):
                pass


@pytest.mark.usefixtures("impatient")
async def test_auto_falls_back_from_a_silent_engine_and_says_so(tmp_path: Path) -> None:
    async with engine(tmp_path, EVERYWHERE) as server:
        config = SandboxConfig(docker_host=server.address)
        async with SandboxManager(config) as manager:
            assert "has not answered" in manager.notices[0]
            assert (await manager.run("6 * 7")).value == 42


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("place", ["/version", "/info", "/images/", "/containers/json"])
async def test_who_is_cancelled_does_not_wait_for_a_silent_engine(
    tmp_path: Path, place: str
) -> None:
    async with engine(tmp_path, place) as server:
        config = SandboxConfig(backend="docker", docker_host=server.address)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SandboxManager(config).__aenter__)
            await until(lambda: any(place in asked for asked in server.asked))
            began = anyio.current_time()
            tasks.cancel_scope.cancel()
        assert anyio.current_time() - began < 20


async def test_a_cell_that_is_made_for_nobody_is_removed(tmp_path: Path) -> None:
    async with engine(tmp_path, "/containers/create") as server:
        config = SandboxConfig(backend="docker", docker_host=server.address)
        async with SandboxManager(config) as manager:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(manager.run, "1")
                await until(lambda: "POST /containers/create" in server.asked)
                began = anyio.current_time()
                tasks.cancel_scope.cancel()
            assert anyio.current_time() - began < 20
            assert "DELETE /containers/made" not in server.asked
            server.speak.set()
            await until(lambda: "DELETE /containers/made" in server.asked)


async def test_an_engine_that_fell_silent_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(tmp_path) as server:
        config = SandboxConfig(backend="docker", docker_host=server.address)
        async with SandboxManager(config) as manager:
            await manager.check()
            server.silent_at = (EVERYWHERE,)
            monkeypatch.setattr(docker_engine, "QUICK_SECONDS", 0.1)
            with pytest.raises(SandboxUnavailableError, match="has not answered"):
                await manager.check()


@pytest.mark.usefixtures("patient")
async def test_a_container_that_is_not_removed_is_given_up_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(docker, "_REMOVE_SECONDS", 0.1)
    async with engine(tmp_path, "/containers/made") as server:
        backend = docker.DockerBackend(
            SandboxConfig(backend="docker", docker_host=server.address)
        )
        await backend.start()
        with prompt(20):
            await docker.ContainerProcess(backend, "made").kill()
        await backend.aclose()

    assert "the cell made is lost" in caplog.text


@pytest.mark.usefixtures("impatient")
async def test_doctor_and_clean_pass_a_silent_engine_over(tmp_path: Path) -> None:
    async with engine(tmp_path, EVERYWHERE) as server:
        report = await diagnose(SandboxConfig(docker_host=server.address))
        assert isinstance((await clean(server.address)).removed, tuple)

    checks = {check.name: check for check in report.checks}
    assert "has not answered" in checks["docker engine"].detail


async def test_doctor_ends_on_a_signal_while_it_waits(tmp_path: Path) -> None:
    async with engine(tmp_path, EVERYWHERE) as server:
        with Child(
            [sys.executable, "-c", PATIENT_DOCTOR],
            env={"PATH": "/usr/bin:/bin", "DOCKER_HOST": server.address},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            await until(lambda: bool(server.asked))
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None)

    assert process.returncode == 128 + signal.SIGTERM
