"""Sessions over REST: each agent's own, with what they use."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import anyio
import pytest

from .served_rest import Service, served

pytestmark = pytest.mark.anyio
SANDBOX = '[sandbox]\nbackend = "subprocess"'
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAA"
    "SUVORK5CYII="
)
WORK = """
import time
until = time.process_time() + 0.3
while time.process_time() < until:
    pass
block = b"x" * 50_000_000
open("file", "wb").write(bytes(5_000_000))
"""


def run(code: str) -> dict[str, Any]:
    return {"tool": "run_python", "arguments": {"code": code}}


async def sessions(service: Service, name: str, **query: Any) -> list[dict[str, Any]]:
    answer = await service.get("/v1/sessions", name, **query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["sessions"]
    return found


async def measured(service: Service, name: str) -> dict[str, Any]:
    """Return the one session of an agent, once its usage is measured in time."""
    with anyio.fail_after(60):
        while True:
            [found] = await sessions(service, name)
            if found["usage"]:
                return found


async def test_an_agent_sees_what_its_sessions_use(tmp_path: Path) -> None:
    async with served(tmp_path, SANDBOX, '"code"') as service:
        assert await sessions(service, "a") == []
        await service.post("/v1/calls", run("x = 1"))
        before = await measured(service, "a")
        await service.post("/v1/calls", run(WORK))
        after = await measured(service, "a")
        await service.post("/v1/calls", run("1"), "b")
        everybody = await sessions(service, "operator", agent="*")
        own = await sessions(service, "a")
        others = await service.get("/v1/sessions", "a", agent="b")

    assert (before["agent_id"], before["calls"], before["programs"]) == ("a", 0, 1)
    assert after["usage"]["cpu_ms"] - before["usage"]["cpu_ms"] > 250
    assert after["usage"]["memory_bytes"] - before["usage"]["memory_bytes"] > 40_000_000
    assert 5_000_000 <= after["usage"]["disk_bytes"] < 6_000_000
    assert after["opened_at"] == before["opened_at"]
    assert [each["agent_id"] for each in everybody] == ["a", "b"]
    assert everybody[1]["usage"]["disk_bytes"] == 0
    assert [each["agent_id"] for each in own] == ["a"]
    assert others.status_code == 403


@pytest.mark.promise("JA9")
async def test_a_file_comes_in_and_a_picture_goes_out(tmp_path: Path) -> None:
    """The tools of the group `files` carry texts into and out of the session."""
    sheet = {"path": "sales.csv", "text": "tea\n12\n30\n"}
    code = (
        "from IPython.display import Image, display\n"
        "total = sum(map(int, open('sales.csv').read().split()[1:]))\n"
        f"display(Image({PNG!r}))\nopen('total', 'w').write(str(total))"
    )
    async with served(tmp_path, SANDBOX, '"code", "files"') as service:
        body = {"tool": "write_file", "arguments": sheet}
        await service.post("/v1/calls", body, "b")
        drawn = await service.post("/v1/calls", run(code), "b")
        body = {"tool": "read_file", "arguments": {"path": "total"}}
        read = await service.post("/v1/calls", body, "b")

    [picture] = drawn.json()["result"]["parts"]
    assert base64.b64decode(picture["data"]) == PNG
    assert read.json()["result"]["content"]["text"] == "42"


@pytest.mark.promise("JF3")
async def test_a_missing_module_is_named(tmp_path: Path) -> None:
    async with served(tmp_path, SANDBOX, '"code"') as service:
        answer = await service.post("/v1/calls", run("import not_here"))

    [warning] = answer.json()["result"]["content"]["warnings"]
    assert "module 'not_here' is missing" in warning


async def test_usage_is_told_while_a_program_runs_and_harms_it_not(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, SANDBOX, '"code"') as service:
        first = {**run("import time; time.sleep(600)"), "id": "one"}
        await service.post("/v1/calls", first, wait=0)
        with anyio.fail_after(60):
            while not [
                session for session in await sessions(service, "a") if session["usage"]
            ]:
                await anyio.sleep(0.01)
        assert (await service.get("/v1/calls/one", wait=0)).json()["state"] == "running"
        await service.post("/v1/calls/one/cancel")

        await service.post("/v1/calls", run("kept = 42"))
        await sessions(service, "a")
        busy = {**run("import time\nwhile True: pass"), "id": "two"}
        await service.post("/v1/calls", busy, wait=0)
        with anyio.fail_after(60):
            earlier = 0.0
            while True:
                [found] = await sessions(service, "a")
                if found["calls"] == 1 and earlier:
                    if found["usage"]["cpu_ms"] > earlier + 200:
                        break
                earlier = earlier or found["usage"]["cpu_ms"]


async def test_without_sessions_there_are_none(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        assert await sessions(service, "operator", agent="*") == []
