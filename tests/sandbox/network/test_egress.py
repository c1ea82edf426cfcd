"""Programs that reach out by an allow-list, on every backend."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    SandboxUnavailableError,
    ToolCall,
)
from toolcell.sandbox import (
    Connected,
    Finished,
    HostCalls,
    Limits,
    Network,
    SandboxConfig,
    SandboxManager,
    Session,
)
from toolcell.sandbox.backends.restricted import ProcessBackend
from toolcell.sandbox.backends.selection import check_network
from toolcell.sandbox.spi import Connection
from toolcell.tools import ConcurrentExecutor, ToolRegistry
from toolcell.tools.builtin import code_tools

from ...conftest import BackendRow
from ...support.cells.web_server import NAME, Site, self_signed, serving

pytestmark = pytest.mark.anyio


@dataclass
class Outside:
    """What the tests' programs find outside: two sites, and who knows their names."""

    plain: Site
    secure: Site
    asked: list[str] = field(default_factory=list)

    @property
    def network(self) -> Network:
        ports = (self.plain.port, self.secure.port)
        hosts = [f"{host}:{p}" for p in ports for host in (NAME, "127.0.0.1")]
        return Network.allow([*hosts, "unknown.example.test:80"])

    @property
    def inputs(self) -> dict[str, Any]:
        """What a program needs to reach both sites."""
        return {
            "certificate": self.secure.certificate,
            "plain": self.plain.url,
            "secure": self.secure.url,
            "port": self.plain.port,
        }

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host != NAME:
            raise OSError("no such name")
        return ["127.0.0.1"]


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with tempfile.TemporaryDirectory() as folder:
        certificate = self_signed(Path(folder))
        with serving() as plain, serving(certificate) as secure:
            yield Outside(plain, secure)


@pytest.fixture(scope="module")
async def reaching(
    backend: BackendRow, outside: Outside
) -> AsyncIterator[SandboxManager]:
    config = backend.config(limits=Limits(wall_seconds=20), network=outside.network)
    async with SandboxManager(config, resolver=outside.resolve) as manager:
        yield manager


@pytest.fixture(scope="module")
async def cell(reaching: SandboxManager) -> AsyncIterator[Session]:
    async with reaching.session() as session:
        yield session


OPEN = """
import socket, os
def proxy():
    host, _, port = os.environ["http_proxy"][7:].partition(":")
    return socket.create_connection((host, int(port)))
def tunnel(name, port):
    way = proxy()
    head = f"CONNECT {name}:{port} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n\\r\\n"
    way.sendall(head.encode())
    answer = b""
    while b"\\r\\n\\r\\n" not in answer:
        answer += way.recv(1)
    return way, answer.split(b"\\r\\n")[0].decode()
"""


async def test_http_https_and_socks_arrive(cell: Session, outside: Outside) -> None:
    code = f"""{OPEN}
import ssl, urllib.request, struct
trust = ssl.create_default_context(cadata=certificate)
said = [
    urllib.request.urlopen(plain + "/a?b").read().decode(),
    urllib.request.urlopen(secure + "/c", context=trust).read().decode(),
]
way = proxy()
name = b"api.example.test"
way.sendall(b"\\5\\1\\0")
said.append(way.recv(2).hex())
way.sendall(b"\\5\\1\\0\\3" + bytes([len(name)]) + name + struct.pack(">H", port))
said.append(way.recv(10).hex())
way.sendall(b"GET /d HTTP/1.1\\r\\nHost: api.example.test:%d\\r\\n\\r\\n" % port)
answer = b""
while part := way.recv(65536):
    answer += part
said.append(answer.decode().rpartition("\\n")[2])
said
"""
    result = await cell.run(code, fresh=True, inputs=outside.inputs)

    assert result.status == "ok", result.stderr
    assert result.value == [
        *("hello /a?b", "hello /c"),
        *("0500", "05000001000000000000", "hello /d"),
    ]
    assert [
        (connection.host, connection.verdict, connection.address)
        for connection in result.connections
    ] == [(NAME, "allowed", "127.0.0.1")] * 3
    assert all(
        connection.bytes_in and connection.bytes_out
        for connection in result.connections
    )
    total = sum(
        connection.bytes_in + connection.bytes_out for connection in result.connections
    )
    assert (result.usage.connections, result.usage.network_bytes) == (3, total)
    assert result.to_json()["connections"][0]["port"] == outside.plain.port


