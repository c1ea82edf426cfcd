"""The ways in which a caller has a program run, each with the same end of it."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio

from toolcell.core import ToolCall
from toolcell.host.terminal.exit_codes import EXIT_COULD_NOT_RUN
from toolcell.sandbox import ExecutionResult, Sandbox, SandboxSession
from toolcell.tools import CodeExecutor, ConcurrentExecutor, ToolRegistry
from toolcell.tools.builtin import code_tools

from ...conftest import BackendRow
from ...support.toolcell_command import options_of, toolcell

ARTIFACTS = "artifacts"


class Case(NamedTuple):
    """A program, and where it is to run."""

    name: str
    code: str
    stdin: bytes
    sandbox: Sandbox
    session: SandboxSession
    """One for all programs, in a cell of that sandbox."""

    row: BackendRow
    folder: Path
    """A new one of this machine."""


class End(NamedTuple):
    """What a program leaves: the last line of standard error, and sizes of files."""

    stdout: bytes
    error: bytes
    code: int
    """As a shell tells it: 128 and the number of the signal that ended it."""

    files: dict[str, int]


def end_of(result: ExecutionResult, files: dict[str, int] | None = None) -> End:
    if files is None:
        files = {artifact.name: artifact.size for artifact in result.artifacts}
    code = result.exit_code
    if code is None:
        code = 128 + signal.Signals[result.signal or ""]
    return End(result.stdout_bytes, last_line(result.stderr_bytes), code, files)


def last_line(stderr: bytes) -> bytes:
    lines = stderr.strip().splitlines()
    return lines[-1].strip() if lines else b""


def files_below(folder: Path) -> dict[str, int]:
    """Return the size of each file by its path."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {each.relative_to(folder).as_posix(): each.stat().st_size for each in found}


_PLAIN: dict[tuple[str, bytes], End] = {}
"""How programs ended by plain Python, by their names and standard inputs."""


async def plainly(case: Case) -> End:
    key = case.name, case.stdin
    if key not in _PLAIN:
        command = [sys.executable, "main.py"]
        _PLAIN[key] = await plain_end(command, case.code, case.stdin, case.folder)
    return _PLAIN[key]


async def plain_end(command: list[str], code: str, stdin: bytes, folder: Path) -> End:
    """Return how a program ends on this machine.

    Args:
        command: Its interpreter, and the name of its file.
        code: Its text.
        stdin: Its standard input.
        folder: An empty folder.
    """
    work = folder / "plain"
    work.mkdir()
    (work / command[-1]).write_text(code)
    (folder / "stdin").write_bytes(stdin)
    user = pwd.getpwuid(os.getuid()).pw_name
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "LOGNAME": user}
    with (folder / "stdin").open("rb") as file:
        done = await anyio.run_process(
            command, stdin=file, cwd=work, env=env, check=False
        )
    exit_code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    files = files_below(work / ARTIFACTS)
    return End(done.stdout, last_line(done.stderr), exit_code, files)


async def by_run(case: Case) -> End:
    return end_of(await case.sandbox.run(case.code, stdin=case.stdin))


async def by_session(case: Case) -> End:
    return end_in_session(case, await case.session.run(case.code, fresh=True))


def end_in_session(case: Case, result: ExecutionResult) -> End:
    files = {artifact.name: artifact.size for artifact in result.artifacts}
    own = {name: size for name, size in files.items() if name.startswith(case.name)}
    return end_of(result, own)


async def by_living_session(case: Case) -> End:
    """Its interpreter lives on, with all that the program left."""
    context = await case.session.context()
    try:
        return end_in_session(case, await context.run(case.code))
    finally:
        await context.aclose()


async def by_exec(case: Case) -> End:
    folder = f"exec/{case.name}"
    await case.session.write_file(f"{folder}/main.py", case.code)
    command = ["python3", "main.py"]
    process = await case.session.exec(command, stdin=case.stdin, cwd=folder)
    end, below = end_of(await process.wait()), f"{folder}/{ARTIFACTS}/"
    found = [file for file in await case.session.list_files() if file.kind == "file"]
    files = {each.path: each.size for each in found if each.path.startswith(below)}
    return end._replace(files={at.removeprefix(below): files[at] for at in files})


