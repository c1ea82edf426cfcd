"""`toolcell credentials list` shows no value, and reads none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from toolcell.host.cli.commands import make_app

CONFIG = """
[sandbox.network]
mode = "guarded"
inspect = ["api.example.org:443"]

[[sandbox.credentials]]
name = "example"
value = "file:/no/such/file"
hosts = ["api.example.org:443"]
agents = ["builder"]
variable = "EXAMPLE_TOKEN"
"""


@pytest.mark.promise("boundary-6")
def test_credentials_are_listed_without_their_values(tmp_path: Path) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(CONFIG)
    command = ["credentials", "list", "--config", str(path)]
    runner, app = CliRunner(), make_app(["credentials"])

    table = runner.invoke(app, command)
    listed = json.loads(runner.invoke(app, [*command, "--json"]).stdout)

    assert table.exit_code == 0
    assert (
        "example\tEXAMPLE_TOKEN\tapi.example.org:443\tbuilder\tnot recorded"
        in table.stdout
    )
    assert listed[0]["agents"] == ["builder"]
    assert "value" not in listed[0]
    assert listed[0]["last_use"] is None
