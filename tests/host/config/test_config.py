"""`toolcell.toml`: what it may say, where it is wrong, and what it never tells."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from toolcell.core import ConfigError
from toolcell.core.secrets import read_secret
from toolcell.guard.policy.selectors import PRESETS
from toolcell.host import HostConfig
from toolcell.host.config.tools import DatabaseConfig, Group, ToolsConfig
from toolcell.sandbox import SandboxConfig

from ...project import write_config_reference

PASSWORD = "correct-horse-battery"


def written(folder: Path, text: str) -> Path:
    path = folder / "toolcell.toml"
    path.write_text(text)
    return path


def problem(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        HostConfig.from_file(written(folder, text), environ=environ)
    return str(caught.value)


def test_an_empty_file_is_closed_and_for_production(tmp_path: Path) -> None:
    config = HostConfig.from_file(written(tmp_path, ""), environ={})

    assert config == HostConfig()
    assert config.profile == "production"
    assert config.sandbox == SandboxConfig()
    assert (config.tools.builtin, config.tools.python, config.policies) == ((), (), ())


def test_every_section_is_read(tmp_path: Path) -> None:
    text = """
    policy_files = ["more.toml"]
    [sandbox]
    backend = "subprocess"
    [sandbox.limits]
    wall_seconds = 1.5
    [tools]
    builtin = ["code", "database", "http"]
    python = ["mine:tools"]
    folders = ["lib"]
    [tools.http]
    hosts = ["example.com"]
    [tools.database]
    path = "data.db"
    [state]
    folder = "state"
    redis_url = "file:redis-url"
    on_failure = "local(20)"
    [audit]
    path = "/var/audit.jsonl"
    key = "env:KEY"
    [[policies]]
    agent_id = "a"
    allow = ["run_python"]
    budgets = [{ unit = "usd", limit = 0.1, window = "day" }]
    """
    config = HostConfig.from_file(written(tmp_path, text), environ={})

    assert config.sandbox.limits.wall_seconds == 1.5
    assert config.tools.folders == (tmp_path / "lib",)
    assert config.tools.database is not None
    assert config.tools.database.path == tmp_path / "data.db"
    assert config.policy_files == (tmp_path / "more.toml",)
    assert config.state.folder == tmp_path / "state"
    assert config.state.redis_url == f"file:{tmp_path}/redis-url"
    assert config.audit.path == Path("/var/audit.jsonl")
    # Never a float on the way.
    assert config.policies[0].budgets[0].limit == "0.1"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[sandbx]\nbackend = 'docker'", "line 1, column 1: sandbx:"),
        ("\n[sandbox]\n  backnd = 'docker'", "line 3, column 3: sandbox.backnd:"),
        ("[sandbox.limits]\nmemory_mib = 1", "line 2, column 1: sandbox.limits.memory"),
        ("[sandbox]\nbackend = 'vm'", "line 2, column 1: sandbox.backend:"),
        (
            "[[policies]]\nagent_id = 'a'\n[[policies]]\nagent_id = 'b'\nalow = []",
            "line 5, column 1: policies.1.alow:",
        ),
        ("[tools]\nbuiltin = ['shell']", "line 2, column 1: tools.builtin.0:"),
        ("[tools]\npython = ['os.system']", "line 2, column 1: tools.python.0:"),
        ("[tools]\nbuiltin = ['database']", "line 1, column 1: tools: the group"),
        ("[state]\non_failure = 'ajar'", "line 2, column 1: state.on_failure:"),
        ("policy_files = ['rules/**.toml']", "rules/**.toml has `**`"),
        ("[sandbox]\nbackend = ]", "at line 2, column 11"),
        (f"[sandbox]\npool = {'9' * 5000}", "4300 digits"),
    ],
)
@pytest.mark.promise("R50")
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, text: str, place: str
) -> None:
    assert place in problem(tmp_path, text)


def test_all_problems_are_told_at_once_and_as_data(tmp_path: Path) -> None:
    path = written(tmp_path, "one = 1\n[audit]\ntwo = 2\n")
    with pytest.raises(ConfigError) as caught:
        HostConfig.from_file(path, environ={})

    fields = {item["field"]: item["line"] for item in caught.value.details["problems"]}
    assert fields == {"one": 1, "audit.two": 3}


def test_of_many_problems_the_first_are_named_and_the_rest_counted(
    tmp_path: Path,
) -> None:
    text = "".join(f"unknown_{number} = 1\n" for number in range(1_000))

    said = problem(tmp_path, text)

    assert "unknown_19" in said and "unknown_20" not in said
    assert "; and 980 more (" in said


def test_a_missing_file_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="toolcell init"):
        HostConfig.from_file(tmp_path / "none.toml", environ={})


def test_too_large_a_file_is_not_read(tmp_path: Path) -> None:
    assert "larger than 4 MiB" in problem(tmp_path, "#" * 4_194_305)


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[sandbox]\nbackend = 'docker'\npool = 1\n")
    environ = {
        "TOOLCELL__SANDBOX__BACKEND": "subprocess",
        "TOOLCELL__SANDBOX__LIMITS__WALL_SECONDS": "2.5",
        "TOOLCELL__SANDBOX__DOCKER_HOST": "tcp://127.0.0.1:9",
        "TOOLCELL__SANDBOX__ENV": "{ LANG = 'C' }",
        "TOOLCELL__TOOLS__BUILTIN": '["code"]',
        "TOOLCELL__AUDIT__PATH": "log.jsonl",
        "TOOLCELL_TEST_IMAGE": "no key of ours",
    }
    config = HostConfig.from_file(path, environ=environ)

    assert (config.sandbox.backend, config.sandbox.pool) == ("subprocess", 1)
    assert config.sandbox.limits.wall_seconds == 2.5
    assert config.sandbox.docker_host == "tcp://127.0.0.1:9"
    assert config.sandbox.env == {"LANG": "C"}
    assert config.tools.builtin == ("code",)
    assert config.audit.path == tmp_path / "log.jsonl"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("TOOLCELL__SANDBOX__BACKND", "docker", "sandbox.backnd"),
        ("TOOLCELL__SANDBX__BACKEND", "docker", "sandbx"),
        ("TOOLCELL__SANDBOX__POOL", "many", "sandbox.pool"),
        pytest.param(
            *("TOOLCELL__SANDBOX__POOL", "9" * 5000, "sandbox.pool"), id="digits"
        ),
        ("TOOLCELL__PROFILE__X", "1", "matches no key"),
        ("TOOLCELL__", "1", "matches no key"),
        ("TOOLCELL__POLICIES__0__AGENT_ID", "b", "matches no key"),
        # What looks like two keys is one text, and no profile.
        ("TOOLCELL__PROFILE", "'production'\nother = 1", "profile"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, value: str, told: str
) -> None:
    text = "profile = 'production'\n[[policies]]\nagent_id = 'a'\n"
    message = problem(tmp_path, text, **{name: value})

    assert f"variable {name}" in message
    assert told in message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[sandbox]\nminimum_isolation = 'process'", "minimum_isolation"),
        ("[approvals]\nauto_approve = 'ci'", "auto_approve"),
        ("[state]\non_failure = 'open'", "on_failure"),
    ],
)
def test_production_refuses_what_is_weak(tmp_path: Path, text: str, named: str) -> None:
    message = problem(tmp_path, text)
    assert "the profile 'production' refuses" in message
    assert named in message

    asked = {"TOOLCELL__PROFILE": "development"}
    path = written(tmp_path, text)
    assert HostConfig.from_file(path, environ=asked).profile == "development"
    with pytest.raises(ConfigError, match="refuses"):
        HostConfig.from_file(
            written(tmp_path, f"profile = 'development'\n{text}"),
            environ={"TOOLCELL__PROFILE": "production"},
        )


@pytest.mark.promise("R50")
def test_a_secret_is_named_and_never_written(tmp_path: Path) -> None:
    for text in (
        f"[audit]\nkey = '{PASSWORD}'",
        f"[state]\nredis_url = 'redis://:{PASSWORD}@host'",
        f"[state]\nredis_url = {{ a = '{PASSWORD}' }}",
    ):
        with pytest.raises(ConfigError) as caught:
            HostConfig.from_file(written(tmp_path, text), environ={})
        # With `--json` the details are printed, too.
        assert PASSWORD not in f"{caught.value} {caught.value.details}"
        assert "line 2" in str(caught.value)


def test_secrets_come_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{PASSWORD}\n")
    environ = {"KEY": PASSWORD}

    for reference in ("env:KEY", f"file:{tmp_path}/key"):
        secret = read_secret(reference, environ)
        assert secret.get_secret_value() == PASSWORD
        assert PASSWORD not in repr(secret)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none", None, "No such file"),
        ("empty", b"\n", "not set, or empty"),
        ("binary", b"\xff" * 20, "not UTF-8"),
        ("large", b"x" * 65_537, "larger than 64 KiB"),
    ],
)
def test_a_secret_that_cannot_be_read_is_told_by_its_reference(
    tmp_path: Path, name: str, content: bytes | None, why: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        read_secret(f"file:{tmp_path}/{name}")

    assert f"file:{tmp_path}/{name}" in str(caught.value)


def test_a_variable_that_is_not_set_is_no_secret() -> None:
    with pytest.raises(ConfigError, match="env:KEY is not set"):
        read_secret("env:KEY", {})


def test_the_reference_is_current() -> None:
    """Write it anew: .venv/bin/python tests/project/write_config_reference.py"""
    assert write_config_reference.PAGE.read_text() == write_config_reference.render()


def test_each_builtin_tool_is_in_one_group_of_policies() -> None:
    """So that `deny = ["@write"]` means every tool that writes."""
    database = DatabaseConfig(path=Path("a.db"))
    config = ToolsConfig(builtin=get_args(Group), database=database)
    names = [name for group in config.groups.values() for name in group]

    names += PRESETS["code_mode"]
    assert set(names) == {name for preset in PRESETS.values() for name in preset}
    assert {"run_code", "run_python", "run_shell"} == set(PRESETS["code"])
    assert PRESETS["write"] == ("write_file", "edit_file")


def test_every_key_has_its_text() -> None:
    rows = [
        line for line in write_config_reference.render().splitlines() if "| `" in line
    ]
    silent = [row for row in rows if row.endswith("|  |")]

    assert len(rows) > 60
    assert silent == []
