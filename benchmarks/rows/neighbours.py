"""Rows on neighbours: an agent's small calls while another agent does its worst.

Each call is timed by the clock of the CPU time of the whole host: what it did for the
call, and for the other agent meanwhile. On an idle machine a caller waits for that
long; other load of the machine, which is not the host's doing, changes it little.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
from baselines import asking
from baselines.programs import PYTHON, TOOLCELL
from harness.measure import Row, Sample, WrongResult, against
from harness.options import Options, RowMaker

from rows.mcp import needs_mcp
from toolcell.host import Host, HostConfig
from toolcell.host.http.tokens import open_tokens
from toolcell.tools import RunContext

_GATE = 3.0
_CALLS_OF_A_TURN = 200
_PAUSE_SECONDS = 0.005
_MANY = 100
_SESSIONS = 8
_MB = 1_000_000
_TOOLS = """
import anyio

from toolcell.tools import tool


@tool
async def length(text: str) -> int:
    "Return the length of a text."
    return len(text)


@tool
async def count(values: list[int]) -> int:
    "Return the number of values."
    return len(values)


@tool
async def text(size: int) -> str:
    "Return a long text."
    return "ab cd " * (size // 6)


@tool
async def numbers(count: int) -> list[int]:
    "Return many values."
    return list(range(count))


@tool
async def wait() -> None:
    "Take half a second."
    await anyio.sleep(0.5)
"""
_CONFIG = f"""
profile = "development"
[sandbox]
backend = "subprocess"
python = "{PYTHON}"
[tools]
python = ["added:length", "added:count", "added:text", "added:numbers", "added:wait"]
folders = ["FOLDER"]
builtin = ["calculate", "code", "files"]
[state]
folder = "FOLDER/state"
[server]
apis = ["mcp", "rest", "e2b"]
[[policies]]
agent_id = "small"
allow = ["calculate"]
[[policies]]
agent_id = "worst"
allow = ["length", "count", "text", "numbers", "wait", "@code", "@write", "sandbox.*"]
deny = ["run_shell"]
"""


class _Work(NamedTuple):
    """Calls that the other agent makes all the time."""

    tool: str
    arguments: dict[str, Any]
    at_once: int = _SESSIONS


_BURNS = "import time\nend = time.time() + 1\nwhile time.time() < end: pass"
_PRINTS = "for i in range(200_000): print(i, i * i)"
_WORST = {
    "large arguments": _Work("length", {"text": "ab cd " * (_MB // 6)}),
    "arguments of many values": _Work("count", {"values": list(range(9_000))}),
    "large results": _Work("text", {"size": _MB}),
    "results of many values": _Work("numbers", {"count": 20_000}),
    "refused calls": _Work("run_shell", {"command": "true"}),
    "slow calls": _Work("wait", {}, at_once=_MANY),
    "programs that burn CPU": _Work("run_python", {"code": _BURNS}),
    "programs that print": _Work("run_python", {"code": _PRINTS}),
    "files": _Work("write_file", {"path": "a", "text": "ab cd " * (_MB // 6)}),
}
_SUM = "calculate", {"expression": "6 * 7"}

_Door = Callable[[str, str, dict[str, Any]], dict[str, Any]]
"""Makes the request of a call from a token, a tool's name and its arguments."""


def _rest(token: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    body = {"tool": tool, "arguments": arguments}
    return _request("POST", "/v1/calls", token, json.dumps(body))


def _mcp(token: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    version = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    return _request("POST", "/mcp", token, json.dumps(body), **headers)


def _request(
    method: str, url: str, token: str, body: str = "", **more: str
) -> dict[str, Any]:
    """Return a request as `http.client` takes it."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    return {"method": method, "url": url, "body": body, "headers": headers | more}


class _Asked(NamedTuple):
    """A place where both agents call, and the clock of its CPU time in seconds."""

    small: Callable[[], Awaitable[None]]
    worst: Mapping[str, Callable[[], AbstractAsyncContextManager[None]]]
    clock: Callable[[], float]


_Place = Callable[[], AbstractAsyncContextManager[_Asked]]


@asynccontextmanager
async def _in_process() -> AsyncIterator[_Asked]:
    """Both agents call the executor of one host, in this process."""
    with _config() as path:
        async with Host.from_config(path) as host:

            async def small() -> None:
                result = await host.call(*_SUM, agent_id="small")
                if result.content != 42:
                    raise WrongResult(f"6 * 7 became {result!r}")

            async def ask(work: _Work, number: int) -> None:
                name = f"worst{number % _SESSIONS}"
                run = RunContext(run_id=name, session=name)
                call = partial(host.call, work.tool, work.arguments, agent_id="worst")
                while True:
                    await call(run=run)

            @asynccontextmanager
            async def asks(work: _Work) -> AsyncIterator[None]:
                async with anyio.create_task_group() as tasks:
                    for number in range(work.at_once):
                        tasks.start_soon(ask, work, number)
                    yield
                    tasks.cancel_scope.cancel()

            worst = {name: partial(asks, work) for name, work in _WORST.items()}
            yield _Asked(small, worst, time.process_time)


@asynccontextmanager
async def _over_http(door: _Door) -> AsyncIterator[_Asked]:
    """Both agents call a server, through one door, and the other one lists as well."""
    needs_mcp()
    with _config() as path:
        with open_tokens(HostConfig.from_file(path)) as tokens:
            token = tokens.create("small")[1]
            worst = [tokens.create("worst", form="e2b")[1] for _ in range(_SESSIONS)]
        serve = [TOOLCELL, "serve", "--json", "--config", path]
        with subprocess.Popen(
            [*serve, "--http", "127.0.0.1:0"], stdout=subprocess.PIPE
        ) as server:
            try:
                assert server.stdout is not None
                port = urlsplit(json.loads(server.stdout.readline())["url"]).port or 0
                connection = http.client.HTTPConnection("127.0.0.1", port)
                question = door(token, *_SUM)

                async def small() -> None:
                    # Blocking on purpose: all that is measured is in the server.
                    connection.request(**question)
                    if b"42" not in (text := connection.getresponse().read()):
                        raise WrongResult(f"6 * 7 became {text!r}")

                requests = {
                    name: [
                        [door(worst[number % _SESSIONS], work.tool, work.arguments)]
                        for number in range(work.at_once)
                    ]
                    for name, work in _WORST.items()
                } | {
                    "long lists": [
                        [_request("GET", "/v1/records?limit=1000", each)]
                        for each in worst
                    ],
                    "streams": [
                        [_request("GET", "/v1/events?seconds=1", worst[0])]
                        for _ in range(_MANY)
                    ],
                    "files of 8 MB": [_files(port, worst[0])],
                }
                yield _Asked(
                    small,
                    {n: partial(_asking, port, each) for n, each in requests.items()},
                    partial(time.clock_gettime, _cpu_clock(server.pid)),
                )
            finally:
                server.kill()


def _files(port: int, token: str) -> list[dict[str, Any]]:
    """Return an upload to a new sandbox, and the download."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/sandboxes", b"{}", {"x-api-key": token})
    made = json.load(connection.getresponse())
    headers = {
        "e2b-sandbox-id": made["sandboxID"],
        "x-access-token": made["envdAccessToken"],
        "Content-Type": "application/octet-stream",
    }
    url = "/files?path=data"
    return [
        {"method": "POST", "url": url, "body": "x" * (8 * _MB), "headers": headers},
        {"method": "GET", "url": url, "body": "", "headers": headers},
    ]


def _cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, as clock_getcpuclockid(3) does."""
    return (~pid << 3) | 2


@asynccontextmanager
async def _asking(port: int, requests: list[Any]) -> AsyncIterator[None]:
    given = json.dumps({"port": port, "connections": requests}).encode()
    with subprocess.Popen(
        [sys.executable, "-I", asking.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(given)
            process.stdin.close()
            process.stdout.readline()
            yield
        finally:
            process.kill()


@contextmanager
def _config() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        Path(folder, "added.py").write_text(_TOOLS)
        path = Path(folder, "toolcell.toml")
        path.write_text(_CONFIG.replace("FOLDER", folder))
        yield str(path)


async def _turn(asked: _Asked) -> float:
    """Make small calls; return what one in a hundred takes, in milliseconds."""
    took = Sample(name="a turn")
    for _ in range(_CALLS_OF_A_TURN):
        started = asked.clock()
        await asked.small()
        took.values.append((asked.clock() - started) * 1_000)
        await anyio.sleep(_PAUSE_SECONDS)
    return took.p99


async def neighbours(name: str, place: _Place, options: Options) -> list[Row]:
    """The slowest of an agent's small calls beside each kind of work, and alone."""
    async with place() as asked:
        alone = Sample(name="alone")
        beside = {kind: Sample(name=f"beside {kind}") for kind in asked.worst}
        await _turn(asked)
        for _ in range(max(1, options.runs // 50)):
            alone.values.append(await _turn(asked))
            for kind, sample in beside.items():
                async with asked.worst[kind]():
                    sample.values.append(await _turn(asked))
    return [
        row
        for kind, sample in beside.items()
        for row in against(
            f"{name}, p99 beside {kind}", [sample, alone], [_GATE], "share"
        )
    ]


NEIGHBOUR_ROWS: dict[str, RowMaker] = {
    "neighbours-python": partial(neighbours, "a call", _in_process),
    "neighbours-rest": partial(neighbours, "REST", partial(_over_http, _rest)),
    "neighbours-mcp": partial(neighbours, "MCP over HTTP", partial(_over_http, _mcp)),
}
