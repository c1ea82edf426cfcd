"""Runs the official MCP scenarios and the inspector: see tests/conformance/run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...support.cells.npm_programs import NotInstalledError, node, node_folder
from ...support.toolcell_command import TOOLCELL

HERE = Path(__file__).parent
HOST = (HERE / "toolcell.toml", HERE / "scenario_tools.py")
SERVER = HERE / "scenario_server.py"
EXPECTED = HERE / "expected_failures.yml"
CLIENT = Path(__file__).with_name("client.py")
CLIENT_SCENARIOS = (
    "initialize",
    "tools_call",
    "sse-retry",
    "elicitation-sep1034-client-defaults",
    "auth/basic-cimd",
)
TIMED, TRIES = "sse-retry", 5
"""This one fails a client that is half a second late, as on a busy machine."""

SCENARIO_SECONDS = 120
PATIENT_MS = "120000"
"""The inspector's own 15 s are too few for a host that starts on a busy machine."""

EXIT_NOT_INSTALLED = 77
"""As test suites say that they cannot run here."""

_TOTAL = re.compile(r"^(?:Total|Passed): (\d+)", re.M)
_EXPECTED = re.compile(r"^  ~ ", re.M)
_IS_ERROR = 5


@dataclass
class Count:
    """What came of all of it."""

    passed: int = 0
    expected: int = 0
    problems: list[str] = field(default_factory=list)

    def scenarios(self, name: str, done: subprocess.CompletedProcess[str]) -> None:
        """Take in scenarios, which judged itself by the list of expected failures."""
        told = done.stdout + done.stderr
        total = _TOTAL.search(told)
        self.passed += int(total[1]) if total else 0
        self.expected += len(_EXPECTED.findall(told))
        if done.returncode != 0 or total is None:
            print(told[-20_000:])
            self.problems.append(name)

    def check(self, name: str, *, holds: bool) -> None:
        """Take in one look of the inspector."""
        if holds:
            self.passed += 1
        else:
            self.problems.append(name)


def table_of_server(*, in_cell: bool) -> str:
    """Return the table of the MCP server whose offers the host passes on."""
    if not in_cell:
        command, args, more = sys.executable, [str(SERVER)], 'where = "host"'
    else:
        command, args = "python3", ["-c", SERVER.read_text()]
        more = f'cell = {{ packages = ["mcp=={version("mcp")}"] }}'
    return (
        f"[tools.mcp.scenarios]\ncommand = {json.dumps(command)}\n"
        f"args = {json.dumps(args)}\nstartup_seconds = 120\n{more}\n"
    )


@contextmanager
def configured(*, in_cell: bool) -> Iterator[Path]:
    """Yield the configuration of a host whose MCP server's offers are approved."""
    with tempfile.TemporaryDirectory() as name:
        for each in HOST:
            shutil.copy(each, name)
        config = Path(name, "toolcell.toml")
        with config.open("a") as file:
            file.write("\n" + table_of_server(in_cell=in_cell))
        pin = [TOOLCELL, "tools", "pin", "--yes", "--config", str(config)]
        subprocess.run(pin, stdout=subprocess.DEVNULL, check=True)
        yield config


