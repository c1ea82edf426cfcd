"""What a program leaves for the host to read: no more than a turn of the loop takes."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.sandbox import SandboxManager
from toolcell.sandbox.cell.wire.contract import MAX_RESULT_VALUES
from toolcell.sandbox.cell.wire.frames import strict_json
from toolcell.sandbox.client.run_report import RunReport
from toolcell.sandbox.spi import OpaqueValue

from ...conftest import SUBPROCESS
from ...support.cells.node_cells import node

pytestmark = pytest.mark.anyio

FINISHED: dict[str, Any] = {
    "wait_status": 0,
    "wall_ms": 1,
    "cpu_ms": 1,
    "peak_memory_bytes": 1,
}


@pytest.mark.parametrize("value", ["[]", "{}", "0", "[" * 99 + "]" * 99])
def test_a_value_of_too_many_values_is_not_read(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr("toolcell.sandbox.client.run_report.strict_json", read.append)
    many = ",".join([value] * (2 * MAX_RESULT_VALUES // len(value) + 20))
    program_report = f'{{"outcome":"ok","value":{{"json":[{many}]}}}}\n'
    report = RunReport(cap=1)
    report.finish(FINISHED, program_report.encode(), ())

    assert (report.program_report, report.forged, read) == (None, True, [])


@pytest.mark.parametrize(
    "code",
    [
        "[1.5] * 50_000",
        f"[0] * {MAX_RESULT_VALUES}",
        f"[[]] * {MAX_RESULT_VALUES // 2}",
        f"{{str(n): n for n in range({MAX_RESULT_VALUES // 4})}}",
    ],
)
async def test_a_value_of_many_values_comes_back(
    sandbox: SandboxManager, code: str
) -> None:
    result = await sandbox.run(code)

    assert result.value == eval(code)
    assert result.warnings == ()


@pytest.mark.parametrize(
    "code",
    [
        f"[0] * {MAX_RESULT_VALUES + 1}",
        f"[[]] * {MAX_RESULT_VALUES // 2 + 1}",
        "[[0]] * 60_000",
    ],
)
async def test_a_value_of_too_many_values_is_described(
    sandbox: SandboxManager, code: str
) -> None:
    result = await sandbox.run(code)

    assert isinstance(result.value, OpaqueValue), result.stderr
    assert result.value.type == "list"
    assert result.value.repr.startswith("[")
    assert (result.status, result.warnings) == ("ok", ())


async def test_a_value_of_too_many_values_of_javascript_is_described() -> None:
    async with SandboxManager(SUBPROCESS.config(node=str(node()))) as manager:
        results = [
            await manager.run(f"Array({count}).fill(0)", language="node")
            for count in (MAX_RESULT_VALUES, MAX_RESULT_VALUES + 1)
        ]

    whole, described = (result.value for result in results)
    assert whole == [0] * MAX_RESULT_VALUES, results[0].stderr
    assert isinstance(described, OpaqueValue)
    assert described.type == "Array"


async def test_a_listing_of_long_names_is_read_in_pieces(
    sandbox: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = 0
    seen: list[int] = []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    def read(text: bytes) -> Any:
        assert len(text) < 100_000
        seen.append(turns)
        return strict_json(text)

    monkeypatch.setattr("toolcell.sandbox.client.workdir.strict_json", read)
    code = "for n in range(2_000): open('x' * 200 + str(n), 'w').close()"
    async with sandbox.session() as session:
        assert (await session.run(code)).ok
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take_turns)
            listed = await session.list_files()
            tasks.cancel_scope.cancel()

    assert len(listed) == 2_000
    assert len(seen) == 20
    # Others had their turns between any two pieces.
    assert len(set(seen)) == 20
