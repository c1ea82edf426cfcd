"""Servers, and cells of one network that reach them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from toolcell.sandbox import (
    Limits,
    Network,
    Sandbox,
    SandboxManager,
    SandboxSession,
)

from ...conftest import BackendRow
from ...support.cells.mirror import Mirror, mirroring
from ...support.cells.web_server import Site, resolve_here, self_signed, serving
from ...support.cluster.local import local_cluster


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def site(certificate: Path) -> Iterator[Site]:
    with serving(certificate) as secure:
        yield secure


@pytest.fixture(scope="module")
def mirror(request: pytest.FixtureRequest, certificate: Path) -> Iterator[type[Mirror]]:
    """A mirror that knows the `VALUE` of the module."""
    with mirroring(certificate, request.module.VALUE) as handler:
        yield handler


@pytest.fixture(scope="module")
async def manager(backend: BackendRow, network: Network) -> AsyncIterator[Sandbox]:
    """Cells of the `network` of the module."""
    config = backend.config(network=network, limits=Limits(wall_seconds=60))
    make = local_cluster if backend.on_nodes else SandboxManager
    async with make(config, resolver=resolve_here) as manager:
        yield manager


@pytest.fixture
async def cell(manager: Sandbox, site: Site) -> AsyncIterator[SandboxSession]:
    site.hits.clear()
    async with manager.session() as session:
        yield session
