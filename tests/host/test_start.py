"""Commands start with what they need: a fixed list of modules that they do not import.

Times are in benchmarks (`command-line`); a module that comes back is found here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from toolcell.host import main
out, sys.argv = sys.argv[1], ["toolcell", *sys.argv[2:]]
try:
    main()
except SystemExit as ended:
    code = ended.code
with open(out, "w") as file:
    json.dump([code or 0, sorted(sys.modules)], file)
"""
ANNOTATIONS = """
import os, sys
from collections import Counter
read = Counter()

def heard(event, arguments):
    if event != "compile" or arguments[1] != "<string>":
        return
    frame = sys._getframe(1)
    while frame.f_globals["__name__"].partition(".")[0] in ("typing", "pydantic"):
        frame = frame.f_back
    read[frame.f_globals["__name__"]] += 1

sys.addaudithook(heard)
from toolcell.host import main
sys.argv = ["toolcell", "run", "hello.py", "--backend", "subprocess"]
try:
    main()
finally:
    own = {name: n for name, n in read.items() if name.startswith("toolcell.")}
    print(own, file=sys.stderr)
    os._exit(sum(own.values()))
"""
"""Ends with the number of annotations that typing or pydantic read as texts."""

SERVICES = {
    *("docker", "requests", "urllib3", "mcp", "redis", "sqlite3", "yaml", "trio"),
    *("griffe", "jsonschema", "opentelemetry", "h11", "cloudpickle"),
    *("RestrictedPython", "rich", "pygments", "markdown_it"),
    *("toolcell.guard", "toolcell.tools", "toolcell.flow"),
}
"""What other commands need."""

PLUGINS = {"importlib.metadata", "email.message", "zipfile", "csv"}
"""What looks for plugins of pydantic."""

CELLS = {"pydantic", "anyio", "asyncio", "toolcell.sandbox", "toolcell.core.messages"}
"""What only commands with a cell need, or a typed error."""

UNUSED = {
    *(
        "toolcell.core.protocols",
        "toolcell.sandbox.admin",
        "toolcell.sandbox.runs.batch",
    ),
    *("toolcell.sandbox.backends.docker", "toolcell.sandbox.backends.restricted"),
    *("toolcell.sandbox.network.egress", "toolcell.sandbox.packages.layer_store"),
    *("toolcell.sandbox.sessions", "toolcell.sandbox.results.events"),
    *("toolcell.sandbox.programs.function_program", "toolcell.sandbox.processes"),
}
"""Parts of the sandbox that a plain run does not use."""


def imported(folder: Path, *arguments: str) -> set[str]:
    """Return the modules that a command has imported when it ends."""
    found = folder / "modules.json"
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(found), *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=200,
    )
    code, modules = json.loads(found.read_text())
    assert code == 0
    return set(modules)


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_is_only_told_needs_no_sandbox(tmp_path: Path, option: str) -> None:
    modules = imported(tmp_path, option)

    assert modules & {*SERVICES, *CELLS, "typer.rich_utils"} == set()


def test_a_version_needs_no_command(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--version")

    own = {name for name in modules if name.startswith("toolcell.host.cli.")}
    parts = ("main", "base", "base.head_start", "commands")
    assert own == {f"toolcell.host.cli.{part}" for part in parts}


def test_a_run_needs_its_backend_alone(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print(1)")

    modules = imported(tmp_path, "run", "hello.py", "--backend", "subprocess")

    assert modules & {*SERVICES, *UNUSED, *PLUGINS} == set()
    assert modules >= {"toolcell.sandbox.manager", "asyncio"}


def test_a_run_reads_few_annotations_of_texts(tmp_path: Path) -> None:
    """Each takes 20 µs: models and tuples of a start have none, or it was 180."""
    (tmp_path / "hello.py").write_text("print(1)")

    process = subprocess.run(
        [sys.executable, "-c", ANNOTATIONS],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert process.stdout == "1\n"
    # Two of pydantic's own for each model are among them.
    assert process.returncode <= 46, process.stderr
