"""`.ci/again` runs what failed, or took long, once more, and judges what it finds."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from ..support.paths import ROOT

RECORDS = """
import json, os
def pytest_runtest_logreport(report):
    if report.when == "call":
        line = {"test": report.nodeid, "failed": report.failed, "quick": True}
        line["seconds"] = 9 if "long" in report.nodeid else 0
        with open(os.environ["TOOLCELL_RECORD"], "a") as file:
            file.write(json.dumps(line) + chr(10))
"""
"""A `conftest.py` that records as this project's does, with times of its choice."""

TESTS = """
def test_passes(): pass
def test_fails(): assert False
def test_is_long(): pass
"""


def line(test: str, *, failed: bool = True, seconds: float = 0.1) -> str:
    named = {"test": f"test_these.py::{test}", "failed": failed}
    return json.dumps({**named, "seconds": seconds, "quick": True})


@pytest.fixture
def again() -> ModuleType:
    """The script as a module."""
    loader = SourceFileLoader("again", str(ROOT / ".ci" / "again"))
    spec = importlib.util.spec_from_loader("again", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


PASSES, FAILS = line("test_passes"), line("test_fails")


@pytest.mark.parametrize(
    ("recorded", "code", "said"),
    [
        pytest.param([], 0, [], id="nothing"),
        pytest.param(
            [PASSES, line("test_fails", failed=False)],
            0,
            ["FLAKY test_passes"],
            id="passes",
        ),
        pytest.param(
            [PASSES, FAILS],
            1,
            ["FAILED test_fails", "FLAKY test_passes"],
            id="fails again",
        ),
        pytest.param(
            [
                line("test_is_long", failed=False, seconds=9),
                line("test_passes", failed=False, seconds=9),
            ],
            1,
            ["SLOW test_is_long"],
            id="long again",
        ),
        pytest.param([line("test_is_gone")], 1, ["FAILED test_is_gone"], id="gone"),
        pytest.param(
            [line(f"test_is_not_run[{n}]") for n in range(21)],
            1,
            [f"FAILED test_is_not_run[{n}]" for n in range(21)],
            id="too many",
        ),
    ],
)
def test_each_is_judged_by_its_second_run(
    again: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    recorded: list[str],
    code: int,
    said: list[str],
) -> None:
    (tmp_path / "conftest.py").write_text(RECORDS)
    (tmp_path / "test_these.py").write_text(TESTS)
    (tmp_path / "record").write_text("".join(f"{each}\n" for each in recorded))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["again", "record"])
    ended = again.main()

    assert (ended, judgements(capfd)) == (code, said)


def judgements(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return what was said of tests, and not by the pytest that ran them."""
    words = ("FAILED test", "FLAKY test", "SLOW test")
    lines = capfd.readouterr().out.replace("test_these.py::", "").splitlines()
    return [each for each in lines if each.startswith(words) and " - " not in each]


@pytest.mark.parametrize(("flaky", "code"), [(5, 0), (6, 1)])
def test_more_than_five_that_are_flaky_fail(
    again: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    flaky: int,
    code: int,
) -> None:
    names = [f"test_{n}" for n in range(flaky)]
    (tmp_path / "record").write_text("".join(f"{line(name)}\n" for name in names))
    monkeypatch.setattr("sys.argv", ["again", str(tmp_path / "record")])
    monkeypatch.setattr(again, "alone", lambda test: ([], []))

    assert again.main() == code
    assert judgements(capfd) == [f"FLAKY {name}" for name in names]
