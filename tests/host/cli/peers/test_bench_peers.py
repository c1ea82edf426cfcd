"""`toolcell bench --peers`: contenders take turns; what is missing has its reason."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.host.cli.peers import contenders, measure
from toolcell.host.cli.peers.contenders import CONTENDERS, Contender
from toolcell.host.cli.peers.report import RESULTS, machine, plots, table_rows
from toolcell.host.cli.peers.worker import measures
from toolcell.host.cli.peers.worker.kind import Kind, Run

from ....conftest import missing
from ....support.paths import ROOT
from ....support.polling import until
from ....support.process_tree import alive
from ..conftest import Command

PAGE = ROOT / "docs/peers.md"
FOLDER = ROOT / "host/cli/peers"
PRETENDED = f"""
import sys
sys.path.append({str(FOLDER)!r})
from contextlib import asynccontextmanager, redirect_stdout
from io import StringIO
from worker import kind, main, measures
measures._RATE_SECONDS = measures._POLL_SECONDS = 0
name, log = sys.argv[1:]

@asynccontextmanager
async def opened():
    with open(log, "a") as file:
        file.write(f"{{name}} ")
    variables = {{}}

    def run(code):
        with redirect_stdout(StringIO()) as out:
            exec(code, variables)
        return "2" if name == "wrong" else out.getvalue()

    yield run

@asynccontextmanager
async def pretended():
    print("a library speaks")
    yield kind.Kind(version="7.1", open=opened, keeps_state=name == "keeps")

main.serve(pretended())
"""


class Pretended(Contender):
    """A contender whose worker runs programs in itself; `worker` is its log."""

    def command(self, image: str) -> list[str]:
        return [sys.executable, "-c", PRETENDED, self.name, self.worker]


class Ends(Contender):
    """A contender whose worker cannot begin."""

    def command(self, image: str) -> list[str]:
        says = "import sys; sys.exit('first line\\nno matching \\x1b distribution')"
        return [sys.executable, "-c", says]


class Hangs(Contender):
    """A contender whose worker never answers."""

    def command(self, image: str) -> list[str]:
        return [sys.executable, "-c", "import sys; sys.stdin.read(); sys.stdin.read()"]


BELOW = """
import subprocess, sys
sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
below = subprocess.Popen(sleeps, stdin=subprocess.DEVNULL)
print(f'{{"version": "{below.pid}"}}', flush=True)
below.wait()
"""


class HangsBelow(Contender):
    """A contender whose worker waits for a process below it, as uv does."""

    def command(self, image: str) -> list[str]:
        return [sys.executable, "-c", BELOW]


VARIABLES = ["PATH", "UV_INDEX_URL", "https_proxy", "UV_PUBLISH_TOKEN", "ANY_API_KEY"]


class Shows(Contender):
    """A contender whose version is the names of the variables that its worker has."""

    def command(self, image: str) -> list[str]:
        says = f"""
