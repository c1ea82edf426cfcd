"""Secrets reach one run by name, and nothing and nobody else."""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from toolcell.core import CellLostError, InvalidInputError, ToolcellError
from toolcell.sandbox import Limits, SandboxManager
from toolcell.sandbox.programs.program import RunRequest, make_program

from ...conftest import BackendRow, why_no_docker
from ...support.attacks.as_programs import attempt, program

pytestmark = pytest.mark.anyio


@pytest.fixture
def canary() -> str:
    """Return a value that is nowhere else on this machine."""
    return f"canary-{secrets.token_hex(16)}"


ASK = "import os\nos.environ.get('KEY', 'nothing')"


@pytest.mark.promise("P-32")
async def test_a_program_finds_its_secret_by_name(
    sandbox: SandboxManager, canary: str
) -> None:
    result = await sandbox.run(ASK, secrets={"KEY": SecretStr(canary)})

    assert result.value == canary


@pytest.mark.promise("P-32")
async def test_its_children_and_bash_find_it(
    sandbox: SandboxManager, canary: str
) -> None:
    given = {"KEY": SecretStr(canary), "OTHER": SecretStr("\u2603 'quoted' $HOME\n")}
    code = "import subprocess\nsubprocess.getoutput('printf %s \"$KEY$OTHER\"')"
    child = await sandbox.run(code, secrets=given)
    bash = await sandbox.run(
        'printf %s "$word$KEY$OTHER"',
        language="bash",
        inputs={"word": "word "},
        secrets=given,
    )

    assert child.value == f"{canary}\u2603 'quoted' $HOME"
    assert bash.stdout == f"word {canary}\u2603 'quoted' $HOME\n"


@pytest.mark.promise("P-32")
async def test_inputs_are_what_they_were(sandbox: SandboxManager, canary: str) -> None:
    result = await sandbox.run(
        "[x, sorted(n for n in globals() if not n.startswith('__'))]",
        inputs={"x": [1]},
        secrets={"KEY": SecretStr(canary)},
    )

    assert result.value == [[1], ["x"]]


def other_places(name: str) -> dict[str, str]:
    """Return what can be read of the cell but for the program's own variables."""
    import glob
    import os

    files = [
        *glob.glob("/proc/1/*"),
        *glob.glob("/proc/[0-9]*/cmdline"),
        *glob.glob("/proc/[0-9]*/environ"),
        "/proc/mounts",
        *glob.glob("/work/**", recursive=True),
        *glob.glob("/tmp/**", recursive=True),
        *glob.glob("/dev/shm/**", recursive=True),
    ]
    said = {}

    def read(path: str) -> None:
        # Not what never ends, or blocks.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        said[path] = os.read(fd, 1 << 20).decode("latin-1")

    for path in files:
        if not path.endswith(("kmsg", "mem", "pagemap")):
            attempt(lambda p=path: read(p))  # type: ignore[misc]
    said["own"] = os.environ[name]
    return {path: text for path, text in said.items() if os.environ[name] in text}


@pytest.mark.promise("E-70", "P-33")
async def test_no_process_and_no_file_of_the_cell_shows_it(
    sandbox: SandboxManager, canary: str
) -> None:
    result = await sandbox.run(
        program(other_places, attempt),
        inputs={"name": "KEY"},
        secrets={"KEY": SecretStr(canary)},
    )

    assert isinstance(result.value, dict), result.stderr
    assert list(result.value) == ["own"]


LOOK_AGAIN = """
import glob, os
found = dict(os.environ)
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/work/*"):
    try:
        found[path] = open(path, "rb").read().decode("latin-1")
    except OSError:
        pass
found
"""


@pytest.mark.promise("E-70", "E-79", "E-83", "P-33")
@pytest.mark.parametrize("branch", [None, "main"], ids=["fresh", "live"])
async def test_the_next_run_of_the_same_cell_has_nothing(
    backend: BackendRow, canary: str, branch: str | None
) -> None:
    """A cell that is used again is a session's."""
    config = backend.config()
    manager = SandboxManager(config)

    def packed(code: str, given: dict[str, SecretStr] | None = None) -> Any:
        request = RunRequest(code=code, secrets=given)
        return manager._programs.make(request, final=False, branch=branch)

    async with manager, manager._cells.cell(config.limits, None) as cell:
        values = []
        for each in (
            packed(ASK, {"KEY": SecretStr(canary)}),
            packed(LOOK_AGAIN),
            packed(ASK, {"OTHER": SecretStr(canary)}),
            packed(ASK),
        ):
            values.append(cell.result(await cell.run(each), each).value)

    assert values[0] == canary
    assert isinstance(values[1], dict)
    assert canary not in json.dumps(values[1])
    assert "KEY" not in values[1]
    assert values[2:] == ["nothing", "nothing"]


@pytest.mark.promise("E-70", "E-79", "P-33")
async def test_other_runs_have_nothing(backend: BackendRow, canary: str) -> None:
    seen = []

    async def other(manager: SandboxManager) -> None:
        seen.append((await manager.run(LOOK_AGAIN)).value)

    async with SandboxManager(backend.config(pool=2)) as manager:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(other, manager)
            await manager.run(ASK, secrets={"KEY": SecretStr(canary)})
        await other(manager)

    assert len(seen) == 3
    assert canary not in json.dumps(seen)