async def test_what_is_refused_or_fails_is_told_and_recorded(cell: Session) -> None:
    code = """
import urllib.request, urllib.error
said = []
for url in ("http://other.test/", "https://other.test/", "http://unknown.example.test/"):
    try:
        urllib.request.urlopen(url)
    except urllib.error.HTTPError as error:
        said.append([error.code, error.read().decode()])
    except urllib.error.URLError as error:
        said.append(str(error.reason))
said
"""
    seen: list[Connection] = []
    result = await cell.run(code, fresh=True, on_connection=seen.append)

    assert result.value == [
        [403, "toolcell: other.test port 80 is not allowed\n"],
        "Tunnel connection failed: 403 Forbidden",
        [502, "toolcell: unknown.example.test has no address\n"],
    ]
    found = [
        (connection.host, connection.port, connection.verdict)
        for connection in result.connections
    ]
    assert found == [
        ("other.test", 80, "refused"),
        ("other.test", 443, "refused"),
        ("unknown.example.test", 80, "failed"),
    ]
    assert result.connections[0].reason == "other.test port 80 is not allowed"
    assert sorted(seen, key=str) == sorted(result.connections, key=str)


LOOK = """
import os
names = [name for name in os.environ if "proxy" in name.lower()]
with open("/proc/net/tcp") as file:
    listening = [line for line in file if " 0A " in line]
[sorted(names), len(listening)]
"""


async def test_without_network_there_is_no_proxy(
    reaching: SandboxManager, outside: Outside
) -> None:
    bare = await reaching.run(LOOK, network=Network.none)
    open_to = await reaching.run(LOOK)
    narrow = await reaching.run(
        "import urllib.request\nurllib.request.urlopen(url).status",
        inputs={"url": outside.plain.url},
        network=Network.allow([f"127.0.0.1:{outside.plain.port}"]),
    )

    assert (bare.value, bare.connections) == ([[], 0], ())
    variables = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
    upper = [name.upper() for name in variables]
    # The proxy listens, and a listener for each rule of one name.
    assert open_to.value == [sorted([*variables, *upper, "NODE_USE_ENV_PROXY"]), 4]
    assert narrow.status == "error"
    assert [connection.verdict for connection in narrow.connections] == ["refused"]


async def test_a_run_and_a_session_only_narrow(reaching: SandboxManager) -> None:
    wider = Network.allow(["other.test:443"])
    with pytest.raises(InvalidInputError, match=r"other\.test"):
        await reaching.run("1", network=wider)
    with pytest.raises(InvalidInputError):
        async with reaching.session(network=wider):
            pass
    with pytest.raises(InvalidInputError):
        await reaching.run("1", network={"mode": "none"})  # type: ignore[arg-type]


FETCH = """
import http.client, urllib.request, urllib.error
def fetch(path, opener=None):
    # The one of urlopen would keep the proxy that it saw first.
    opener = opener or urllib.request.build_opener()
    try:
        return opener.open(url + path).read().decode()
    except ConnectionError:
        return "closed"
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
"""


async def test_rules_change_on_a_live_session(
    reaching: SandboxManager, outside: Outside
) -> None:
    async with reaching.session(network=Network.none) as session:
        await session.run(FETCH, inputs={"url": outside.plain.url})
        said = [await session.run("fetch('/1')")]
        await session.set_network(outside.network)
        said.append(await session.run("fetch('/2')"))
        with pytest.raises(ConfigError):
            await session.set_network(Network.allow(["not a host:443"]))
        with pytest.raises(InvalidInputError):
            await session.set_network("*")  # type: ignore[arg-type]
        keep = "kept = urllib.request.build_opener()"
        said.append(await session.run(f"{keep}\nfetch('/3', kept)"))
        fork = await session.fork()
        said.append(await fork.run("fetch('/4')"))
        await session.set_network(Network.none)
        said.append(await session.run("fetch('/5', kept)"))
        said.append(await session.run(LOOK))
        assert session.network == Network.none

    values = [each.value for each in said]
    assert values[:5] == ["URLError", "hello /2", "hello /3", "hello /4", 403]
    assert values[5] == [[], 1]
    assert [len(each.connections) for each in said] == [0, 1, 1, 1, 1, 0]


