"""What a program may ask of the host by its calls: so much, and no more of its loop."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcell.core.text.json_size import count_values
from toolcell.sandbox import HostCalls, Limits, SandboxManager
from toolcell.sandbox.cell.wire.frames import strict_json
from toolcell.sandbox.client import host_calls
from toolcell.sandbox.client.host_calls import CallServer

pytestmark = pytest.mark.anyio

TRY = """
def attempt(*arguments):
    try:
        return tools.count(*arguments)
    except ToolError as error:
        return error.code
"""


async def count(
    name: str, arguments: list[Any], options: dict[str, Any]
) -> dict[str, Any]:
    return {"value": len(arguments[0])}


@pytest.mark.promise("A11")
async def test_calls_past_the_limit_never_reach_the_host(
    sandbox: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    serve = CallServer.serve

    def seen(self: CallServer, payload: bytes) -> None:
        sizes.append(len(payload))
        serve(self, payload)

    monkeypatch.setattr(CallServer, "serve", seen)
    calls = HostCalls(names=("count",), handler=count, max_calls=3)
    code = f"{TRY}[attempt('x' * 1_000_000) for _ in range(40)]"
    result = await sandbox.run(code, calls=calls)

    assert result.value == [1_000_000] * 3 + ["too_many"] * 37, result.stderr
    assert len(sizes) == 3


@pytest.mark.promise("A11")
async def test_a_call_of_too_many_values_is_answered_unread(
    sandbox: SandboxManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def seen(text: bytes) -> Any:
        read.append(len(text))
        return strict_json(text)

    monkeypatch.setattr("toolcell.sandbox.client.host_calls.strict_json", seen)
    calls = HostCalls(names=("count",), handler=count)
    code = f"""{TRY}
many = [[]] * 100_000, ["x"] * 100_000, [0] * 20_000, "a,b" * 100_000
[attempt(each) for each in many]
"""
    result = await sandbox.run(code, calls=calls)

    assert result.value == ["too_large", "too_large", 20_000, 300_000], result.stderr
    assert len(read) == 2


async def test_the_values_of_all_calls_of_a_run_are_limited(
    sandbox: SandboxManager,
) -> None:
    calls = HostCalls(names=("count",), handler=count, max_calls=12)
    code = f"{TRY}[attempt([0] * 12_000) for _ in range(3)]"
    result = await sandbox.run(code, calls=calls)

    assert result.value == [12_000, 12_000, "too_large"], result.stderr


async def test_refusals_that_nobody_reads_fill_no_memory(
    sandbox: SandboxManager,
) -> None:
    code = """
import os
call = b"%08x%08x{}" % (2, 1)
while True:
    os.write(4, call * 1000)
"""
    calls = HostCalls(names=("count",), handler=count, max_calls=1)
    limits = Limits(wall_seconds=3, memory_mib=128)
    result = await sandbox.run(code, calls=calls, limits=limits)

    assert result.status == "timeout", result.stderr
    assert result.usage.peak_memory_bytes < 64 << 20


@pytest.mark.parametrize(
    ("value", "least"),
    [
        ([], 1),
        ({"a": {"b": [1, 2]}}, 4),
        ([[]] * 50, 51),
        (["a,[{\\", 'say "x,y"', "\\", "é,"], 5),
        ({'k,"': 1, "l": '\\"'}, 3),
    ],
)
def test_values_are_counted_as_they_would_be_read(value: Any, least: int) -> None:
    text = json.dumps(value).encode()

    assert least <= count_values(text, 1_000) <= 2 * least


@pytest.mark.promise("R66")
def test_a_number_counts_as_what_it_takes_to_read_it() -> None:
    limit = 10_000
    for digits in (50, 199, 500, 1_000, 4_300):
        # This many took quadratic time, and were a few values.
        text = b"[" + b",".join([b"9" * digits] * (4_000_000 // digits)) + b"]"
        assert count_values(text, limit) > limit, digits
    assert count_values(b"[" + b"9" * 2_000 + b', "' + b"9" * 10**6 + b'"]', 500) < 500
    assert count_values(b"[" + b",".join([b"9" * 40] * 90) + b"]", 500) == 91


def test_what_is_in_a_text_is_no_value() -> None:
    text = json.dumps({"csv": '1,2,"3"\\\n' * 100_000}).encode()

    assert count_values(text, host_calls.MAX_CALL_VALUES) < 10


def test_as_many_values_as_may_be_are_counted_exactly() -> None:
    text = json.dumps({f"k{i}": "v" for i in range(100)}).encode()

    assert count_values(text, 101) == 101
    assert count_values(text, 100) > 100
