"""The files of `deploy/` are valid, and name what a host has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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

    assert len({panel["id"] for panel in panels}) == len(panels) == 8
    for panel in panels:
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used <= variables | {"__rate_interval"}


def test_prometheus_accepts_the_queries(tmp_path: Path) -> None:
    promtool = program("promtool")
    ran(promtool, "check", "config", str(DEPLOY / "prometheus.yml"))
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    ]
    rules = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval", "1m", each)}
        for number, each in enumerate(queries)
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    assert f"{len(queries)} rules found" in ran(promtool, "check", "rules", str(file))


def check_rules(folder: Path, test: dict[str, Any]) -> None:
    """Check what alerts say of a series."""
    file = folder / "tests.json"
    rules = str(DEPLOY / "alerts.yml")
    file.write_text(json.dumps({"rule_files": [rules], "tests": [test]}))
    ran(program("promtool"), "test", "rules", str(file))


@pytest.mark.promise("JM3")
def test_the_first_refusals_of_a_guard_raise_the_alert(tmp_path: Path) -> None:
    series = 'toolcell_denials_total{toolcell_reason="store_unavailable"}'
    labels = {"severity": "page", "toolcell_reason": "store_unavailable"}
    told = {"exp_labels": labels, "exp_annotations": {}}
    summary = " refuses calls, because its guard cannot decide."
    told["exp_annotations"] = {"summary": summary}

    def alerts(minute: int, *expected: dict[str, Any]) -> dict[str, Any]:
        name = "ToolcellGuardUnavailable"
        return {
            "eval_time": f"{minute}m",
            "alertname": name,
            "exp_alerts": [*expected],
        }

    test = {
        "interval": "1m",
        # There is none, then one refusal, which stays the only one.
        "input_series": [{"series": series, "values": "_ _ 1x30"}],
        "alert_rule_test": [alerts(1), alerts(3, told), alerts(20)],
    }
    check_rules(tmp_path, test)


@pytest.mark.promise("JC8")
def test_policies_that_stay_stale_raise_an_alert(tmp_path: Path) -> None:
    series = 'toolcell_policies_stale{instance="one"}'
    summary = "one keeps older policies, because a changed file cannot be used."
    told = {
        "exp_labels": {"severity": "ticket", "instance": "one"},
        "exp_annotations": {"summary": summary},
    }
    expected: dict[int, list[Any]] = {3: [], 10: [told], 20: []}
    test = {
        "interval": "1m",
        # One file is mended before anybody is called, the other is not.
        "input_series": [{"series": series, "values": "0 1 1 0 1x10 0x10"}],
        "alert_rule_test": [
            {
                "eval_time": f"{minute}m",
                "alertname": "ToolcellPoliciesStale",
                "exp_alerts": alerts,
            }
            for minute, alerts in expected.items()
        ],
    }
    check_rules(tmp_path, test)


def test_systemd_accepts_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (DEPLOY / "toolcell.service").read_text()
    unit = tmp_path / "toolcell.service"
    # `verify` wants a program that exists.
    unit.write_text(text.replace("/opt/toolcell/bin/toolcell", "/bin/true"))
    assert ran(analyze, "verify", str(unit)) == ""
    ran(analyze, "security", "--offline=true", "--threshold=40", str(unit))