async def test_open_connections_end_when_their_host_is_not_allowed_any_more(
    reaching: SandboxManager, outside: Outside
) -> None:
    code = f"""{FETCH}
import http.client
answer = urllib.request.urlopen(url + "/slow")
first = answer.read(1)
print("open", flush=True)
try:
    rest = answer.read()
except http.client.IncompleteRead as error:
    rest = error.partial
[first.decode(), rest.decode(), fetch("/after"), fetch("/again")]
"""
    opened = anyio.Event()
    async with reaching.session() as session, anyio.create_task_group() as tasks:

        async def close() -> None:
            await opened.wait()
            await session.set_network(
                Network.allow([f"127.0.0.1:{outside.plain.port}"])
            )

        tasks.start_soon(close)
        result = await session.run(
            code,
            inputs={"url": outside.plain.url},
            on_output=lambda *_: opened.set(),
        )

    assert result.value == ["1", "", 403, 403], result.stderr
    verdicts = [
        (connection.verdict, connection.reason) for connection in result.connections
    ]
    assert verdicts[0] == ("allowed", "the rules have changed")
    assert [verdict[0] for verdict in verdicts[1:]] == ["refused", "refused"]


async def test_connections_and_bytes_are_limited(
    cell: Session, outside: Outside
) -> None:
    few = await cell.run(
        f"{FETCH}\n[fetch(f'/{{n}}') for n in range(4)]",
        fresh=True,
        inputs={"url": outside.plain.url},
        limits=Limits(connections=2),
    )
    small = await cell.run(
        f"{FETCH}\n[fetch('/big/1000'), fetch('/big/300000'), fetch('/last')]",
        fresh=True,
        inputs={"url": outside.plain.url},
        limits=Limits(network_bytes=100_000),
    )

    assert few.value == ["hello /0", "hello /1", *["closed"] * 2]
    assert few.usage.connections == 2
    assert "used up its 2 connections" in few.warnings[0]
    values: Any = small.value
    assert len(values[0]) == 1000
    # The limit may cut the answer before its head has reached the program.
    assert values[1] in ("IncompleteRead", "closed") and values[2] == 403
    assert small.usage.network_bytes <= 100_000
    assert "network_bytes" in small.warnings[0]


async def test_a_stream_tells_of_connections(
    reaching: SandboxManager, outside: Outside
) -> None:
    code = "import urllib.request\nprint(urllib.request.urlopen(url).read())"
    events = [
        event
        async for event in reaching.stream(code, inputs={"url": outside.plain.url})
    ]
    told = [event.connection for event in events if isinstance(event, Connected)]

    assert isinstance(events[-1], Finished)
    assert events[-1].result.status == "ok", events[-1].result.exception
    assert [each.verdict for each in told] == ["allowed"]
    assert tuple(told) == events[-1].result.connections


async def test_what_the_callback_raises_reaches_the_caller(
    reaching: SandboxManager, outside: Outside
) -> None:
    def broken(_: Connection) -> None:
        raise LookupError("ours")

    with pytest.raises(LookupError):
        await reaching.run(
            f"{FETCH}\nfetch('/')",
            inputs={"url": outside.plain.url},
            on_connection=broken,
        )
    assert (await reaching.run("1")).ok


@pytest.mark.promise("QN5")
async def test_bodies_go_out_whole_and_ends_are_heard(
    cell: Session, outside: Outside
) -> None:
    code = f"""{OPEN}
import hashlib, ssl, urllib.request
body = bytes(range(256)) * 12_000
trust = ssl.create_default_context(cadata=certificate)
digests = [
    urllib.request.urlopen(url, body, context=trust).read().decode()
    for url in (plain, secure)
]
way, _ = tunnel("api.example.test", port)
way.sendall(b"GET /end HTTP/1.0\\r\\nHost: api.example.test:%d\\r\\n\\r\\n" % port)
way.shutdown(socket.SHUT_WR)
answer = b""
while part := way.recv(65536):
    answer += part
[each == hashlib.sha256(body).hexdigest() for each in digests] + [answer[-10:].decode()]
"""
    result = await cell.run(code, fresh=True, inputs=outside.inputs)

    assert result.value == [True, True, "hello /end"], result.stderr
    assert result.connections[0].bytes_out > 3_000_000


