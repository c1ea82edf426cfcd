"""A served console, and people who are signed in; modules may replace each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.host.operator.people_file import PeopleFile

from ...support.console.access import read_axe
from ...support.console.browser import Browser, browser
from ...support.console.client import Client, signed_in
from ...support.console.people import NOW
from ...support.console.served import Service, served
from ...support.guard.worker import SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock(NOW)


@pytest.fixture
def file(tmp_path: Path, clock: SetClock) -> Iterator[PeopleFile]:
    """A file of people, with a clock of the test."""
    with PeopleFile(tmp_path / "people.db", clock=clock) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """A console, with the tables `CODE` of the module in its configuration."""
    more = getattr(request.module, "CODE", "")
    with served(tmp_path_factory.mktemp("console"), more) as made:
        yield made


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core."""
    return read_axe()


@pytest.fixture(scope="module")
def anna(service: Service) -> Iterator[Browser]:
    """The browser of an admin."""
    with browser() as started:
        started.join(service.link(), "anna")
        yield started


@pytest.fixture
def operator(service: Service) -> Iterator[Client]:
    """An operator without a browser."""
    with signed_in(service, "operator") as client:
        yield client


@pytest.fixture
def viewer(service: Service) -> Iterator[Client]:
    """A viewer without a browser."""
    with signed_in(service, "viewer") as client:
        yield client
