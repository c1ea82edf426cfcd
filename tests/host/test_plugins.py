"""Commands that start without what looks for plugins of pydantic."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from toolcell.host.cli.base.plugins import without_plugins

SCRIPT = """
import sys
from toolcell.host.cli.base.plugins import without_plugins

sys.modules.pop("importlib.metadata", None)
with without_plugins():
    {line}
    loaded = "email.message" in sys.modules
assert sys.modules.get("importlib.metadata") is not taken or loaded
print(type(taken.version("pydantic")).__name__, loaded)
"""


@pytest.mark.parametrize(
    ("line", "used_inside"),
    [
        ("import importlib.metadata as taken", False),
        ("import importlib.metadata; taken = importlib.metadata", False),
        ("import importlib.metadata as taken; taken.entry_points(group='x')", True),
        ("import importlib.metadata as taken; taken.version('pydantic')", True),
        ("from importlib.metadata import version; import importlib.metadata as taken",
         True),
    ],
)  # fmt: skip
def test_metadata_is_the_usual_one_for_whoever_uses_it(
    line: str, used_inside: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(line=line)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (done.stderr, done.stdout) == ("", f"str {used_inside}\n")


@pytest.mark.parametrize("before", [None, "logfire-plugin"])
def test_plugins_are_as_before_afterwards(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "PYDANTIC_DISABLE_PLUGINS"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with without_plugins():
        assert os.environ[name] == "__all__"

    assert os.environ.get(name) == before
