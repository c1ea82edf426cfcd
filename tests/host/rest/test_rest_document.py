"""The OpenAPI document, and requests that schemathesis makes from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from toolcell.host.http.tokens import TokenStore
from toolcell.host.rest.openapi import openapi_document
from toolcell.host.rest.operations import OPERATIONS

from ...support.child import Child
from ...support.toolcell_command import TOOLCELL

CONFIG = """
[tools]
builtin = ["arithmetic", "clock"]
[state]
folder = "state"
[server]
max_body_values = 1000000
max_bytes_per_second = 1000000000000
[[policies]]
agent_id = "a"
allow = ["calculate"]
ask = ["get_today_date"]
"""
SCHEMATHESIS = """
[[operations]]
include-name = "GET /v1/events"
parameters = { seconds = 0 }
"""


@contextmanager
def process(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve REST from a process of its own; yields its URL and a token."""
    (folder / "toolcell.toml").write_text(CONFIG)
    (folder / "state").mkdir(mode=0o700)
    with TokenStore(folder / "state" / "tokens.db") as store:
        token = store.create("a", asks_person=True, operator=True)[1]
    command = [TOOLCELL, "serve", "--rest", "127.0.0.1:0", "--json"]
    with Child(command, cwd=folder, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["url"], token
        finally:
            server.terminate()
    assert server.returncode == 0


def tried(folder: Path, *options: str) -> None:
    """Let schemathesis try a server; it must find nothing."""
    (folder / "schemathesis.toml").write_text(SCHEMATHESIS)
    with process(folder) as (url, token):
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")),
                *("run", f"{url}/v1/openapi.json", "--checks", "all"),
                *("--header", f"Authorization: Bearer {token}", "--no-color"),
                *("--suppress-health-check", "all", *options),
                *("--request-timeout", "60"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(OPERATIONS)} selected / {len(OPERATIONS)} total" in done.stdout
    assert "Authentication failed" not in done.stdout


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    tried(tmp_path, "--phases", "fuzzing", "--max-examples", "4", "--seed", "1")


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_schemathesis_finds_nothing_in_1000_examples_an_operation(
    tmp_path: Path,
) -> None:
    tried(tmp_path, "--max-examples", "1000")


def test_the_document_names_every_operation_and_its_refusals() -> None:
    document = openapi_document(version("toolcell"))

    named = {
        (method.upper(), path, each["operationId"])
        for path, item in document["paths"].items()
        for method, each in item.items()
        if method != "parameters"
    }
    assert document["openapi"] == "3.1.0"
    assert document["security"] == [{"token": []}]
    assert named == {
        (operation.method, operation.path, operation.name) for operation in OPERATIONS
    }
    answers = document["paths"]["/v1/calls"]["post"]["responses"]
    assert answers.keys() == set(
        "200 202 400 401 408 409 413 415 422 429 500 503".split()
    )
