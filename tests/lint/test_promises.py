"""Each promise has a test or a reason, and each test that names one is right."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest

from ..conftest import missing
from ..support.paths import ROOT, TESTS
from ..support.promises import REGISTRY, named_by_tests, promises

pytestmark = pytest.mark.lint

SPEC = ROOT.parent / "shared" / "spec"
_LAYERS = "[KCFHRLGMT]"  # all of the table but artifacts, taken for themselves
ABOUT_SESSIONS = (
    "sandbox/test_cancelled_callers",
    "sandbox/test_session_cell",
    "sandbox/test_session_state",
    "sandbox/client/test_workdir",
    "sandbox/client/test_hostile_files",
    "sandbox/scheduling/test_pool",
    "sandbox/config/test_mounts",
    "sandbox/config/test_secrets",
)
"""The test files on sessions, files, streams, the pool, mounts and secrets."""


def test_every_promise_has_a_test_or_a_reason() -> None:
    without = {id_ for id_, reason in promises().items() if not reason}

    assert sorted(without - named_by_tests().keys()) == []
    assert len(promises()) > 700


def test_every_test_names_promises_that_exist() -> None:
    assert sorted(named_by_tests().keys() - promises().keys()) == []


def test_what_has_a_test_is_not_excused() -> None:
    excused = {id_ for id_, reason in promises().items() if reason}
    partly = {id_ for id_ in excused if id_.startswith("cluster-")}

    assert sorted((excused - partly) & named_by_tests().keys()) == []


@pytest.mark.promise("R72")
def test_each_finding_of_the_first_attack_has_a_test() -> None:
    first = {f"A{number}" for number in range(1, 30)}

    # Cells of one launcher share their layout: docs/security.md.
    assert first - named_by_tests().keys() == {"A28"}


def test_every_test_about_sessions_names_a_promise() -> None:
    named = {test for tests in named_by_tests().values() for test in tests}
    without = []
    for part in ABOUT_SESSIONS:
        for node in ast.parse((TESTS / f"{part}.py").read_text()).body:
            name = getattr(node, "name", "")
            if name.startswith("test_") and f"tests/{part}.py::{name}" not in named:
                without.append(f"{part}::{name}")

    assert without == []


def test_the_page_of_sessions_says_the_same() -> None:
    table = (ROOT / "docs" / "sessions.md").read_text().split("## Promises")[1]
    rows = dict(re.findall(r"^\| (P-\d\d) \| (.+) \|$", table, re.M))

    assert rows == tomllib.loads(REGISTRY.read_text())["sessions"]


def test_attacks_without_a_test_are_in_the_page_of_security() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    table = text.split("## Attack rows that are out of scope")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \| .+ \| .+ \|$", table, re.M)
    excused = {f"E-{row.strip()}" for cell in rows for row in cell.split(",")}

    registry = {id_ for id_, why in promises().items() if why and id_[:2] == "E-"}
    assert excused == registry


def test_every_row_of_the_plan_is_a_promise() -> None:
    if not SPEC.is_dir():
        missing(f"the plan is not at {SPEC}")
    inventory = (SPEC / "reference_systems.md").read_text()
    systems = "LT|LC|GA|GR|OR|RG|RL|RA|RO|A|X"
    rows = set(re.findall(rf"^\| ((?:{systems})-\d\d) \|", inventory, re.M))
    for line in (SPEC / "escape_classes.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)]
        if len(cells) == 8 and cells[1].isdigit() and re.search(_LAYERS, cells[6]):
            rows.add(f"E-{cells[1]}")

    assert sorted(rows - promises().keys()) == []