@pytest.mark.promise("E-38", "E-70", "P-33")
async def test_no_command_line_of_the_host_shows_it(
    backend: BackendRow, canary: str
) -> None:
    """Nor an environment, of any process; nor what the engine says of its cells."""
    shown: list[str] = []

    def look(stream: str, data: bytes) -> None:
        shown.extend(commands_and_environments())
        shown.extend(containers(backend))

    async with SandboxManager(backend.config()) as manager:
        result = await manager.run(
            "print('running', flush=True)\ninput()",
            secrets={"KEY": SecretStr(canary)},
            on_output=look,
        )

    assert result.stdout == "running\n"
    assert any("supervisor" in text or "launcher" in text for text in shown)
    assert [text for text in shown if canary in text] == []


def commands_and_environments() -> Iterator[str]:
    for process in Path("/proc").iterdir():
        # Processes come and go; those of others may be closed to us.
        with suppress(OSError):
            if process.name.isdigit():
                yield (process / "cmdline").read_bytes().decode("latin-1")
                yield (process / "environ").read_bytes().decode("latin-1")


def containers(backend: BackendRow) -> Iterator[str]:
    if backend.options["backend"] != "docker" or why_no_docker(None):
        return
    import docker

    client = docker.from_env()
    for entry in client.api.containers(all=True):
        with suppress(docker.errors.APIError):
            yield json.dumps(client.api.inspect_container(entry["Id"]))
    client.close()


@pytest.mark.promise("E-70", "E-108", "P-33")
@pytest.mark.parametrize(
    "code",
    [
        "1",
        "raise ValueError('its own words')",
        "import os\nos._exit(3)",
        "import os\nos.kill(os.getpid(), 11)",
        "while True: pass",
        "object()",
    ],
)
async def test_results_records_and_logs_do_not_show_it(
    sandbox: SandboxManager, canary: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    limits = Limits(wall_seconds=1)
    result = await sandbox.run(
        code, limits=limits, secrets={"KEY": SecretStr(canary)}, on_output=None
    )

    for text in (repr(result), str(result), json.dumps(result.to_json()), caplog.text):
        assert canary not in text


@pytest.mark.promise("E-70", "E-108", "P-33")
@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("KEY", "{}\0", "NUL"),
        ("KEY", "{}\ud800", "Unicode"),
        ("KEY", "{}" + "x" * 65_536, "65536"),
        ("{}=", "x", "name"),
        ("x" * 257, "{}", "name"),
    ],
)
def test_errors_do_not_repeat_it(canary: str, name: str, value: str, part: str) -> None:
    given = {name.format(canary): SecretStr(value.format(canary))}
    with pytest.raises(InvalidInputError, match=part) as caught:
        packed_with(given)

    assert_silent(caught.value, canary)


def packed_with(given: Any, language: Any = "python", **inputs: Any) -> Any:
    request = RunRequest(code="1", language=language, inputs=inputs, secrets=given)
    return make_program(request, Limits(), restricted=False, final=True)


def assert_silent(error: ToolcellError, canary: str) -> None:
    chain: list[BaseException | None] = [error, error.__cause__, error.__context__]
    for link in chain:
        if link is not None:
            assert canary not in "".join(traceback.format_exception(link))
            assert canary not in repr((vars(link), link.args))


@pytest.mark.promise("P-32")
def test_what_is_no_secret_is_refused(canary: str) -> None:
    with pytest.raises(InvalidInputError, match="SecretStr") as caught:
        packed_with({"KEY": canary})

    assert_silent(caught.value, canary)
    with pytest.raises(InvalidInputError, match="both an input and a secret"):
        packed_with({"KEY": SecretStr(canary)}, "bash", KEY="x")
    with pytest.raises(InvalidInputError, match="process"):
        request = RunRequest(code="1", secrets={"KEY": SecretStr(canary)})
        make_program(request, Limits(), restricted=True, final=True)


@pytest.mark.promise("E-108", "P-33")
def test_a_packed_program_does_not_show_it(canary: str) -> None:
    packed = packed_with({"KEY": SecretStr(canary)}, x=canary)

    assert canary not in repr(packed)
    assert canary in packed.inputs.decode()


@pytest.mark.promise("E-108", "P-33")
async def test_a_lost_cell_does_not_show_it(backend: BackendRow, canary: str) -> None:
    async with SandboxManager(backend.config()) as manager:

        def cut(stream: str, data: bytes) -> None:
            for cell in manager._active:
                cell._channel._sock.shutdown(socket.SHUT_RDWR)

        with pytest.raises(CellLostError) as caught:
            await manager.run(
                "print(1, flush=True)\nwhile True: pass",
                secrets={"KEY": SecretStr(canary)},
                on_output=cut,
            )

    assert_silent(caught.value, canary)
    assert "KEY" not in os.environ
