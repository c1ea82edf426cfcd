"""Policy files: what they mean, where they are wrong, and how they are reloaded."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest

from toolcell.core import PolicyError
from toolcell.core.text.source_positions import toml_positions
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    load_policies,
    policy_schema,
    watch_policies,
)

from ...support.guard.builders import FREE, call

pytestmark = pytest.mark.anyio

TOML = """\
# Who may do what.
[[policies]]
agent_id = "boss"
allow = ["*"]

[[policies]]
agent_id = "a"
parent = "boss"
allow = [
    "add",
    { tools = ["read_file"], when = { path = { under = "/data" } } },
]
rate_limits = ["60/minute"]
max_concurrency = 2

    [[policies.budgets]]
    unit = "usd"
    limit = 0.3
    window = "day"

    [[policies.deny]]
    tools = ["add"]
    [policies.deny.when.n]
    min = 100
"""
YAML = """\
# Who may do what.
policies:
  - agent_id: boss
    allow: ["*"]
  - agent_id: a
    parent: boss
    allow:
      - add
      - tools: [read_file]
        when: {path: {under: /data}}
    rate_limits: [60/minute]
    max_concurrency: 2
    budgets:
      - {unit: usd, limit: 0.3, window: day}
    deny:
      - tools: [add]
        when:
          n: {min: 100}
