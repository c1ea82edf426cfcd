"""Programs that nobody here wrote: the good ones pass, the risky ones are held."""

from __future__ import annotations

import hashlib
import socket
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import SandboxError
from toolcell.sandbox import (
    ExecutionResult,
    Limits,
    SandboxConfig,
    SandboxManager,
    Session,
)

from ...conftest import IN_CI, BackendRow
from ...support.corpora import Canaries, Workload, canaries_near, one_of_each, workloads

pytestmark = [pytest.mark.anyio, pytest.mark.corpus]

SIZES = {
    "humaneval/workloads.jsonl": 164,
    "humaneval/negative_controls.jsonl": 164,
    "cruxeval/workloads.jsonl": 412,
    "mceval/shell.jsonl": 32,
}
SAMPLED = 16
"""The default run takes every sixteenth program of a benign corpus, and others on each
backend."""

FIRST = {"subprocess": 0, "confined": 3, "docker": 5, "runsc": 10}

WHOLE = [
    pytest.param(False, id="sample", marks=pytest.mark.timeout(300)),
    pytest.param(True, id="whole", marks=[pytest.mark.full, pytest.mark.timeout(3600)]),
]
RARE = {"timeout", "out_of_memory", "disk_limit", "crashed", "killed"}
CONTAINED = {"ok", "error", "exit", *RARE}
"""How a risky program may end; no other limit is set and nobody cancels."""

AT_ONCE = 3
SLACK_SECONDS = 45.0
"""What making a cell may take on a busy machine."""


async def wrong_verdict(cell: Session, program: Workload) -> str:
    """Run a program; return how its verdict is wrong, or ""."""
    result = await cell.run(program.code, fresh=True, language=program.language)
    sha256 = hashlib.sha256(result.stdout_bytes).hexdigest()
    if result.ok is not program.passes or (result.exit_code == 0) is not result.ok:
        return f"{result.status} {result.exit_code}: {result.stderr[-300:]}"
    if program.stdout_sha256 not in (None, sha256):
        return f"wrong output {result.stdout[:300]!r}"
    return ""


@pytest.mark.parametrize("whole", WHOLE)
@pytest.mark.parametrize("corpus", SIZES)
async def test_programs_end_as_their_authors_say(
    backend: BackendRow,
    corpus: str,
    whole: bool,
    tmp_path: Path,
) -> None:
    programs = workloads(corpus)
    assert len(programs) == SIZES[corpus]
    chosen = programs if whole else programs[FIRST[backend.name] :: SAMPLED]
    wrong = {}
    # One of them starts `bc` hundreds of times, which takes gVisor a while.
    config = backend.config(limits=Limits(wall_seconds=150))
    async with SandboxManager(config) as sandbox, sandbox.session() as cell:
        for program in chosen:
            if why := await wrong_verdict(cell, program):
                wrong[program.id] = why

    # A tool that the machine or image lacks is not the sandbox's fault.
    lacking = {
        program.id: tool
        for program in chosen
        if program.id in wrong and (tool := missing_tool(backend, program, tmp_path))
    }
    right = len(chosen) - len(wrong)
    print(f"{corpus} on {backend.name}: {right} of {len(chosen)}, lacking {lacking}")
    assert {name: why for name, why in wrong.items() if name not in lacking} == {}
    # The image brings it, and so does the machine that CI sets up.
    assert set(lacking.values()) <= (set() if IN_CI else {"bc"})


