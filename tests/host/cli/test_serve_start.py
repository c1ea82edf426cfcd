"""`toolcell serve` starts, or says in one line why it does not."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from toolcell.core import ConfigError, InvalidInputError
from toolcell.host.cli import commands
from toolcell.host.cli.serving import console, serve

from ...support.mcp.served_hosts import CONFIG, http_process, written
from ...support.paths import ROOT
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.promise("N4")

HTTP = ("serve", "--http", "127.0.0.1:0")
STATELESS = CONFIG.replace('[state]\nfolder = "state"\n', "")
OAUTH = "issuer = 'https://login.example'\nresource = 'https://example/mcp'\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (STATELESS, "no folder is configured for tokens (name a folder in [state])"),
        (f"{CONFIG}[auth]\nverifier = 'json:none_such'\n{OAUTH}", "none_such"),
        (
            "profile = 'development'\n"
            + CONFIG.replace('agent_id = "a"\napproval', "approval", 1)
            + "[auth]\nunauthenticated = true\n",
            "auth.unauthenticated needs server.agent_id",
        ),
    ],
)
def test_who_calls_is_known_before_anything_is_served(
    tmp_path: Path, text: str, why: str
) -> None:
    path = str(written(tmp_path, text))
    told = toolcell(*HTTP, "--config", path)
    line = toolcell(*HTTP, "--json", "--config", path)

    assert (told.returncode, told.stdout, told.stderr.count(b"\n")) == (2, b"", 1)
    assert why in told.stderr.decode()
    assert (line.returncode, line.stdout) == (2, b"")
    assert json.loads(line.stderr)["error"]["kind"] == "config"


def test_the_example_serves_over_http(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "toolcell.toml").read_text()
    with http_process(written(tmp_path, text)) as (url, process):
        assert url.endswith("/mcp")
        process.terminate()
        process.communicate(timeout=120)

    assert process.returncode == 0


def test_an_error_in_groups_is_itself() -> None:
    error = ConfigError("one")
    group = BaseExceptionGroup("", [BaseExceptionGroup("", [error])])

    assert commands.typed_error(group) is error


def test_what_nobody_foresaw_keeps_its_traceback() -> None:
    group = ExceptionGroup("", [InvalidInputError("one"), RuntimeError("two")])
    with pytest.raises(ExceptionGroup) as raised:
        commands.typed_error(group)

    assert raised.value is group


def test_a_command_looks_for_all_that_its_extra_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {
        extra: {re.split("[>=<]", each)[0].replace("-", "_") for each in needed}
        for extra, needed in project["optional-dependencies"].items()
    }

    for extra, modules in {**serve.MODULES, "console": console.MODULES}.items():
        assert set(modules) == brought[extra]
