"""Writes down for CI which tests failed, and what each took: see `.ci/again`."""

from __future__ import annotations

import json

import pytest


class Recorder:
    """A plugin of pytest that appends a line of JSON for each test to a file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not report.failed:
            return
        line = {
            "test": report.nodeid,
            "failed": report.failed,
            "seconds": report.duration if report.when == "call" else 0,
            "quick": not {"slow", "docker", "full", "lint"} & set(report.keywords),
        }
        with open(self._file, "a") as file:
            file.write(json.dumps(line) + "\n")
