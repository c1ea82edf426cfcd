"""Servers with a certificate that inspected networks trust."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...support.cells.mirror import Mirror, mirroring
from ...support.cells.web_server import Site, self_signed, serving


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
