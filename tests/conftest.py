"""One table of backends; every behaviour and attack test runs on each row."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import anyio
import pytest
from hypothesis import HealthCheck, settings
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sniffio import current_async_library_cvar

from toolcell.core import SandboxUnavailableError
from toolcell.sandbox import (
    Limits,
    Sandbox,
    SandboxConfig,
    SandboxManager,
    SandboxSession,
)

from .support import confined_rows
from .support.child import end_children
from .support.cluster.local import local_cluster
from .support.kernel import uml
from .support.paths import TESTS
from .support.recorder import Recorder
from .support.tiers import FOR_EACH_CHANGE, mark_listed, tell_skipped

# Neither says anything about the code on a machine that stands still at times.
settings.register_profile(
    "toolcell", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("toolcell")

T = TypeVar("T")
IN_CI = bool(os.environ.get("CI"))
RECORD = os.environ.get("TOOLCELL_RECORD", "")
"""A file for what CI judges of a run."""

ENGINE_SOCKET = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")[7:]
"""The Unix socket of the engine under test."""

IMAGE = os.environ.get("TOOLCELL_TEST_IMAGE", "python:3.12-slim")


PROCESSES = "import os\nlen([p for p in os.listdir('/proc') if p.isdigit()])"
"""A program that counts the processes of its cell."""


SLOWEST = (
    "security/kernel/test_kernel_accounts",
    "mcp/conformance/test_conformance",
    "sandbox/programs/test_corpora",
    "sandbox/backends/test_data_images",
    "security/test_faults",
    "host/cli/test_cli_long_running",
    "host/cli/test_cli_run",
    "docs/test_readme",
    "project/test_newer_python",
    "mcp/client/test_client_in_host",
    "project/test_benchmarks",
    "mcp/server/test_server_stdio",
)
"""Files that begin first, so that no worker is left alone with a long one."""


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist would begin with the files of most tests.
    config.option.loadscopereorder = False
    if RECORD and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(RECORD))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: half the time, and later looks are short."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    end_children()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tell_skipped(terminalreporter)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # Found once, since all workers must collect the same.
    node.workerinput["level"] = level_here()


def pytest_itemcollected(item: pytest.Item) -> None:
    mark_listed(item)
    row = _backend_of(item)
    if row is CONFINED and _is_usual(item):
        return
    if row is CONFINED:
        item.add_marker("slow")
    repeats = row in (RUNSC, CLUSTER, CONFINED)
    if item.get_closest_marker("one_backend"):
        repeats = row not in (None, SUBPROCESS)
    elif _name(item).startswith(FOR_EACH_CHANGE):
        repeats = False
    if repeats:
        item.add_marker("full")


def _is_usual(item: pytest.Item) -> bool:
    """Say whether a test is for each change where no row has namespaces."""
    is_attack = _name(item).startswith("security/")
    if not is_attack and not item.get_closest_marker("smoke"):
        return False
    given = getattr(item.config, "workerinput", {})
    return (given.get("level") or level_here()) == "confined"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    _choose_for_cluster(config, items)
    _choose_for_confined(config, items)
    places = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(_name(item), len(places)))


def _choose_for_cluster(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the row `cluster` for tests that take their cells from nodes."""
    dropped: list[pytest.Item] = []
    for item in items:
        if not isinstance(item, pytest.Function) or _backend_of(item) is not CLUSTER:
            continue
        takes = "sandbox" in item.fixturenames or item.get_closest_marker("on_nodes")
        if not takes:
            dropped.append(item)
    gone = set(dropped)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=dropped)


