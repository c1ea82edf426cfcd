"""A limit is declared once: its rule says who holds it, and which cells have it."""

from __future__ import annotations

import ast

import pytest

from toolcell.sandbox import Limits, SandboxConfig
from toolcell.sandbox.backends.cell_settings import cell_settings
from toolcell.sandbox.backends.launcher_setup import LauncherSetup
from toolcell.sandbox.config.settings import LIMITS, enforcers
from toolcell.sandbox.scheduling.used_cells import key_of

from ...support.paths import ROOT

OTHER = {**dict.fromkeys(LIMITS, 40), "stop_at_output_limit": True}


def rlimits_of_cells() -> set[str]:
    """Return the names in the cell's own table, which imports nothing of the host."""
    tree = ast.parse((ROOT / "sandbox/cell/kernel/confine.py").read_text())
    return {
        ast.literal_eval(key)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_RLIMITS"
        if isinstance(node.value, ast.Dict)
        for key in filter(None, node.value.keys)
    }


def test_each_limit_has_a_rule() -> None:
    assert LIMITS.keys() == Limits.model_fields.keys()


def test_cells_know_each_rlimit() -> None:
    assert {rule.rlimit for rule in LIMITS.values()} - {""} <= rlimits_of_cells()


@pytest.mark.parametrize("name", LIMITS)
def test_a_cell_is_used_again_with_its_own_limits_alone(name: str) -> None:
    mine, other = Limits(), Limits.model_validate({name: OTHER[name]})

    setup = LauncherSetup(config=SandboxConfig(), cgroups={})
    made_alike = setup.kind(mine)["settings"] == setup.kind(other)["settings"]

    assert (key_of("a", mine) == key_of("a", other)) is made_alike
    assert made_alike is not LIMITS[name].of_cell
    assert key_of("a", mine) == key_of("a", Limits()) != key_of("b", mine)


@pytest.mark.parametrize("held", [(), LIMITS], ids=["no cgroup", "cgroup"])
def test_each_limit_has_one_enforcer(held: tuple[str, ...]) -> None:
    limits, enforced_by = Limits(open_files=99, pids=9, cpus=2), enforcers(cgroup=held)
    settings = cell_settings(SandboxConfig(), limits, enforced_by, require=())

    assert ("cgroup" in enforced_by.values()) is bool(held)
    assert settings["rlimits"]["open_files"] == 99
    assert settings["rlimits"].get("processes") == (None if held else 9)
    assert settings["affinity"] == (0 if held else 2)
    assert (settings["memory_watch"] is None) is bool(held)
    without = enforcers(cgroup=held, missing=("pids", "cpus"))
    assert ("pids" in without, "cpus" in without) == (bool(held), bool(held))