@contextmanager
def served(config: Path) -> Iterator[str]:
    """Serve a host over HTTP; yields its URL."""
    command = [TOOLCELL, "serve", "--http", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        [*command, "--config", str(config)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield str(json.loads(server.stdout.readline())["url"])
        finally:
            server.terminate()


class Programs:
    """The installed runner and inspector.

    Args:
        config: The configuration of the host that the inspector starts.
        modules: The `node_modules` that holds them.
    """

    def __init__(self, config: Path, modules: Path) -> None:
        self._config = str(config)
        self._node = node(modules)
        self._bin = modules / ".bin"
        path = f"{Path(self._node).parent}:{os.environ.get('PATH', '')}"
        self._env = {**os.environ, "PATH": path, "NO_COLOR": "1"}

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._node, str(self._bin / name), *arguments]
        return subprocess.run(
            command,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )

    def scenarios(self, side: str, *arguments: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return self.run(
                "conformance",
                side,
                *("--expected-failures", str(EXPECTED), "-o", folder),
                *arguments,
            )

    def inspect(
        self, *arguments: str, url: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the exit code and what the inspector's command line printed."""
        where = ("--transport", "http", "--server-url", str(url)) if url else ()
        command = () if url else ("--", TOOLCELL, "serve", "--config", self._config)
        fixed = ("--cli", "--format", "json", "-q", "--connect-timeout", PATIENT_MS)
        done = self.run("mcp-inspector", *fixed, *where, *arguments, *command)
        try:
            told: dict[str, Any] = json.loads(done.stdout)["result"]
        except (KeyError, ValueError):
            print(done.stdout, done.stderr)
            told = {}
        return done.returncode, told


def look(programs: Programs, count: Count, **where: str) -> None:
    """Look at the host with the inspector, over one transport."""
    name = "HTTP" if where else "stdio"
    code, told = programs.inspect("--method", "tools/list", **where)
    names = {tool["name"] for tool in told.get("tools", [])}
    count.check(f"{name} tools/list", holds=code == 0 and "test_simple_text" in names)
    # A tool of an output schema that refuses its arguments is an error like others.
    refused = ("test_simple_text", "--tool-arg", "none=such")
    for tool, wanted, kinds in (
        (("test_simple_text",), 0, ["text"]),
        (("test_image_content",), 0, ["image"]),
        (("test_error_handling",), _IS_ERROR, ["text"]),
        (refused, _IS_ERROR, ["text"]),
    ):
        code, told = programs.inspect(
            *("--method", "tools/call", "--tool-name", *tool), **where
        )
        found = [each["type"] for each in told.get("content", [])]
        holds = (code, found) == (wanted, kinds)
        count.check(f"{name} {tool}: {code} {found}", holds=holds)


def main(*options: str) -> int:
    in_cell = "--in-cell" in options
    try:
        modules = node_folder()
    except NotInstalledError as error:
        print(error)
        return EXIT_NOT_INSTALLED
    with configured(in_cell=in_cell) as config:
        programs = Programs(config, modules)
        count = Count()
        judge_server(programs, count, config)
        if not in_cell:
            inspect_server(programs, count, config)
    if not in_cell:
        judge_client(programs, count)
    for problem in count.problems:
        print("unexpected:", problem)
    print(
        f"{count.passed} checks passed, {count.expected} scenarios failed as listed,"
        f" {len(count.problems)} unexpected"
    )
    return 1 if count.problems else 0


def judge_server(programs: Programs, count: Count, config: Path) -> None:
    """Run the scenarios for servers."""
    with served(config) as url:
        all_of_them = ("--suite", "all", "--url", url)
        count.scenarios("server", programs.scenarios("server", *all_of_them))


def inspect_server(programs: Programs, count: Count, config: Path) -> None:
    """Look at the host with the inspector."""
    with served(config) as url:
        look(programs, count, url=url)
        modern = ("--protocol-era", "modern", "--method", "tools/list")
        code, told = programs.inspect(*modern, url=url)
        count.check("HTTP of 2026", holds=code == 0 and bool(told.get("tools")))
        code, _ = programs.inspect("--strict", "--method", "tools/list", url=url)
        count.check("portable schemas", holds=code == 0)
    look(programs, count)


def judge_client(programs: Programs, count: Count) -> None:
    """Run the scenarios for clients."""
    client = shlex.join([sys.executable, str(CLIENT)])
    seconds = ("--timeout", str(SCENARIO_SECONDS * 1000))
    for name in CLIENT_SCENARIOS:
        which = ("--scenario", name, "--command", client, *seconds)
        for _ in range(TRIES if name == TIMED else 1):
            done = programs.scenarios("client", *which)
            if done.returncode == 0:
                break
        count.scenarios(name, done)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