import json, os
print(json.dumps({{"version": " ".join(set({VARIABLES}) & set(os.environ))}}))
"""
        return [sys.executable, "-c", says]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_ROUNDS", {"rate": 2, "memory": 2})


def told(text: str) -> None:
    """Ignore what is done now."""


async def measured(*those: Contender) -> dict[str, Any]:
    """Return what was found of contenders, by their names."""
    found = await measure.measure(those, 10, "an-image", told)
    return {each["name"]: each for each in found}


@pytest.mark.anyio
async def test_contenders_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    keeps, plain = (Pretended(name, "", "", str(log)) for name in ("keeps", "plain"))
    found = await measured(keeps, plain)

    assert found["keeps"]["version"] == "7.1"
    assert found["keeps"]["start"]["runs"] == 10
    # Five starts of each in a turn.
    turn = "keeps " * 5 + "plain " * 5
    assert log.read_text().startswith(turn * 2)
    assert found["keeps"]["state"]["runs"] == 20
    assert found["plain"]["state"] == {"absent": "keeps no state"}
    figure = found["plain"]["start"]
    assert 0 < figure["low"] <= figure["median"] <= figure["high"]


@pytest.mark.anyio
async def test_a_wrong_output_is_no_figure(tmp_path: Path) -> None:
    found = await measured(Pretended("wrong", "", "", str(tmp_path / "log")))

    reason = "ValueError: a program printed '2' in place of 1"
    assert found["wrong"]["start"] == found["wrong"]["rate"] == {"absent": reason}


@pytest.mark.anyio
async def test_sandboxes_whose_calls_block_run_at_once_on_all_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(40)))
    monkeypatch.setattr(measures, "_RATE_SECONDS", 0)
    all_run = threading.Barrier(40, timeout=60)

    def run(code: str) -> str:
        all_run.wait()
        return "1"

    @asynccontextmanager
    async def opened() -> AsyncIterator[Run]:
        yield run

    assert await measures.rate(Kind(version="", open=opened, blocking=True))


@pytest.mark.anyio
async def test_the_reason_of_a_missing_contender_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    library = Contender("library", "", "", "monty", ("pydantic-monty",))
    unknown = Contender("unknown", "", "", "bwrap")
    monkeypatch.setenv("PATH", "/nowhere")
    found = await measured(library, unknown, Ends("ends", "", "", ""))

    no_uv = "uv is not installed (in a clone of toolcell: pip install '.[packages]')"
    for name, reason in {
        "library": no_uv,
        "unknown": "FileNotFoundError: [Errno 2] No such file or directory: 'bwrap'",
        "ends": "no matching \\u{1b} distribution",
    }.items():
        assert {found[name][each]["absent"] for each in measure.MEASURES} == {reason}


@pytest.mark.anyio
async def test_the_reason_of_a_command_is_the_last_line_of_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretended = tmp_path / "bwrap"
    pretended.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bwrap 7.1 && exit\n'
        "echo a warning >&2; echo no user namespaces >&2; exit 1\n"
    )
    pretended.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = await measured(Contender("bwrap", "", "", "bwrap"))

    assert found["bwrap"]["version"] == "7.1"
    assert found["bwrap"]["start"] == {"absent": "no user namespaces"}


@pytest.mark.anyio
async def test_a_worker_that_does_not_answer_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_INSTALL_SECONDS", 0.01)
    monkeypatch.setattr(measure, "_END_SECONDS", 0.01)
    with anyio.fail_after(60):
        found = await measured(Hangs("hangs", "", "", ""))

    assert found["hangs"]["start"] == {"absent": "no answer in 0.01 seconds"}


@pytest.mark.anyio
async def test_what_a_worker_that_is_ended_started_is_ended_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(measure, "_END_SECONDS", 0.01)
    found = await measured(HangsBelow("hangs", "", "", ""))

    below = int(found["hangs"]["version"])
    await until(lambda: not alive(below))


@pytest.mark.anyio
async def test_a_worker_has_no_tokens_and_keys_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in VARIABLES[1:]:
        monkeypatch.setenv(name, "any")
    found = await measured(Shows("shows", "", "", ""))

    assert set(found["shows"]["version"].split()) == set(VARIABLES[:3])


def test_the_command_prints_and_writes_what_it_found(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = str(tmp_path / "log")
    those = (Pretended("keeps", "none", "", log), Ends("ends", "unknown", "", ""))
    monkeypatch.setattr(contenders, "CONTENDERS", those)
    done = command("bench", "--peers", "--runs", "3", "--report", "out", "--json")

    assert done.code == 0
    results = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert done.json == results
    assert [contender["name"] for contender in results["contenders"]] == [
        "keeps",
        "ends",
    ]
    written = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert {name: written[name] for name in plots(results)} == plots(results)
    assert "keeps 7.1" in written["start.svg"]
    [first, second] = table_rows(results)
    assert first[:3] == ("keeps", "7.1", "none")
    assert first[3].endswith(" ms")
    assert second[:3] == ("ends", "", "unknown")


def test_memory_that_is_less_than_noise_has_no_bar() -> None:
    figure = {"runs": 3, "low": -0.2, "median": 0.1, "high": 0.3}
    one = {"name": "any", "ours": False, "version": "7.1", "isolation": ""}
    contender = {**one, **dict.fromkeys(measure.MEASURES, figure)}
    results = {"date": "", "machine": machine(), "contenders": [contender]}

    assert "too little to measure: 0.1 (-0.2 to 0.3)" in plots(results)["memory.svg"]
    [row] = table_rows(results)
    assert row[-1] == "0.1 (-0.2 to 0.3) MB"


@pytest.mark.anyio
async def test_less_memory_of_more_sandboxes_is_shown_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def shrinks(kind: Kind, count: int) -> float:
        return 10.0 - count

    monkeypatch.setattr(measures, "_memory_of", shrinks)
    kind = Kind(version="", open=lambda: nullcontext(str))

    assert await measures.memory(kind) == [-1.0]


def test_a_report_that_cannot_be_made_is_refused_before_anything_is_measured(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "CONTENDERS", (Ends("ends", "", "", ""),))
    (tmp_path / "out").touch()
    done = command("bench", "--peers", "--report", "out")

    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("toolcell: cannot make the folder out: File exists")


def test_results_are_printed_although_the_report_cannot_be_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "CONTENDERS", (Ends("ends", "", "", ""),))
    (tmp_path / "out" / RESULTS).mkdir(parents=True)
    done = command("bench", "--peers", "--report", "out", "--json")

    assert done.code == 4
    assert [contender["name"] for contender in done.json["contenders"]] == ["ends"]
    assert "cannot write into out: Is a directory" in done.err


@pytest.mark.namespaces
@pytest.mark.anyio
async def test_cells_are_measured_by_the_same_worker() -> None:
    if not Path("/usr/bin/python3").exists():
        missing("cells run the system's python3")
    those = [
        contender for contender in CONTENDERS if contender.name == "toolcell, session"
    ]
    found = (await measured(*those))["toolcell, session"]

    assert found["ours"] is True
    assert found["start"]["runs"] == 10
    assert found["state"]["runs"] == 20
    assert found["rate"]["median"] > 0


def test_the_page_shows_what_is_drawn_from_the_committed_results() -> None:
    folder = PAGE.parent / "peers"
    drawn = {path.name: path.read_text() for path in folder.glob("*.svg")}
    results = folder / RESULTS

    assert drawn == (plots(json.loads(results.read_text())) if results.exists() else {})
    assert set(re.findall(r"\(peers/(\w+\.svg)\)", PAGE.read_text())) == set(drawn)


def test_the_page_names_every_contender() -> None:
    rows = [
        f"| {contender.name} | {contender.isolation} | {contender.call} |"
        for contender in CONTENDERS
    ]

    assert "\n".join(rows) in PAGE.read_text()
