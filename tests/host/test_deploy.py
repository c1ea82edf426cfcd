"""The files of `deploy/` are valid, and name what a host has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ..support.paths import ROOT
from ..support.project.deploy import DEPLOY, program, ran

METRIC = re.compile(r"toolcell_[a-z_]+")
LABELS = {"toolcell_status", "toolcell_reason", "toolcell_limit"}
SUFFIXES = re.compile(r"_(total|seconds_bucket|seconds)$")


def documented_metrics() -> set[str]:
    """Return the metrics of docs/operations.md, as Prometheus spells them."""
    text = (ROOT / "docs" / "operations.md").read_text()
    return {
        each.replace(".", "_")
        for each in re.findall(r"^\| `(toolcell\.\S+)`", text, re.M)
    }


@pytest.mark.parametrize("name", ["grafana.json", "alerts.yml"])
def test_every_metric_that_is_shown_exists(name: str) -> None:
    used = set(METRIC.findall((DEPLOY / name).read_text())) - LABELS
    names = {SUFFIXES.sub("", each) for each in used}

    assert len(names) >= 4
    assert names <= documented_metrics()


def test_a_dashboard_is_whole() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    panels = dashboard["panels"]

    assert len({each["id"] for each in panels}) == len(panels) == 8
    for panel in panels:
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= variables | {"__rate_interval"}


def test_prometheus_accepts_the_queries(tmp_path: Path) -> None:
    promtool = program("promtool")
    ran(promtool, "check", "config", str(DEPLOY / "prometheus.yml"))
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [
        each["expr"] for panel in dashboard["panels"] for each in panel["targets"]
    ]
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval", "1m", each)}
        for number, each in enumerate(queries)
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(queries)} rules found" in ran(promtool, "check", "rules", str(file))


def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (DEPLOY / "toolcell.service").read_text()
    unit = tmp_path / "toolcell.service"
    # `verify` wants a program that exists.
    unit.write_text(text.replace("/opt/toolcell/bin/toolcell", "/bin/true"))
    assert ran(analyze, "verify", str(unit)) == ""
    ran(analyze, "security", "--offline=true", "--threshold=40", str(unit))