def _choose_for_confined(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the row `confined` for cells alone, and expect what it cannot hold."""
    dropped = set()
    for item in items:
        if _backend_of(item) is not CONFINED:
            continue
        if not _name(item).startswith(("sandbox/", "security/")):
            dropped.add(item)
        elif reason := confined_rows.reason_of(item.nodeid):
            is_sure = reason != confined_rows.MEASURED
            item.add_marker(pytest.mark.xfail(reason=reason, strict=is_sure))
    items[:] = [item for item in items if item not in dropped]
    config.hook.pytest_deselected(items=list(dropped))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Let tests that are plain functions begin an event loop.

    anyio keeps its own for as long as the session's `sandbox` is open, though it runs
    in the tests and fixtures that are coroutines alone.
    """
    token = current_async_library_cvar.set(None)
    try:
        yield
    finally:
        current_async_library_cvar.reset(token)


def _backend_of(item: pytest.Item) -> BackendRow | None:
    """Return the row of the fixture `backend`; None without it."""
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("backend")


def _name(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).with_suffix("").as_posix()


@dataclass(frozen=True, kw_only=True)
class BackendRow:
    """One way to make cells."""

    name: str
    options: dict[str, Any]
    held_by_kernel: bool = True
    """Whether memory and pids are held by a cgroup."""

    on_nodes: bool = False
    """Whether the `sandbox` of tests is a cluster of two nodes."""

    def config(self, **options: Any) -> SandboxConfig:
        return SandboxConfig(**{**self.options, **options})


SUBPROCESS = BackendRow(name="subprocess", options={"backend": "subprocess"})
CONFINED = BackendRow(
    name="confined",
    options={"backend": "subprocess", "strongest_isolation": "confined"},
)
DOCKER = BackendRow(name="docker", options={"backend": "docker", "image": IMAGE})
RUNSC = BackendRow(
    name="runsc",
    options={"backend": "docker", "image": IMAGE, "runtime": "runsc"},
    held_by_kernel=False,
)
CLUSTER = BackendRow(name="cluster", options={"backend": "subprocess"}, on_nodes=True)
BACKENDS = [
    pytest.param(SUBPROCESS, id="subprocess"),
    pytest.param(CLUSTER, id="cluster", marks=pytest.mark.slow),
    pytest.param(CONFINED, id="confined"),
    pytest.param(DOCKER, id="docker", marks=pytest.mark.docker),
    pytest.param(RUNSC, id="runsc", marks=[pytest.mark.docker, pytest.mark.runsc]),
]


def missing(why: str) -> NoReturn:
    """Skip for want of something on a user's machine; fail in CI."""
    if IN_CI:
        pytest.fail(why)
    pytest.skip(why)


def need_shared_memory() -> None:
    """Skip, or fail, where `confined` programs have no folder of shared memory."""
    if not Path("/dev/shm").is_dir():
        missing("this machine has no /dev/shm")


def apart(function: Callable[..., T], *args: Any) -> T:
    """Call in a thread of its own; the test's may hold the loop of shared fixtures."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args).result()


def run_apart(function: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> T:
    """Run to the end in a loop of its own."""
    return apart(lambda: anyio.run(function, *args, **options))


@functools.cache
def why_no_docker(runtime: str | None) -> str:
    """Return why Docker tests cannot run here; empty if they can."""
    import docker
    import docker.errors

    try:
        # The SDK forgets to close a socket that could not connect.
        with socket.socket(socket.AF_UNIX) as door:
            door.connect(ENGINE_SOCKET)
    except OSError as error:
        return f"no Docker engine answers at {ENGINE_SOCKET}: {error}"
    try:
        client = docker.from_env(timeout=60)
        runtimes = client.info()["Runtimes"]
        client.images.get(IMAGE)
        client.close()
    except docker.errors.ImageNotFound:
        return f"the Docker engine has no image {IMAGE} (TOOLCELL_TEST_IMAGE)"
    except docker.errors.DockerException as error:
        return f"no Docker engine answers: {error}"
    if runtime is not None and runtime not in runtimes:
        return f"the Docker engine has no runtime {runtime}"
    return ""


@functools.cache
def why_no_namespaces() -> str:
    """Return why cells have no namespaces here; empty if they have."""
    config = SandboxConfig(backend="subprocess", minimum_isolation="namespaces")
    try:
        run_apart(_open, config)
    except SandboxUnavailableError as error:
        return f"cells have no namespaces here: {error}"
    return ""


def level_here() -> str:
    """Return the level of the cells that this machine gives without an engine."""
    return "confined" if why_no_namespaces() else "namespaces"


async def _open(config: SandboxConfig) -> None:
    async with SandboxManager(config):
        pass


def pytest_runtest_setup(item: pytest.Item) -> None:
    if needs_namespaces(item) and (why := why_no_namespaces()):
        missing(why)


def needs_namespaces(item: pytest.Item) -> bool:
    """Say whether a test is marked so, or is of the row `subprocess`."""
    if item.get_closest_marker("namespaces"):
        return True
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(each is SUBPROCESS for each in given)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> BackendRow:
    """The row that this test runs on."""
    row: BackendRow = request.param
    if row.options["backend"] == "docker":
        why = why_no_docker(row.options.get("runtime"))
        if why:
            missing(why)
    return row


@pytest.fixture(scope="session")
async def sandbox(backend: BackendRow) -> AsyncIterator[Sandbox]:
    """An open manager of this backend, shared by all tests that ask for it."""
    config = backend.config(limits=Limits(wall_seconds=60))
    if backend.on_nodes:
        async with local_cluster(config) as cluster:
            yield cluster
    else:
        async with SandboxManager(config) as manager:
            yield manager


@pytest.fixture(scope="module")
async def cell(sandbox: Sandbox) -> AsyncIterator[SandboxSession]:
    """A cell that all tests of a module share."""
    async with sandbox.session() as session:
        yield session


@pytest.fixture
async def session(sandbox: Sandbox) -> AsyncIterator[SandboxSession]:
    """A session of one test."""
    async with sandbox.session() as session:
        yield session


@pytest.fixture(scope="session")
def throw_away_kernel() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command on a kernel of its own; for what may hurt one."""
    if shutil.which(uml.KERNEL) is None:
        missing("Debian's package user-mode-linux is not installed")
    return uml.run


@pytest.fixture(scope="session")
def span_exporter() -> InMemorySpanExporter:
    """Takes the spans of the one provider that a process can have."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(span_exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    """The spans of this test."""
    span_exporter.clear()
    return span_exporter


@pytest.fixture(scope="session")
def metric_reader() -> InMemoryMetricReader:
    """Reads the metrics of the one provider that a process can have."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
    return reader
