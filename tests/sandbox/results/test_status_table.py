"""One table knows the outcomes of a run; all that read it know each of them."""

from __future__ import annotations

import ast
import re
from typing import get_args

import pytest

from toolcell.core import ToolExecutionError, ToolTimeoutError
from toolcell.host.e2b.services.process_service import end_event
from toolcell.sandbox import ExecutionResult, Limits
from toolcell.sandbox.cell.wire.frames import FrameError
from toolcell.sandbox.client.run_report import RunReport
from toolcell.sandbox.processes.process import status_of_end
from toolcell.sandbox.results.status import STATUSES, Status
from toolcell.tools.execution.runner import content_of

from ...support.paths import ROOT

SIGNALS = {"crashed": "SIGSEGV", "killed": "SIGKILL", "cancelled": "SIGKILL"}
EXIT_CODES = {
    "ok": 0,
    "error": 1,
    "disk_limit": 1,
    "refused": 3,
    "exit": 7,
    "timeout": 124,
    "cpu_limit": 124,
    "cancelled": 130,
    "out_of_memory": 137,
    "output_limit": 137,
    "killed": 137,
    "crashed": 139,
}
REPORT = {
    "type": "finished",
    "wall_ms": 1,
    "cpu_ms": 1,
    "peak_memory_bytes": 1,
    "wait_status": 9,
}


def result_of(status: Status) -> ExecutionResult:
    code = 7 if status == "exit" else None
    return ExecutionResult(status=status, signal=SIGNALS.get(status), exit_code=code)


def words_of_cells(*folders: str) -> set[str]:
    """Return the texts in the sources of cells, which import nothing of the host."""
    return {
        node.value
        for folder in folders
        for path in (ROOT / "sandbox/cell" / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_the_table_has_each_outcome_once() -> None:
    assert list(STATUSES) == list(get_args(Status))


def test_cells_report_what_the_host_takes_from_them() -> None:
    # These are words of programs and of the launcher, too.
    known = STATUSES.keys() - {"ok", "error", "exit", "refused"}

    assert words_of_cells("supervisor", "accounting") & known == {
        name for name, rules in STATUSES.items() if rules.ends_run
    }
    assert words_of_cells("processes") & known == {
        name for name, rules in STATUSES.items() if rules.ends_command
    }


@pytest.mark.parametrize("status", STATUSES)
def test_each_reader_knows_each_outcome(status: Status) -> None:
    rules, result = STATUSES[status], result_of(status)
    report = RunReport(cap=10)

    if rules.ends_run:
        report.finish({**REPORT, "reason": status}, b"", ())
        assert report.reason == status
    else:
        with pytest.raises(FrameError, match="unknown reason"):
            report.finish({**REPORT, "reason": status}, b"", ())
    assert (status_of_end(status, 7, None) == status) is (
        rules.ends_command or status == "exit"
    )
    assert result.shell_exit_code == EXIT_CODES[status]
    if status not in ("ok", "exit"):
        end = end_event(result)
        assert end["exited"] is False
        assert end["error"] == (
            f"it used too much {rules.limit}"
            if rules.limit
            else f"signal: {'segmentation fault' if status == 'crashed' else 'killed'}"
        )
    if status != "ok":
        kind = ToolTimeoutError if rules.is_out_of_time else ToolExecutionError
        with pytest.raises(kind):
            content_of("tool", result, Limits().wall_seconds)


@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 143), ("SIG40", 168), ("SIGRTMIN", 162)]
)
def test_a_crash_has_the_exit_code_of_its_signal(name: str, code: int) -> None:
    result = ExecutionResult(status="crashed", signal=name)

    assert result.shell_exit_code == code


def test_the_pages_have_each_outcome() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", _section("security.md"), re.MULTILINE)
    causes = {
        word for line in _rows("sandbox.md") for word in re.findall("`(.+?)`", line)
    }

    assert rows == list(STATUSES)
    assert causes == STATUSES.keys()


def _section(page: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    return text.partition("## What a status means")[2].partition("\n## ")[0]


def _rows(page: str) -> list[str]:
    """Return the first cells of the table of causes."""
    text = (
        (ROOT / "docs" / page).read_text().partition("| status | cause |\n|---|---|\n")
    )
    rows = text[2].partition("\n\n")[0].splitlines()
    return [row.split("|")[1] for row in rows]
