"""MCP on standard input and output: a process, and whatever is written to it."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from toolcell.core import ConfigError
from toolcell.host.cli.serving.serve import serve

from ...conftest import apart
from ...support.mcp.by_hand import INITIALIZED, receive, send, server
from ...support.mcp.served_hosts import (
    CONFIG,
    INITIALIZE,
    MODES,
    SUM,
    WITH_CODE,
    answering,
    client_of,
    said,
    served,
    written,
)
from ...support.toolcell_command import TOOLCELL, toolcell

pytestmark = pytest.mark.anyio

TOOLS = '''
import os
import sys

from toolcell.tools import tool


@tool(name="own_print")
def noisy() -> str:
    """Print, and read what there is to read."""
    print("not for the client")
    os.write(1, b"nor this\\n")
    return sys.stdin.read() + repr(os.read(0, 10))


@tool(name="own_wait")
async def wait() -> str:
    """Never end."""
    import anyio

    print("waiting", file=sys.stderr, flush=True)
    await anyio.sleep_forever()
    return ""
'''


def with_tools(folder: Path, text: str = CONFIG) -> Path:
    """Return a configuration with tools of a file."""
    (folder / "own_tools.py").write_text(TOOLS)
    listed = 'python = ["own_tools:noisy", "own_tools:wait"]\nfolders = ["."]\n'
    return written(folder, text.replace("[tools]\n", f"[tools]\n{listed}"))


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_calls_as_the_configured_agent(
    tmp_path: Path, mode: Any
) -> None:
    path = with_tools(tmp_path, WITH_CODE)
    command = StdioServerParameters(
        command=TOOLCELL, args=["serve", "--config", str(path)]
    )
    answer = answering("accept", approve=True)
    async with Client(command, mode=mode, elicitation_callback=answer) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        number = await client.call_tool("calculate", SUM)
        program = await client.call_tool("run_python", {"code": "print(6 * 7)"})
        date = await client.call_tool("get_today_date", {})
        noise = await client.call_tool("own_print", {})

    assert {"calculate", "run_python", "get_today_date"} <= names
    assert said(number) == {"result": 42}
    assert said(program)["stdout"] == "42\n"
    assert "today" in said(date)
    assert len(answer.asked) == 1
    # What tools print is no message, and messages are not theirs to read.
    assert said(noise) == {"result": "b''"}


@pytest.mark.promise("E-92", "E-132")
def test_what_is_no_message_is_answered_and_skipped(tmp_path: Path) -> None:
    text = CONFIG.replace("[server]\n", "[server]\nmax_body_bytes = 100_000\n")
    ping = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}'
    lines = {
        b"{": -32700,
        b"\xff\xfe": -32700,
        b"[" * 5_000: -32700,
        b"[" * 50_000: -32600,
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}': -32700,
        ping % b"NaN": -32700,
        ping % (b"9" * 5_000): -32700,
        b"[" + ping % b"1" + b"]": -32600,
        ping % b"{}": -32600,
        ping % b"null": -32600,
        ping % b"1.5": -32600,
        ping % b"true": -32600,
        b"3": -32600,
        b"x" * 100_001: -32600,
    }
    with server(written(tmp_path, text)) as process:
        send(process, INITIALIZE, INITIALIZED)
        assert receive(process)["result"]["protocolVersion"] == "2025-11-25"
        codes = []
        for line in lines:
            send(process, line)
            answer = receive(process)
            assert answer["id"] is None
            codes.append(answer["error"]["code"])
        send(process, *[{"jsonrpc": "2.0", "method": "notifications/odd"}] * 2_000)
        send(process, {"jsonrpc": "2.0", "id": 77, "result": {}})
        send(process, {"jsonrpc": "2.0", "method": "notifications/cancelled"})
        send(process, call(5, "calculate", **SUM))
        after = receive(process)

    assert codes == list(lines.values())
    assert (after["id"], after["result"]["structuredContent"]) == (5, {"result": 42})


@pytest.mark.promise("E-132")
def test_bad_requests_are_protocol_errors(tmp_path: Path) -> None:
    requests: list[tuple[str, Any, int]] = [
        ("nothing", {}, -32601),
        ("tools/call", {"name": 3}, -32602),
        ("tools/call", {"name": "calculate", "arguments": []}, -32602),
        ("tools/list", {"cursor": "x"}, -32602),
        ("resources/read", {"uri": "file:///etc/passwd"}, -32601),
    ]
    with server(written(tmp_path)) as process:
        send(process, INITIALIZE, INITIALIZED)
        receive(process)
        codes = []
        for method, params, _ in requests:
            request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            send(process, request)
            codes.append(receive(process)["error"]["code"])

    assert codes == [code for *_, code in requests]


def test_the_end_of_input_waits_for_answers(tmp_path: Path) -> None:
    messages = [INITIALIZE, INITIALIZED]
    messages += [call(number, "calculate", **SUM) for number in range(1, 30)]
    lines = "\n".join(map(json.dumps, messages)).encode()
    done = toolcell("serve", "--config", str(written(tmp_path)), stdin=lines + b"\n")

    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(answer["id"] for answer in answers) == list(range(30))
    assert (done.returncode, done.stderr) == (0, b"")


def test_requests_may_come_from_a_file(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    messages = [INITIALIZE, INITIALIZED, call(1, "calculate", **SUM)]
    requests.write_text("".join(json.dumps(message) + "\n" for message in messages))
    with requests.open("rb") as file:
        done = subprocess.run(
            [TOOLCELL, "serve", "--config", str(written(tmp_path))],
            stdin=file,
            capture_output=True,
            timeout=180,
            check=True,
        )

    assert b'"result":42' in done.stdout


@pytest.mark.parametrize("gone", ["reader", "signal", "both signals"])
def test_a_server_ends_with_its_client(tmp_path: Path, gone: str) -> None:
    drain = "0.2" if gone == "signal" else "600"
    text = CONFIG.replace("[server]\n", f"[server]\ndrain_seconds = {drain}\n")
    with server(with_tools(tmp_path, text)) as process:
        send(process, INITIALIZE, INITIALIZED)
        receive(process)
        send(process, call(1, "own_wait"))
        assert process.stderr is not None and process.stdin is not None
        assert process.stderr.readline() == b"waiting\n"
        if gone == "reader":
            assert process.stdout is not None
            process.stdout.close()
            process.stdin.close()
        else:
            process.send_signal(signal.SIGTERM)
        if gone == "both signals":
            send(process, call(2, "calculate", **SUM))
            assert "about to stop" in receive(process)["result"]["content"][0]["text"]
            process.send_signal(signal.SIGINT)
        if gone != "reader":
            answer = receive(process)
            told = answer["result"]["_meta"]["toolcell/error"]
            assert (told["retryable"], told["outcome"]) == (False, "unknown")
        assert process.wait(180) == 0


def test_whose_calls_they_are_has_to_be_said(tmp_path: Path) -> None:
    nobody = written(tmp_path, CONFIG.replace('agent_id = "a"\napproval', "approval"))

    with pytest.raises(ConfigError, match="--agent"):
        apart(serve, nobody)
    with pytest.raises(ConfigError, match="no policy of an agent 'x'"):
        apart(partial(serve, nobody, agent="x"))
    with pytest.raises(ConfigError, match="the token says"):
        serve(nobody, "127.0.0.1:0", agent="a")


@pytest.mark.promise("E-131")
async def test_no_request_names_a_command(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = written(tmp_path)
    strange = {"command": "touch", "args": [str(marker)], "env": {"A": "1"}}
    with server(path) as process:
        initialize = json.loads(json.dumps(INITIALIZE))
        initialize["params"] |= strange
        send(process, initialize, INITIALIZED)
        assert "result" in receive(process)
        request = call(1, "calculate", **SUM)
        request["params"] |= strange
        send(process, request)
        assert receive(process)["result"]["structuredContent"] == {"result": 42}

    assert not marker.exists()


async def test_what_is_kept_outlives_a_server(tmp_path: Path) -> None:
    text = CONFIG.replace(
        'ask = ["get',
        'budgets = [{ unit = "calls", limit = 3, window = "day" }]\nask = ["get',
    )
    reasons = []
    for _ in range(2):
        async with served(tmp_path, text=text) as one, client_of(one) as client:
            for _ in range(2):
                result = await client.call_tool("calculate", SUM)
                reasons.append(said(result).get("reason", "ok"))

    assert reasons == ["ok", "ok", "ok", "budget_exceeded"]
