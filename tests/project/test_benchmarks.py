"""The benchmarks run and print their table; no time is judged here."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ..conftest import missing
from ..support.paths import ROOT

pytestmark = pytest.mark.timeout(600)
FOLDER = ROOT / "benchmarks"
ROWS = {
    "subprocess-on-demand": "fresh cell on demand",
    "subprocess-prepared": "fresh prepared cell",
    "subprocess-sustained": "fresh cells from 4 tasks",
    "subprocess-reused": "reused cells from 4 tasks",
    "cpu-bound": "CPU-bound loop",
    "print-heavy": "subprocess, 100,000 lines printed",
    "stdin-heavy": "subprocess, 300,000 lines read",
    "command-line": "toolcell run, whole process",
    "doctor": "toolcell doctor",
    "idle-memory": "idle prepared child",
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )


def test_the_subprocess_rows_print_their_table(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None or not Path("/usr/bin/python3").exists():
        missing("the baselines are bubblewrap and the system's python3")
    figures = tmp_path / "figures.json"
    done = bench("--only", *ROWS, "--runs", "3", "--json", str(figures))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    if "command-line: left out, uv could not install" in done.stdout:
        missing("no package index answers, so toolcell cannot be installed")
    expected = dict(ROWS)
    if os.geteuid() != 0:
        # Only root may look at the memory of cells, and the row says so.
        assert f"{expected.popitem()[0]}: left out, only root" in done.stdout
    for work in expected.values():
        assert work in done.stdout, done.stdout
    rows = json.loads(figures.read_text())["rows"]
    assert all(row["ours"]["p50"] > 0 for row in rows)
    assert {row["baseline"]["name"] for row in rows if row["baseline"]} == {
        "bwrap python3 -I -c",
        "python3 -I -c",
        "python3 file.py",
        "python3 hello.py",
    }


def test_the_tool_rows_print_their_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = bench(
        *("--only", "tool-call", "tool-one", "tool-batch", "peer-tool-mcp"),
        *("--runs", "1", "--json", str(figures)),
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    works = {row["work"] for row in json.loads(figures.read_text())["rows"]}
    assert works == {
        *("one tool call", "one tool call, p99"),
        "batch of one tool call",
        "batch of 1,000 tool calls",
    }


def test_the_row_on_mcp_prints_its_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = bench(*("--only", "mcp-stdio"), *("--runs", "1", "--json", str(figures)))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    works = [row["work"] for row in json.loads(figures.read_text())["rows"]]
    assert works == ["MCP calls, stdio"] * 2


def test_the_bridge_row_prints_its_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    names = ("bridge", "peer-bridge-mcp")
    done = bench("--only", *names, "--runs", "1", "--json", str(figures))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = json.loads(figures.read_text())["rows"]
    works = ["50 bridge round trips", "bridge round trip", "50 bridge round trips"]
    assert [row["work"] for row in rows] == works


def test_the_row_on_packages_prints_its_table(tmp_path: Path) -> None:
    if not Path("/usr/bin/python3").exists():
        missing("cells run the system's python3")
    figures = tmp_path / "figures.json"
    done = bench("--only", "packages-cached", "--runs", "3", "--json", str(figures))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    works = [row["work"] for row in json.loads(figures.read_text())["rows"]]
    assert works == ["subprocess, cached packages", "what cached packages add"]


@pytest.mark.namespaces
def test_the_row_on_the_sandbox_api_prints_its_table(tmp_path: Path) -> None:
    if not Path("/usr/bin/python3").exists():
        missing("cells run the system's python3")
    figures = tmp_path / "figures.json"
    names = ("--only", "sandbox-api-commands", "--runs", "1")
    done = bench(*names, "--json", str(figures))

    assert done.returncode == 0, done.stdout + done.stderr
    works = [row["work"] for row in json.loads(figures.read_text())["rows"]]
    assert works == ["a command through the API", "what the API adds to a command"]


def test_the_guard_rows_print_their_table(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = bench(
        *("--only", "guard-memory", "guard-call", "guard-sqlite", "guard-redis"),
        *("guard-rules", "--runs", "1", "--json", str(figures)),
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    rows = {row["work"]: row for row in json.loads(figures.read_text())["rows"]}
    assert "one guarded tool call, audited" in rows
    # A count, not a time.
    assert rows["round trips of a call"]["ours"]["p50"] == 2


def test_the_rows_on_forks_and_crowds_print_their_table(tmp_path: Path) -> None:
    if not Path("/usr/bin/python3").exists():
        missing("cells run the system's python3")
    figures = tmp_path / "figures.json"
    names = ("kernel-fork", "kernel-start", "session-crowd")
    done = bench("--only", *names, "--runs", "3", "--json", str(figures))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    if "kernel-fork: left out" in done.stdout:
        missing("the baseline is a program in C that makes namespaces")
    works = [row["work"] for row in json.loads(figures.read_text())["rows"]]
    assert works == [
        "a fork of 12 MiB in C, CPU",
        "subprocess, fresh cell on demand, and the least",
        "subprocess, fresh cell from the pool, and the least",
        "3 idle sessions, opened",
        "3 idle sessions, closed",
        "x = 1 among 3 idle sessions",
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["records", "approvals", "threads", "audit"])
async def test_the_rows_on_stores_measure_a_large_file(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    stores = importlib.import_module("rows.stores")
    options = importlib.import_module("harness.options").Options
    monkeypatch.setattr(stores, "_LARGE", 2_048)

    rows = await stores.STORE_ROWS[f"store-{name}"](options(runs=1, image=""))

    assert {row.ours.name for row in rows} == {"2,048 rows"}
    assert {row.baseline.name for row in rows} == {"1,024 rows"}
    assert "100 appends" in rows[0].work and rows[0].gate == 2


@pytest.mark.parametrize("name", ["agents", "records", "threads", "tools"])
def test_the_rows_on_growth_print_their_exponent(tmp_path: Path, name: str) -> None:
    figures = tmp_path / "figures.json"
    done = bench(f"--only=growth-{name}", "--runs=1", "--json", str(figures))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    first, *others = json.loads(figures.read_text())["rows"]
    assert (first["work"], first["gate"]) == (f"growth of {name}", 1.1)
    assert [row["work"].split()[1] for row in others[:2]] == [f"{name},"] * 2


@pytest.mark.anyio
@pytest.mark.parametrize(("power", "passed"), [(1, True), (1.2, False), (2, False)])
async def test_growth_is_judged_by_its_exponent(
    monkeypatch: pytest.MonkeyPatch, power: float, passed: bool
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    growth = importlib.import_module("rows.growth")
    options = importlib.import_module("harness.options").Options
    clock = [0.0]

    def work(size: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            clock[0] += size**power

        return run

    works = {size: work(size) for size in (2, 8, 32)}
    first, four, sixteen = await growth._growth(
        "work", works, options(runs=20, image=""), lambda: clock[0]
    )

    assert first.ours.p50 == pytest.approx(power)
    assert first.passed is passed
    assert four.ratio == pytest.approx(4**power)
    assert (sixteen.work, sixteen.baseline.name) == ("32 work, CPU", "2")


def test_an_unknown_row_is_refused() -> None:
    done = bench("--only", "no-such-row")

    assert done.returncode == 2
    assert "no-such-row" in done.stderr


@pytest.mark.parametrize(
    ("compare", "ours", "baseline", "gate", "ratio", "passed"),
    [
        ("faster", 2.0, 6.0, 3, 3.0, True),
        ("faster", 2.0, 5.0, 3, 2.5, False),
        ("share", 6.0, 10.0, 0.7, 0.6, True),
        ("share", 8.0, 10.0, 0.7, 0.8, False),
        ("rate", 300.0, 100.0, 3, 3.0, True),
        ("rate", 100.0, 300.0, 3, 1 / 3, False),
        ("absolute", 3.0, None, 3, None, True),
        ("absolute", 4.0, None, 3, None, False),
        ("faster", 2.0, 6.0, None, 3.0, None),
    ],
)
def test_a_gate_holds_or_does_not(
    monkeypatch: pytest.MonkeyPatch,
    compare: str,
    ours: float,
    baseline: float | None,
    gate: float | None,
    ratio: float | None,
    passed: bool | None,
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    measure = importlib.import_module("harness.measure")
    row = measure.Row(
        work="work",
        compare=compare,
        ours=measure.Sample(name="ours", values=[ours]),
        baseline=measure.Sample(name="baseline", values=[baseline])
        if baseline is not None
        else None,
        gate=gate,
    )

    assert (row.ratio, row.passed) == (ratio, passed)


def test_a_ratio_is_of_the_same_weather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    measure = importlib.import_module("harness.measure")
    # Each takes three times as long in the second half; half-way they differ.
    ours = measure.Sample(name="ours", values=[1.0] * 310 + [3.0] * 290)
    baseline = measure.Sample(name="baseline", values=[2.0] * 29 + [6.0] * 31)

    for compare in ("faster", "share"):
        [row] = measure.against("work", [ours, baseline], [None], compare)
        assert row.ratio == (2.0 if compare == "faster" else 0.5)
    assert (ours.p50, baseline.p50) == (1.0, 6.0)
    assert ours.slowest().values == [1.0] * 10 + [3.0] * 10
