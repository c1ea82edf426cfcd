"""Many clients at once over HTTP: no error, and nothing left behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ...conftest import BackendRow
from ...support.cells.leak_check import Held, at_rest, resident_mib
from ...support.mcp.served_hosts import (
    LEGACY,
    MODERN,
    SUM,
    WITH_CODE,
    http_client,
    http_process,
    make_token,
    said,
    written,
)

pytestmark = pytest.mark.anyio

CODE_EACH = 10
"""One call in so many runs a program."""

CLIENTS, CALLS, ROUNDS = 64, 50, 4
"""The first round warms up; the others make 9,600 calls, with it 12,800."""

Times = dict[str, list[float]]
"""Seconds of each call, by tool."""


async def client_of_load(
    url: str, secret: str, number: int, calls: int, times: Times
) -> None:
    """Make calls one after the other, some of them programs."""
    mode = LEGACY if number % 2 else MODERN
    async with http_client(url, secret, mode=mode) as client:
        for turn in range(calls):
            name, arguments = "calculate", SUM
            if turn % CODE_EACH == number % CODE_EACH:
                name = "run_python"
                arguments = {"code": f"print({number} * 1000 + {turn})"}
            began = time.perf_counter()
            told = said(await client.call_tool(name, arguments))
            times[name].append(time.perf_counter() - began)
            if name == "run_python":
                assert told["stdout"] == f"{number * 1000 + turn}\n", told
            else:
                assert told == {"result": 42}


async def load(url: str, secret: str, clients: int, calls: int) -> Times:
    times: Times = {"calculate": [], "run_python": []}
    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(client_of_load, url, secret, number, calls, times)
    return times


def quantiles(times: Times) -> dict[str, dict[str, float]]:
    """Return p50 and p95 in milliseconds."""
    told = {}
    for name, seconds in times.items():
        ordered = sorted(seconds)
        told[name] = {
            f"p{percent}": round(ordered[len(ordered) * percent // 100] * 1000, 1)
            for percent in (50, 95)
        }
    return told


def busy_config(folder: Path, **sandbox: str) -> Path:
    sessions = "max_sessions = 31\nmax_concurrency = 8\n"
    text = WITH_CODE.replace("[tools]\n", f"[tools]\n{sessions}")
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in sandbox.items())
    return written(folder, text.replace('backend = "subprocess"', lines))


@contextmanager
def engine_of(backend: BackendRow) -> Iterator[Any]:
    """Return what counts containers; None where cells are none."""
    if backend.options["backend"] != "docker":
        yield None
        return
    import docker

    client = docker.from_env()
    yield client.api
    client.close()


async def test_clients_at_once_leave_nothing_behind(tmp_path: Path) -> None:
    path = busy_config(tmp_path, backend="subprocess")
    secret = make_token(tmp_path)
    with http_process(path) as (url, process):
        held: list[Held] = []
        # Some of what stays open is first needed in a later round; a leak always grows.
        while held[-1:] != held[-2:-1] or not held:
            await load(url, secret, 4, CODE_EACH)
            held.append(await at_rest(process.pid, seconds=120))
            assert len(held) < 8, held
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait) == 0
        output: Any = process.communicate()

    assert held[-1].processes > 0
    assert output == (b"", b"")


@pytest.mark.full
@pytest.mark.timeout(3_600)
async def test_64_clients_make_50_calls_each(
    tmp_path: Path, backend: BackendRow
) -> None:
    path = busy_config(tmp_path, **backend.options)
    secret = make_token(tmp_path)
    with engine_of(backend) as engine, http_process(path) as (url, process):
        told: list[Any] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            times = await load(url, secret, CLIENTS, CALLS)
            seconds = time.perf_counter() - began
            # What clients without sessions share may have been driven out.
            await load(url, secret, 1, CODE_EACH)
            rest = await at_rest(process.pid, engine)
            told.append((rest, resident_mib(process.pid)))
            per_second = round(CLIENTS * CALLS / seconds)
            print(
                f"\n{backend.name}: {CLIENTS} clients x {CALLS} calls,"
                f" {per_second} calls/s, {json.dumps(quantiles(times))} ms,"
                f" {told[-1][1]:.0f} MiB, {rest._asdict()}",
                end="",
            )
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait) == 0
        output: Any = process.communicate()

    (first, memory), *others = told
    assert [rest for rest, _ in others] == [first] * (ROUNDS - 1)
    assert others[-1][1] <= memory * 1.1
    assert output == (b"", b"")