"""
PYTHON = [
    AgentPolicy(agent_id="boss", allow=["*"]),
    AgentPolicy(
        agent_id="a",
        parent="boss",
        allow=["add", {"tools": ["read_file"], "when": {"path": {"under": "/data"}}}],
        rate_limits=["60/minute"],
        max_concurrency=2,
        budgets=[{"unit": "usd", "limit": "0.3", "window": "day"}],
        deny=[{"tools": ["add"], "when": {"n": {"min": 100}}}],
    ),
]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("p.toml", TOML), ("p.yaml", YAML)])
def test_a_file_means_what_python_says(tmp_path: Path, name: str, text: str) -> None:
    policies = load_policies(written(tmp_path, name, text))

    assert policies == PYTHON
    assert ActionGuard(policies).policy_version == ActionGuard(PYTHON).policy_version


@pytest.mark.parametrize(
    ("name", "old", "new", "where"),
    [
        ("p.toml", "parent =", "parnet =", "line 8, column 1: policies.1.parnet"),
        ("p.toml", '"usd"', '"eur"', "line 17, column 5: policies.1.budgets.0.unit"),
        ("p.toml", "0.3", "-0.3", "line 18, column 5: policies.1.budgets.0.limit"),
        ("p.toml", "0.3", "nan", "line 18, column 5: policies.1.budgets.0.limit"),
        ("p.toml", "0.3", "inf", "line 18, column 5: policies.1.budgets.0.limit"),
        ("p.toml", "under", "udner", "line 9, column 1: policies.1.allow.1"),
        (
            "p.toml",
            "min = 100",
            "mn = 1",
            "line 24, column 5: policies.1.deny.0.when.n",
        ),
        ("p.toml", "limit = 0.3", "limit = ", "line 18, column 13"),
        ("p.toml", '"boss"\nallow', '"boss"\nagent_id = "x"\nallow', "line 4"),
        ("p.yaml", "parent:", "parnet:", "line 6, column 5: policies.1.parnet"),
        ("p.yaml", "unit: usd", "unit: eur", "line 14, column 10"),
        ("p.yaml", "0.3", "-0.3", "line 14, column 21: policies.1.budgets.0.limit"),
        ("p.yaml", "0.3", ".nan", "line 14, column 21"),
        ("p.yaml", "under: /data", "udner: /data", "line 10, column 23"),
        ("p.yaml", "min: 100", "min: yes", "line 18, column 15"),
        ("p.yaml", "min: 100", "min: [", "line 18, column 21"),
        ("p.yaml", "    parent: boss", "    agent_id: b", "line 6, column 5: key"),
        ("p.yaml", "parent: boss", "parent: *x", "aliases are not read"),
        ("p.yaml", "parent: boss", "parent: 2024-01-01", "put the value in quotes"),
        ("p.yaml", "parent: boss", "parent: !!python/name:os.system x", "is not read"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_column(
    tmp_path: Path, name: str, old: str, new: str, where: str
) -> None:
    text = (TOML if name == "p.toml" else YAML).replace(old, new, 1)

    with pytest.raises(PolicyError) as caught:
        load_policies(written(tmp_path, name, text))
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.json", "{}"),
        ("p.toml", ""),
        ("p.toml", "policies = 3"),
        ("p.toml", "polices = []"),
        pytest.param("p.toml", f"policies = {'9' * 5000}", id="digits"),
        ("p.yaml", ""),
        ("p.yaml", "- a"),
        ("p.yaml", "a: [" * 2000),
        ("p.yaml", "\x00"),
    ],
)
def test_what_is_no_policy_file_is_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    with pytest.raises(PolicyError):
        load_policies(written(tmp_path, name, text))


def test_of_many_mistakes_the_first_are_named_and_the_rest_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "many.toml"
    keys = "".join(f"unknown_{number} = 1\n" for number in range(1_000))
    path.write_text(f'[[policies]]\nagent_id = "a"\n{keys}')

    with pytest.raises(PolicyError) as caught:
        load_policies(path)

    said = str(caught.value)
    assert "unknown_19" in said and "unknown_20" not in said
    assert "; and 980 more (" in said


def test_a_file_that_is_away_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policies(tmp_path / "none.toml")
    with pytest.raises(PolicyError, match="larger than 4 MiB"):
        load_policies(written(tmp_path, "p.toml", "#" * 5_000_000))
    (tmp_path / "q.toml").write_bytes(b"\xff")
    with pytest.raises(PolicyError, match="is not UTF-8"):
        load_policies(tmp_path / "q.toml")


def test_the_schema_takes_what_the_loader_takes() -> None:
    validator = jsonschema.Draft202012Validator(policy_schema())

    assert validator.is_valid(
        {"policies": [{"agent_id": "a", "budgets": [{"unit": "usd", "limit": "1"}]}]}
    )
    assert not validator.is_valid({"policies": [{"agent_id": "a", "alow": []}]})
    assert not validator.is_valid({"policies": [{"agent_id": "a b"}]})


def test_the_schema_knows_the_short_forms() -> None:
    validator = jsonschema.Draft202012Validator(policy_schema())
    short: dict[str, Any] = {
        "agent_id": "a",
        "allow": ["add", {"tools": ["x"]}],
        "rate_limits": ["60/minute", {"limit": "1/day", "per": "tool"}],
    }

    assert [
        error.message for error in validator.iter_errors({"policies": [short]})
    ] == []


async def test_a_changed_file_is_put_in_force_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, "p.toml", TOML)
    guard = ActionGuard([])

    async def until(version: str | None, text: str) -> None:
        with anyio.fail_after(60):
            while text not in caplog.text or guard.policy_version == version:
                await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: watch_policies(guard, path, interval=0.001))
        await until(ActionGuard([]).policy_version, "")
        good = guard.policy_version
        assert (await guard.decide(call(), FREE)).allowed

        replace(path, TOML.replace("parent", "parnet"))
        await until(None, "policies stay as they are")
        assert guard.policy_version == good
        path.unlink()
        await until(None, "cannot be read")
        assert guard.policy_version == good

        replace(path, TOML.replace('"add",', '"sub",'))
        await until(good, "are in force")
        assert not (await guard.decide(call(), FREE)).allowed
        assert (await guard.decide(call("sub"), FREE)).allowed
        tasks.cancel_scope.cancel()


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


async def test_a_file_must_be_good_at_first(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        await watch_policies(ActionGuard([]), tmp_path / "none.toml")


def test_positions_in_toml_are_found_in_linear_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = "".join(f'  "tool_{number}", # k = 1\n\n' for number in range(300))
    text = f"""# c
[[policies]] # k = 1

"agent id" . "x=y" = "a"
allow = [
{tools}
  ["z"]
]
text = '''
k = 1
[b]
'''
  [policies.groups]
"""
    read, loads = [], tomllib.loads

    def counted(text: str) -> object:
        read.append(text)
        return loads(text)

    monkeypatch.setattr("tomllib.loads", counted)
    positions = toml_positions(text)

    assert positions.find(("policies", 0)) == (2, 1)
    assert positions.find(("policies", 0, "agent id", "x=y")) == (4, 1)
    assert positions.find(("policies", 0, "allow", 7)) == (5, 1)
    assert positions.find(("policies", 0, "text")) == (609, 1)
    assert positions.find(("policies", 0, "groups")) == (613, 3)
    assert len(read) < 30