async def test_who_does_not_read_holds_up_nobody(
    cell: Session, outside: Outside
) -> None:
    """Output, calls, other connections and the deadline go on."""
    code = f"""{OPEN}{FETCH}
lazy = []
for _ in range(4):
    way, _ = tunnel("api.example.test", port)
    host = b"\\r\\nHost: api.example.test:%d\\r\\n\\r\\n" % port
    way.sendall(b"GET /endless HTTP/1.1" + host)
    lazy.append(way)
    way.recv(1)
print("said")
[fetch("/meanwhile"), tools.add(1, 2), len(fetch("/big/2000000"))]
"""

    async def answer(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return {"value": sum(args)}

    inputs = {"url": outside.plain.url, "port": outside.plain.port}
    result = await cell.run(
        code,
        fresh=True,
        inputs=inputs,
        calls=HostCalls(names=("add",), handler=answer),
    )
    late = await cell.run(
        code + "\nimport time\ntime.sleep(60)",
        fresh=True,
        inputs=inputs,
        limits=Limits(wall_seconds=2),
        calls=HostCalls(names=("add",), handler=answer),
    )

    assert result.value == ["hello /meanwhile", 3, 2_000_000], result.stderr
    assert result.stdout == "said\n"
    # What was sent ahead is bounded, whoever reads.
    assert result.usage.network_bytes < 4 * 6_000_000 + 3_000_000
    assert late.status == "timeout"


async def test_a_server_that_does_not_read_holds_up_nobody(
    cell: Session, outside: Outside
) -> None:
    code = f"""{OPEN}{FETCH}
way, _ = tunnel("api.example.test", port)
way.sendall(b"GET /slow HTTP/1.1\\r\\nHost: api.example.test:%d\\r\\n" % port)
way.sendall(b"Content-Length: 900000000\\r\\n\\r\\n")
way.recv(1)
way.settimeout(1)
sent = 0
try:
    while sent < 100_000_000:
        sent += way.send(bytes(1_000_000))
except TimeoutError:
    pass
[sent < 40_000_000, fetch("/meanwhile")]
"""
    inputs = {"url": outside.plain.url, "port": outside.plain.port}
    result = await cell.run(code, fresh=True, inputs=inputs)

    assert result.value == [True, "hello /meanwhile"], result.stderr


async def test_tools_are_charged_for_what_their_programs_moved(
    reaching: SandboxManager, outside: Outside
) -> None:
    tools = code_tools(reaching)
    executor = ConcurrentExecutor(ToolRegistry(tools), guard=None)
    code = f"url = {outside.plain.url!r}\n{FETCH}\nlen(fetch('/big/50000'))"
    made = await executor.call(
        ToolCall(id="1", name="run_python", arguments={"code": code})
    )
    content: Any = made.content
    limits = reaching.config.limits

    assert content["value"] == 50_000
    assert 50_000 < int(made.usage["bytes"]) < 51_000
    most = limits.network_bytes + 2 * limits.output_bytes
    assert {tool.cost["bytes"] for tool in tools} == {most}


async def test_a_run_leaves_no_connection_to_the_next(
    reaching: SandboxManager, outside: Outside
) -> None:
    begin = f"{OPEN}\nway, said = tunnel('api.example.test', port)\nsaid"
    async with reaching.session() as session:
        first = await session.run(begin, inputs={"port": outside.plain.port})
        left = await session.run(
            "way.settimeout(15)\n"
            "try:\n    got = len(way.recv(1))\nexcept ConnectionError:\n    got = 0\n"
            "got"
        )

    assert first.value == "HTTP/1.1 200 Connection established"
    assert [connection.verdict for connection in first.connections] == ["allowed"]
    assert (left.value, left.connections) == (0, ()), left.stderr


async def test_process_isolation_has_no_network() -> None:
    options: Any = {"backend": "subprocess", "minimum_isolation": "process"}
    traits = ProcessBackend(SandboxConfig(**options)).traits
    for without in (traits, traits._replace(level="namespaces", has_network=False)):
        with pytest.raises(SandboxUnavailableError, match="network"):
            check_network(Network.allow([]), without)
        check_network(Network.none, without)
