"""The official conformance scenarios and the inspector. GR-15, RG-41."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ...conftest import missing
from ...support.cells.npm_programs import NotInstalledError
from . import runner
from .runner import EXIT_NOT_INSTALLED, EXPECTED, HERE

LONGEST = {"server": 9, "client": 1}
"""The lengths of the list of expected failures: it may only shrink."""

NEEDED = (
    *("tools-", "server-initialize", "ping", "json-schema", "dns-rebinding"),
    *("prompts-", "resources-list", "resources-read", "resources-templates"),
)
NOT_OURS = {"tools-call-with-logging", "tools-call-sampling"}


@pytest.mark.promise("E-128")
@pytest.mark.timeout(1500)
def test_official_clients_and_servers_agree_with_us() -> None:
    passed, failed = judged()

    assert passed > 30
    assert failed == sum(map(len, expected().values()))


@pytest.mark.full
@pytest.mark.promise("E-128")
@pytest.mark.timeout(1500)
def test_official_clients_agree_with_a_server_in_a_cell() -> None:
    passed, failed = judged("--in-cell")

    assert passed > 20
    assert failed == len(expected()["server"])


def judged(*options: str) -> tuple[int, int]:
    """Return how many checks passed, and how many scenarios failed as listed."""
    done = subprocess.run(
        [HERE / "run", *options],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == EXIT_NOT_INSTALLED:
        missing(done.stdout)

    last = (done.stdout.splitlines() or [""])[-1]
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.fullmatch(
        r"(\d+) checks passed, (\d+) scenarios failed as listed, 0 unexpected", last
    )
    assert counted is not None
    return int(counted[1]), int(counted[2])


def test_without_npm_no_host_is_configured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_npm() -> Path:
        raise NotInstalledError("npm is not installed")

    monkeypatch.setattr(runner, "node_folder", no_npm)
    monkeypatch.setattr(runner, "configured", lambda: pytest.fail("it is configured"))

    assert runner.main() == EXIT_NOT_INSTALLED
    assert capsys.readouterr().out == "npm is not installed\n"


def expected() -> dict[str, list[str]]:
    read: dict[str, list[str]] = yaml.safe_load(EXPECTED.read_text())
    return read


def test_the_list_of_expected_failures_only_shrinks() -> None:
    listed = expected()

    assert listed.keys() == LONGEST.keys()
    for side, names in listed.items():
        assert len(set(names)) == len(names) <= LONGEST[side]


def test_what_a_host_of_tools_needs_is_never_expected_to_fail() -> None:
    needed = [name for name in expected()["server"] if name.startswith(NEEDED)]

    assert set(needed) <= NOT_OURS


def test_each_expected_failure_has_a_reason_above_it() -> None:
    reason = ""
    for line in EXPECTED.read_text().splitlines():
        if line.strip().startswith("#"):
            reason = line
        elif not line.startswith("  - "):
            reason = ""
        else:
            assert reason, line
