"""Errors of the command line speak of its options, those of a file of its keys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolcell.core import ConfigError
from toolcell.host import HostConfig

from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.promise("N14")
NO_BACKEND = (
    "--backend: there is no backend 'dokcer'; there are auto, docker, subprocess, "
    "process"
)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "-", "--timeout", "0"], "--timeout must be greater than 0 (seconds)"),
        (
            ["repl", "--memory", "1"],
            "--memory must be greater than or equal to 32 (MiB)",
        ),
        (
            ["run", "-", "--backend", "dokcer"],
            NO_BACKEND,
        ),
        (
            ["bench", "--backend", "dokcer"],
            NO_BACKEND,
        ),
        (
            ["run", "-", "--isolation", "kernle"],
            "--isolation must be 'kernel', 'container', 'namespaces', 'confined' or "
            "'process'",
        ),
        (
            ["run", "-", "--allow-host", "example.org"],
            "--allow-host: 'example.org' has no port; write host:port",
        ),
        (
            ["run", "-", "--runtime", "runsc", "--backend", "subprocess"],
            "the subprocess backend has no runtime 'runsc'; use --backend docker",
        ),
        (["bench", "--report", "a"], "--report and --image need --peers"),
        (
            ["bench", "--peers", "--backend", "docker"],
            "--peers measures cells of all backends",
        ),
        (["doctor", "--image", ""], "--image: String should have at least 1 character"),
    ],
)
def test_an_option_is_named_as_it_was_typed(arguments: list[str], said: str) -> None:
    done = toolcell(*arguments)

    assert done.returncode == 2
    assert done.stderr.decode() == f"toolcell: {said}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sandbox.limits]\nmemory = 256", "did you mean memory_mib?"),
        ("[sandbox]\nbackand = 'auto'", "did you mean backend?"),
        ("[tols]\nbuiltin = []", "did you mean tools?"),
        ("[[policies]]\nagent_id = 'a'\nalow = []", "did you mean allow?"),
        ("[sandbox]\nzzz = 1", "sandbox.zzz: there is no such key (docs"),
    ],
)
def test_a_key_that_is_none_is_compared_with_those_there_are(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        HostConfig.from_file(path, environ={})

    told = f"{raised.value.message} ({raised.value.hint})"
    assert said in told
    assert "Extra inputs" not in told


@pytest.mark.promise("N27")
def test_the_environment_may_name_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.toml"
    path.write_text("[tols]")
    env = {**os.environ, "TOOLCELL_CONFIG": str(path)}
    done = toolcell("tools", "list", env=env)

    assert done.returncode == 2
    assert f"toolcell: {path}: line 1" in done.stderr.decode()