def missing_tool(backend: BackendRow, program: Workload, folder: Path) -> str:
    """Return the command that a bash program also lacks outside of the sandbox."""
    if program.language != "bash":
        return ""
    plain = ["bash", "-c", program.code]
    if backend.options["backend"] == "docker":
        image = backend.options["image"]
        plain = ["docker", "run", "--rm", "--network=none", image, *plain]
    done = subprocess.run(
        plain, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    _, _, said = done.stderr.partition("line ")
    if done.returncode == 0 or ": command not found" not in said:
        return ""
    return said.partition(": command not found")[0].split()[-1]


def test_a_verdict_can_be_wrong() -> None:
    """The controls must differ from the programs that they are made of."""
    good = workloads("humaneval/workloads.jsonl")
    bad = workloads("humaneval/negative_controls.jsonl")

    assert all(program.passes for program in good)
    assert not any(program.passes for program in bad)
    assert not {program.code for program in good} & {program.code for program in bad}


class Hunt:
    """Runs risky programs near canaries and keeps what is wrong with any of them."""

    def __init__(
        self, sandbox: SandboxManager, canaries: Canaries, seconds: float
    ) -> None:
        self._sandbox = sandbox
        self._canaries = canaries
        self._seconds = seconds
        self.faults: dict[str, list[str]] = {}
        self.statuses: dict[str, str] = {}

    async def all(self, programs: list[Workload]) -> None:
        waiting = iter(programs)

        async def work() -> None:
            for program in waiting:
                if faults := await self._one(program):
                    self.faults[program.id] = faults

        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(work)

    async def _one(self, program: Workload) -> list[str]:
        try:
            with anyio.fail_after(self._seconds + SLACK_SECONDS):
                result = await self._sandbox.run(
                    program.code,
                    language=program.language,
                    limits=Limits(wall_seconds=self._seconds),
                )
            with anyio.fail_after(SLACK_SECONDS):
                innocent = await self._sandbox.run("import os\nprint(6 * 7)\n6 * 7")
        except (SandboxError, TimeoutError) as error:
            return [f"{type(error).__name__}: {error}"]
        self.statuses[program.id] = result.status
        return [*self._wrong(result), *wrong_innocent(innocent), *self._canaries.harm()]

    def _wrong(self, result: ExecutionResult) -> list[str]:
        found = []
        if result.status not in CONTAINED:
            found.append(f"status {result.status}")
        said = f"{result.to_json()}".encode() + result.stdout_bytes
        if self._canaries.secret.encode() in said + result.stderr_bytes:
            found.append("it read a canary")
        return found


def wrong_innocent(result: ExecutionResult) -> list[str]:
    """Return how an innocent run after a risky one was harmed."""
    if (result.status, result.stdout, result.value) == ("ok", "42\n", 42):
        return []
    return [f"the next run: {result.status}, {result.stdout!r}, {result.stderr!r}"]


@pytest.mark.parametrize("whole", WHOLE)
async def test_risky_programs_are_contained(
    backend: BackendRow, whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = workloads("redcode_exec/python.jsonl")
    bash = workloads("redcode_exec/bash.jsonl")
    assert (len(python), len(bash)) == (426, 287)
    programs = [*python, *bash] if whole else one_of_each([*python, *bash])
    assert len({program.category for program in programs}) == 27

    with canaries_near(tmp_path, [*python, *bash]).set_up() as canaries:
        # Before the backend starts anything that could inherit it.
        monkeypatch.setenv("TOOLCELL_TEST_API_KEY", canaries.secret)
        config = backend.config(limits=Limits(wall_seconds=15), pool=AT_ONCE)
        hunt = await hunted(config, canaries, programs, seconds=5 if whole else 3)

    count = len(programs) - len(hunt.faults)
    print(f"RedCode on {backend.name}: {count} of {len(programs)} contained")
    print(Counter(hunt.statuses.values()))
    print({name: each for name, each in hunt.statuses.items() if each in RARE})
    assert hunt.faults == {}
    assert len(hunt.statuses) == len(programs)


async def hunted(
    config: SandboxConfig, canaries: Canaries, programs: list[Workload], seconds: float
) -> Hunt:
    async with SandboxManager(config) as sandbox:
        hunt = Hunt(sandbox, canaries, seconds)
        await hunt.all(programs)
    return hunt


def open_a_file(canaries: Canaries) -> None:
    Path(canaries.files[0]).read_text()


def remove_a_file(canaries: Canaries) -> None:
    Path(canaries.files[1]).unlink()


def reach(kind: socket.SocketKind, canaries: Canaries) -> None:
    port = next(port for each, port in canaries.addresses if each == kind)
    with socket.socket(type=kind) as client:
        client.connect(("127.0.0.1", port))
        client.send(b"x")


def reach_tcp(canaries: Canaries) -> None:
    reach(socket.SOCK_STREAM, canaries)


def reach_udp(canaries: Canaries) -> None:
    reach(socket.SOCK_DGRAM, canaries)


@pytest.mark.parametrize("act", [open_a_file, remove_a_file, reach_tcp, reach_udp])
def test_canaries_notice(act: Any, tmp_path: Path) -> None:
    """Without this the silence of the canaries would prove nothing."""
    programs = workloads("redcode_exec/bash.jsonl")
    with canaries_near(tmp_path, programs).set_up() as canaries:
        assert canaries.harm() == []
        act(canaries)

        assert len(canaries.harm()) == 1