async def by_code_executor(case: Case) -> End:
    executor = CodeExecutor(case.sandbox, ToolRegistry([]), guard=None)
    return end_of(await executor.execute(case.code))


async def by_run_python(case: Case) -> End:
    registry = ToolRegistry(code_tools(case.sandbox))
    executor = ConcurrentExecutor(registry, guard=None)
    call = ToolCall(id="1", name="run_python", arguments={"code": case.code})
    facts: Any = (await executor.call(call)).content
    files = {
        artifact["name"]: artifact["bytes"] for artifact in facts.get("artifacts", [])
    }
    stdout, stderr = facts["stdout"].encode(), facts["stderr"].encode()
    return End(stdout, last_line(stderr), facts["exit_code"], files)


async def by_command(case: Case) -> End:
    file, out = case.folder / "main.py", case.folder / "out"
    file.write_text(case.code)
    arguments = [str(file), "--stdin", "--out", str(out), *options_of(case.row)]
    run = partial(toolcell, "run", *arguments, stdin=case.stdin)
    done = await anyio.to_thread.run_sync(run)
    # Its own words say why; no program of ours ends so.
    assert done.returncode != EXIT_COULD_NOT_RUN, done.stderr
    # A line of the command's own follows a program's last one, though it did not end.
    parts = [line.partition(b"toolcell: ") for line in done.stderr.splitlines()]
    told = [before for before, ours, _ in parts if before or not ours]
    error = last_line(b"\n".join(told))
    return End(done.stdout, error, done.returncode, files_below(out))


class Door(NamedTuple):
    """A way to have a program run."""

    run: Callable[[Case], Awaitable[End]]
    has_input: bool = True
    """True if it takes a standard input; else that is empty."""

    different: Mapping[str, str] = MappingProxyType({})
    """What differs on purpose by the name of the program, and why."""


# As docs/languages.md says.
UTF_8 = {"sees 18": "cells are in UTF-8 mode"}
OWN_FILE = {"sees 1": "the files of a session's runs are numbered"}
LIVES_ON = dict.fromkeys(
    (
        *(f"ends {number}" for number in (0, 1, 2, 3, 4, 6, 7)),
        *(f"files {number}" for number in (0, 2, 3, 4, 6, 11, 14, 16, 17)),
        *("hooks 2", "raises 23", "raises 24"),
        *("spoils 4", "spoils 12", "spoils 17"),
    ),
    "buffers, threads, exit handlers and tracers go on with the interpreter",
)
IS_CELL = {
    "raises 4": "the cell of a notebook may be indented",
    "raises 21": "the cell of a notebook may wait",
}
OWN_CHANNEL = {
    "files 15": "the session's own descriptors are closed, too, so it ends",
    "spoils 9": "the session's own descriptors are closed, too, so it ends",
}
NO_BYTECODE = {"sees 6": "python3 writes no bytecode"}
FOR_MODELS = {
    "dies 0": "the status tells of a signal, and there is no exit code",
    "dies 1": "the status tells of a signal, and there is no exit code",
    "output 2": "a model reads text",
    "output 20": "a model reads text",
    "output 21": "what a carriage return overwrites is left out",
}
DOORS = {
    "run": Door(by_run, different=UTF_8),
    "session": Door(by_session, has_input=False, different={**UTF_8, **OWN_FILE}),
    "living session": Door(
        by_living_session,
        has_input=False,
        different={**UTF_8, **OWN_FILE, **LIVES_ON, **IS_CELL, **OWN_CHANNEL},
    ),
    "exec": Door(by_exec, different=NO_BYTECODE),
    "CodeExecutor": Door(by_code_executor, has_input=False, different=UTF_8),
    "run_python": Door(
        by_run_python, has_input=False, different={**UTF_8, **FOR_MODELS}
    ),
    "toolcell run": Door(by_command, different=UTF_8),
}
ON_BACKENDS = {
    "confined": {
        "machine 3": "users have the names that this machine gives them",
        "machine 11": "it shares the machine's loopback, so it has no UDP",
    }
}
"""What differs on purpose by the row of the backend, whatever the door is."""
