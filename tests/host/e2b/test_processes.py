"""The service of processes: streams, input, signals, terminals."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from .served_sandboxes import Sandbox, envelope, envelopes, served

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def started(
    sandbox: Sandbox, events: list[Any], **message: Any
) -> AsyncIterator[int]:
    """Start a command, and yield its pid; its events are there afterwards."""

    async def run() -> None:
        events.extend(await sandbox.events("process.Process/Start", **message))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(60):
            while not (
                found := (await sandbox.unary("process.Process/List")).json()[
                    "processes"
                ]
            ):
                await anyio.sleep(0.01)
        yield found[0]["pid"]


def said(events: list[Any], name: str = "stdout") -> bytes:
    data = [event["event"].get("data", {}) for event in events if "event" in event]
    return b"".join(b64decode(each.get(name, "")) for each in data)


async def test_a_command_is_streamed_to_its_end(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(envVars={"FOO": "bar"})
        output, (end, last) = await sandbox.command("echo $FOO; pwd; exit 3")

    assert output == b"bar\n/home/user\n"
    assert end["event"]["end"] == {
        "exitCode": 3,
        "exited": True,
        "status": "exit status 3",
        "error": "exit status 3",
    }
    assert last == {}


async def test_input_reaches_a_command_three_ways(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        events: list[Any] = []
        config = {"cmd": "cat"}
        async with started(sandbox, events, process=config, stdin=True) as pid:
            process = {"pid": pid}
            one = {"stdin": b64encode(b"one ").decode()}
            await sandbox.unary("process.Process/SendInput", process=process, input=one)
            two = {"stdin": b64encode(b"two").decode()}
            stream = envelope({"start": {"process": process}})
            stream += envelope({"keepalive": {}}) + envelope({"data": {"input": two}})
            answer = await service.http.post(
                "/process.Process/StreamInput", content=stream, headers=sandbox.headers
            )
            await sandbox.unary("process.Process/CloseStdin", process=process)

    assert answer.status_code == 200
    assert said(events) == b"one two"
    assert events[-2]["event"]["end"]["exited"] is True


@pytest.mark.promise("S14")
async def test_terminals_are_resized_and_signals_end_commands(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        events: list[Any] = []
        config = {"cmd": "bash", "args": ["-c", "read -r x; stty size; sleep 60"]}
        size = {"size": {"rows": 10, "cols": 20}}
        async with started(
            sandbox, events, process=config, pty=size, tag="shell"
        ) as pid:
            await sandbox.unary(
                "process.Process/Update",
                process={"pid": pid},
                pty={"size": {"rows": 30, "cols": 40}},
            )
            key = {"pty": b64encode(b"\n").decode()}
            await sandbox.unary(
                "process.Process/SendInput", process={"tag": "shell"}, input=key
            )
            watched = await _until(sandbox, pid, b"30 40")
            signal = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
            await sandbox.unary("process.Process/SendSignal", **signal)
            left = (await sandbox.unary("process.Process/List")).json()["processes"]

    assert watched
    assert left == []
    assert b"30 40" in said(events, "pty")
    assert events[-2]["event"]["end"]["exitCode"] == -1


async def _until(sandbox: Sandbox, pid: int, wanted: bytes) -> bool:
    """Attach to a command until it has said something."""
    async with sandbox.http.stream(
        "POST",
        "/process.Process/Connect",
        content=envelope({"process": {"pid": pid}}),
        headers=sandbox.headers,
    ) as answer:
        heard = b""
        async for piece in answer.aiter_bytes():
            heard += piece
            if wanted in said(envelopes(heard), "pty"):
                return True
    return False


async def test_a_command_ends_at_the_time_limit_of_its_client(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        config = {"cmd": "sleep", "args": ["60"]}
        events = await sandbox.events(
            "process.Process/Start", timeout_ms=200, process=config
        )

    assert events[-1]["error"]["code"] == "deadline_exceeded"


async def test_what_is_not_there_is_told_by_a_code(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        signal = {"process": {"pid": 4242}, "signal": "SIGNAL_SIGKILL"}
        unknown = await sandbox.unary("process.Process/SendSignal", **signal)
        events = await sandbox.events(
            "process.Process/Start", process={"cmd": "no-such-program"}
        )
        broken = await service.http.post(
            "/process.Process/Start", content=b"\1\2", headers=sandbox.headers
        )

    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    assert events[-1]["error"]["code"] == "not_found"
    assert b"invalid_argument" in broken.content


@pytest.mark.promise("S11", "S16")
@pytest.mark.parametrize(
    ("user", "status"), [(b"user:", 200), (b":", 200), (b"root:", 401), (b"\xff", 401)]
)
async def test_nothing_runs_as_a_user_that_is_not_there(
    tmp_path: Path, user: bytes, status: int
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        named = {"authorization": f"Basic {b64encode(user).decode()}"}
        headers = {**sandbox.headers, **named}
        listed = await service.http.post(
            "/process.Process/List", json={}, headers=headers
        )
        answer = await service.http.post(
            "/process.Process/Start",
            content=envelope({"process": {"cmd": "touch", "args": ["ran"]}}),
            headers=headers,
        )
        ran = await sandbox.read("ran")

    assert listed.status_code == answer.status_code == status
    assert ran.status_code == (200 if status == 200 else 404)


async def test_a_client_that_leaves_does_not_end_its_command(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        script = "seq 200000; echo done > finished; sleep 60"
        await sandbox.start("bash", "-c", script)
        with anyio.fail_after(60):
            while (await sandbox.read("finished")).status_code != 200:
                await anyio.sleep(0.02)
        listed = (await sandbox.unary("process.Process/List")).json()["processes"]

    assert [each["config"]["cmd"] for each in listed] == ["bash"]
