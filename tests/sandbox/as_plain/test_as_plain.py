"""Small programs do in cells what `python3 file.py` does: output, exit code, files."""

from __future__ import annotations

import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.sandbox import Sandbox, SandboxManager

from ...conftest import DOCKER, RUNSC, SUBPROCESS, BackendRow, missing, why_no_docker
from .doors import ARTIFACTS, DOORS, ON_BACKENDS, Case, Door, plainly

pytestmark = pytest.mark.anyio

STDIN = b"first\n\xc3\xa4\r\nlast"
PROGRAMS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("programs.toml").read_text()
)
KINDS = sorted({name.split()[0] for name in PROGRAMS})
# What is left in this folder can be compared.
IN_ARTIFACTS = f"import os; os.makedirs('{ARTIFACTS}/%s'); os.chdir('{ARTIFACTS}/%s')\n"
AT_ONCE = 4


async def differences(
    sandbox: Sandbox, row: BackendRow, door: Door, kind: str, folder: Path
) -> list[Any]:
    """Return the programs of a kind that do not end as by plain Python.

    Of those that end otherwise on purpose it returns the ones that end as by plain
    Python.
    """
    found: list[Any] = []
    at_once = anyio.CapacityLimiter(AT_ONCE)
    different = {**door.different, **ON_BACKENDS.get(row.name, {})}

    async def compare(case: Case, *, differs: bool) -> None:
        async with at_once:
            case.folder.mkdir()
            wanted, got = await plainly(case), await door.run(case)
            if (got != wanted) is not differs:
                found.append((case.name, got, wanted))

    async with sandbox.session() as session, anyio.create_task_group() as tasks:
        for name, program in PROGRAMS.items():
            if name.split()[0] == kind:
                differs = name in different
                name = name.replace(" ", "-")
                begin = IN_ARTIFACTS % (name, name) if kind == "files" else ""
                case = Case(
                    name=name,
                    code=begin + program["code"],
                    stdin=STDIN if door.has_input else b"",
                    sandbox=sandbox,
                    session=session,
                    row=row,
                    folder=folder / name,
                )
                tasks.start_soon(partial(compare, case, differs=differs))
    return found


async def require_this_python(sandbox: Sandbox) -> None:
    """Skip where cells have another Python, whose messages are others."""
    found = await sandbox.run("import sys\nlist(sys.version_info[:2])")
    if found.value != list(sys.version_info[:2]):
        pytest.skip(f"cells have Python {found.value}")


@pytest.mark.promise("QD8")
@pytest.mark.one_backend
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_is_as_plain(
    backend: BackendRow, sandbox: Sandbox, tmp_path: Path, kind: str
) -> None:
    await require_this_python(sandbox)
    assert not await differences(sandbox, backend, DOORS["run"], kind, tmp_path)


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", KINDS)
async def test_a_living_session_is_as_plain(
    backend: BackendRow, sandbox: Sandbox, tmp_path: Path, kind: str
) -> None:
    await require_this_python(sandbox)
    door = DOORS["living session"]
    assert not await differences(sandbox, backend, door, kind, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", ["session", "exec", "CodeExecutor", "run_python"])
async def test_other_doors_are_as_plain(
    backend: BackendRow, sandbox: Sandbox, tmp_path: Path, door: str, kind: str
) -> None:
    await require_this_python(sandbox)
    assert not await differences(sandbox, backend, DOORS[door], kind, tmp_path)


IN_FULL = [pytest.mark.docker, pytest.mark.full]


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(SUBPROCESS, id="subprocess"),
        pytest.param(DOCKER, id="docker", marks=IN_FULL),
        pytest.param(RUNSC, id="runsc", marks=IN_FULL),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_command_is_as_plain(
    row: BackendRow, tmp_path: Path, kind: str
) -> None:
    if row is not SUBPROCESS and (why := why_no_docker(row.options.get("runtime"))):
        missing(why)
    async with SandboxManager(row.config()) as sandbox:
        await require_this_python(sandbox)
        door = DOORS["toolcell run"]
        assert not await differences(sandbox, row, door, kind, tmp_path)
