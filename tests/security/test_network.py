"""Programs that may reach one host, and try every way to reach another."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.sandbox import ExecutionResult, Limits, Network, SandboxManager, Session

from ..conftest import BackendRow
from ..support.attacks.as_programs import attempt, program
from ..support.attacks.programs import host_addresses, port_of_the_proxy, ways_out
from ..support.cells.web_server import NAME, Site, self_signed, serving

pytestmark = pytest.mark.anyio

FAR = "other.example.test"
"""A name that is allowed, and leads wherever a test lets it lead."""


@dataclass
class World:
    """One site that may be reached at its name, and one that may not."""

    site: Site
    secure: Site
    forbidden: Site
    leads: Callable[[], list[str]] = lambda: ["127.0.0.1"]
    asked: list[str] = field(default_factory=list)

    @property
    def network(self) -> Network:
        hosts = [f"{NAME}:{port}" for port in (self.site.port, self.secure.port)]
        hosts += [f"127.0.0.1:{port}" for port in (self.site.port, self.secure.port)]
        return Network.allow([*hosts, f"{FAR}:{self.forbidden.port}"])

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return ["127.0.0.1"] if host == NAME else self.leads()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        certificate = self_signed(Path(folder))
        with serving() as site, serving(certificate) as secure, serving() as forbidden:
            yield World(site, secure, forbidden)


@pytest.fixture(scope="module")
async def reaching(backend: BackendRow, world: World) -> AsyncIterator[SandboxManager]:
    config = backend.config(limits=Limits(wall_seconds=60), network=world.network)
    async with SandboxManager(config, resolver=world.resolve) as manager:
        yield manager


@pytest.fixture(scope="module")
async def cell(reaching: SandboxManager) -> AsyncIterator[Session]:
    async with reaching.session() as session:
        yield session


@pytest.fixture(autouse=True)
def nobody_came(world: World) -> Iterator[None]:
    """Whatever a test tried: the forbidden site was never asked."""
    world.asked.clear()
    world.leads = lambda: ["127.0.0.1"]
    yield
    assert world.forbidden.hits == []


async def run(cell: Session, code: str, **inputs: Any) -> ExecutionResult:
    result = await cell.run(code, fresh=True, inputs=inputs)
    assert result.status == "ok", (result.status, result.stderr)
    return result


def ask_all(requests: list[str], waits: float) -> list[str]:
    """Say each text to the proxy; return the first line of each answer."""
    import os
    import socket

    host, _, port = os.environ["http_proxy"][7:].partition(":")
    said = []
    for text in requests:
        with socket.create_connection((host, int(port)), 10) as way:
            way.sendall(text.encode("latin-1"))
            answer = b""
            try:
                while part := way.recv(65536):
                    answer += part
            except OSError:
                pass
        said.append(answer.split(b"\r\n")[0].decode("latin-1"))
    return said


def hosts_inside(port: int) -> list[str]:
    """Return spellings of what is not on the public internet."""
    loopback = [
        *("127.0.0.1", "localhost", "127.1", "127.0.1", "2130706433", "0x7f000001"),
        *("0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "127.000.000.001"),
        *("[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::]"),
        *(
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[::1%25lo]",
            "0.0.0.0",
            "0",
            "127.0.0.2",
        ),
        *("①②⑦.0.0.1", "127。0。0。1", "%31%32%37.0.0.1", "127.0.0.1%00.example.test"),
    ]
    metadata = [
        *("169.254.169.254", "[::ffff:a9fe:a9fe]", "2852039166", "0xa9fea9fe"),
        *("[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "192.168.0.1"),
        *("10.0.0.1", "172.17.0.1", "metadata.google.internal", "[fe80::1]"),
    ]
    return [f"{host}:{port}" for host in (*loopback, *metadata)]


@pytest.mark.promise("E-66", "E-67", "E-68", "cluster-36")
async def test_no_spelling_of_an_inner_address_gets_through(
    cell: Session, world: World
) -> None:
    hosts = hosts_inside(world.forbidden.port)
    hosts += [f"{NAME}:{world.forbidden.port}", f"{NAME}:22", f"{NAME}:80"]
    texts = []
    for host in hosts:
        spelt = host.encode().decode("latin-1")
        texts.append(f"GET http://{spelt}/ HTTP/1.1\r\nHost: {spelt}\r\n\r\n")
        texts.append(f"CONNECT {spelt} HTTP/1.1\r\nHost: {spelt}\r\n\r\n")
    result = await run(cell, program(ask_all), requests=texts, waits=0)
    said: Any = result.value

    assert len(said) == len(texts)
    assert {line[:12] for line in said} <= {"HTTP/1.1 400", "HTTP/1.1 403"}
    assert {connection.verdict for connection in result.connections} == {"refused"}
    # A name that is not allowed is not looked up either: no word leaves by DNS.
    assert world.asked == []


@pytest.mark.promise("E-66")
async def test_names_that_are_not_allowed_are_never_looked_up(
    cell: Session, world: World
) -> None:
    names = ["secret.canary.test", "a.api.example.test", f"{NAME}.canary.test"]
    texts = [f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}\r\n\r\n" for name in names]
    socks = "\x05\x01\x00\x05\x01\x00\x03\x0bcanary.test\x01\xbb"
    await run(cell, program(ask_all), requests=[*texts, socks], waits=0)

    assert world.asked == []


@pytest.mark.promise("E-67", "E-68")
@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["169.254.169.254", "10.0.0.1", "127.0.0.1", "0.0.0.0"],
        ["64:ff9b::7f00:1", "2002:7f00:1::"],
    ],
)
async def test_a_name_that_leads_inside_is_refused(
    cell: Session, world: World, addresses: list[str]
) -> None:
    """Rebinding: only the address that is connected to counts."""
    world.leads = lambda: addresses
    where = f"{FAR}:{world.forbidden.port}"
    texts = [
        f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n",
        f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n",
    ]
    result = await run(cell, program(ask_all), requests=texts, waits=0)
    said: Any = result.value

    assert [line[:12] for line in said] == ["HTTP/1.1 403"] * 2
    assert "not on the public internet" in result.connections[0].reason


@pytest.mark.promise("E-68")
async def test_a_name_is_looked_up_once_for_each_connection(
    cell: Session, world: World
) -> None:
    """There is no second answer that could differ from what was judged."""
    answers = iter([["10.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]])
    world.leads = lambda: next(answers)
    where = f"{FAR}:{world.forbidden.port}"
    text = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n"
    await run(cell, program(ask_all), requests=[text, text], waits=0)

    assert world.asked == [FAR, FAR]
    assert next(answers) == ["127.0.0.1"]


@pytest.mark.promise("E-68", "QN6")
async def test_redirects_start_from_the_beginning(cell: Session, world: World) -> None:
    port = world.forbidden.port
    targets = [f"http://127.0.0.1:{port}/", f"http://{NAME}:{port}/"]
    targets += [f"http://2130706433:{port}/", f"http://[::ffff:127.0.0.1]:{port}/"]
    code = """
import urllib.error, urllib.request
said = []
for target in targets:
    try:
        urllib.request.urlopen(f"{url}/to/{target}")
        said.append("done")
    except urllib.error.HTTPError as error:
        said.append(error.code)
said
"""
    result = await run(cell, code, url=world.site.url, targets=targets)

    assert result.value == [403, 403, 400, 403]


@pytest.mark.promise("E-68")
async def test_headers_do_not_lead_elsewhere(cell: Session, world: World) -> None:
    """Host header, user@host, a second request, absolute form in a tunnel."""
    here, there = f"{NAME}:{world.site.port}", f"evil.test:{world.site.port}"
    tunnel = f"CONNECT {here} HTTP/1.1\r\nHost: {here}\r\n\r\n"
    texts = [
        f"GET http://{here}/ HTTP/1.1\r\nHost: {there}\r\n\r\n",
        f"GET http://{here}/ HTTP/1.1\r\nHost: {NAME}\r\n\r\n",
        f"GET http://{here}@{there}/ HTTP/1.1\r\nHost: {there}\r\n\r\n",
        f"GET http://{there}#@{here}/ HTTP/1.1\r\nHost: {here}\r\n\r\n",
        f"GET http://{here}/ HTTP/1.1\r\nHost: {here}\r\nHost: {there}\r\n\r\n",
        f"CONNECT {here} HTTP/1.1\r\nHost: {there}\r\n\r\n",
        f"{tunnel}GET /tunnel HTTP/1.1\r\nHost: {there}\r\n\r\n",
        f"{tunnel}GET http://{there}/tunnel HTTP/1.1\r\nHost: {here}\r\n\r\n",
        f"{tunnel}\r\n\r\nget /tunnel http/1.1\nHost: {there}\n\n",
        f"GET http://{here}/first HTTP/1.1\r\nHost: {here}\r\n\r\n"
        f"GET http://{here}/second HTTP/1.1\r\nHost: {there}\r\n\r\n",
        f"POST http://{here}/first HTTP/1.1\r\nHost: {here}\r\n"
        "Transfer-Encoding: chunked\r\nContent-Length: 400\r\n\r\n0\r\n\r\n"
        f"GET /second HTTP/1.1\r\nHost: {there}\r\n\r\n",
    ]
    world.site.hits.clear()
    result = await run(cell, program(ask_all), requests=texts, waits=0)
    said: Any = result.value

    assert [line[9:12] for line in said[:6]] == ["400"] * 6
    assert [line[9:12] for line in said[6:9]] == ["200"] * 3
    assert [connection.verdict for connection in result.connections[:9]] == [
        "refused"
    ] * 9
    assert all(hit.split()[1] == here for hit in world.site.hits)
    assert {hit.split()[2] for hit in world.site.hits} <= {"/first"}


def say_in_tunnels(where: str, tunnels: list[list[str]]) -> None:
    """Say the pieces of each tunnel one by one, unless it is closed before."""
    import os
    import select
    import socket

    host, _, port = os.environ["http_proxy"][7:].partition(":")
    head = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
    for pieces in tunnels:
        with socket.create_connection((host, int(port)), 10) as way:
            way.sendall(head)
            while b"\r\n\r\n" not in way.recv(65536):
                pass
            try:
                for text in pieces:
                    way.sendall(text.encode("latin-1"))
                    select.select([way], [], [], 0.3)
                while way.recv(65536):
                    pass
            except OSError:
                pass


@pytest.mark.promise("A21")
async def test_no_target_and_no_prefix_leads_to_another_virtual_host(
    cell: Session, world: World
) -> None:
    here = f"{NAME}:{world.site.port}"
    end = f" HTTP/1.1\r\nHost: {here}\r\nConnection: close\r\n\r\n"
    alert = "\x15\x03\x01\x00\x02\x01\x00"
    tunnels = [
        [f"GET ftp://evil.test/x{end}"],
        [f"GET https://evil.test/x{end}"],
        ["GET x:", f"//evil.test/x{end}"],
        [f"GET evil.test{end}"],
        [alert, f"GET /x{end}"],
        [f"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET /x{end}"],
    ]
    world.site.hits.clear()
    result = await run(cell, program(say_in_tunnels), where=here, tunnels=tunnels)

    assert world.site.hits == []
    assert [connection.verdict for connection in result.connections] == [
        "refused"
    ] * len(tunnels)


@pytest.mark.promise("E-68")
async def test_http_in_pieces_does_not_lead_elsewhere(
    cell: Session, world: World
) -> None:
    """A pause comes where the first piece does not look like HTTP yet."""
    there = f"Host: evil.test:{world.site.port}\r\nConnection: close\r\n\r\n"
    rest = f" HTTP/1.1\r\n{there}"
    tunnels = [
        ["GET /\xff", rest],
        ["GET /\0", rest],
        ["\xa0GET /", rest],
        [f"GET /{'a' * 17_000}", rest],
        ["GET /\xff\r\n", there],
        ["\0", f"GET /{rest}"],
    ]
    world.site.hits.clear()
    code = program(say_in_tunnels)
    where = f"{NAME}:{world.site.port}"
    result = await run(cell, code, where=where, tunnels=tunnels)

    assert world.site.hits == []
    assert [connection.verdict for connection in result.connections] == [
        "refused"
    ] * len(tunnels)


@pytest.mark.promise("E-68")
async def test_tls_calls_for_the_host_of_its_tunnel(
    cell: Session, world: World
) -> None:
    code = """
import os, socket, ssl
def call(name):
    host, _, port = os.environ["https_proxy"][7:].partition(":")
    with socket.create_connection((host, int(port)), 10) as way:
        way.sendall(f"CONNECT {where} HTTP/1.1\\r\\nHost: {where}\\r\\n\\r\\n".encode())
        while b"\\r\\n\\r\\n" not in way.recv(65536):
            pass
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        try:
            with trust.wrap_socket(way, server_hostname=name) as secure:
                secure.sendall(b"GET /tls HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n")
                return secure.recv(12).decode()
        except OSError:
            return "closed"
[call(name) for name in names]
"""
    names = [NAME, None, "evil.test", f"evil.{NAME}", f"{NAME}.evil.test"]
    where = f"{NAME}:{world.secure.port}"
    result = await run(cell, code, where=where, names=names)

    assert result.value == ["HTTP/1.1 200", "HTTP/1.1 200", *["closed"] * 3]
    verdicts = [connection.verdict for connection in result.connections]
    assert verdicts == ["allowed", "allowed", *["refused"] * 3]
    assert "evil.test" in result.connections[2].reason
    assert [connection.bytes_out for connection in result.connections[2:]] == [0, 0, 0]


@pytest.mark.promise("E-65", "E-66", "E-67", "E-69")
@pytest.mark.smoke
async def test_there_is_no_way_out_beside_the_proxy(
    cell: Session, tmp_path: Path
) -> None:
    """Raw sockets, UDP, ICMP, IPv6, DNS: an allow-list opens none of them."""
    with (
        socket.create_server(("0.0.0.0", 0)) as tcp,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("0.0.0.0", 0))
        result = await run(
            cell,
            program(ways_out, attempt),
            addresses=host_addresses(),
            tcp_port=tcp.getsockname()[1],
            udp_port=udp.getsockname()[1],
            abstract="toolcell-test-nobody",
            path=str(tmp_path / "nobody"),
        )
        for listener in (tcp, udp):
            listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            tcp.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(1)
    said: Any = result.value

    assert {name: how for name, how in said.items() if how == "done"} == {}
    assert result.connections == ()


@pytest.mark.promise("E-65", "E-67")
async def test_the_port_of_the_proxy_is_no_way_to_other_addresses(
    cell: Session,
) -> None:
    """A rule for a port alone would hold for every machine."""
    addresses = ["127.0.0.2", *host_addresses()]
    addresses.remove("127.0.0.1")
    code = program(port_of_the_proxy)
    known: Any = (await run(cell, code, addresses=[])).value
    with ExitStack() as stack:
        servers = []
        for address in addresses:
            # Some are this machine's, others its neighbours'.
            with suppress(OSError):
                server = stack.enter_context(socket.create_server((address, known[0])))
                server.setblocking(False)
                servers.append(server)
        found: Any = (await run(cell, code, addresses=addresses)).value
        came = []
        for server in servers:
            with suppress(BlockingIOError):
                came.append(server.accept()[1])

    assert found[:2] == [known[0], True]
    # All of loopback may be the cell's own, and lead to the proxy.
    assert set(found[2]) <= {"127.0.0.2"}
    assert servers
    assert came == []


@pytest.mark.promise("E-65", "E-67")
async def test_slow_and_endless_bodies_end_with_the_run(
    reaching: SandboxManager, world: World
) -> None:
    code = """
import urllib.request
answer = urllib.request.urlopen(url)
sum(len(piece) for piece in iter(lambda: answer.read(65536), b""))
"""
    slow, endless = [
        await reaching.run(
            code,
            inputs={"url": world.site.url + path},
            limits=Limits(wall_seconds=seconds, network_bytes=3_000_000),
        )
        for path, seconds in (("/slow", 4), ("/endless", 60))
    ]

    assert slow.status == "timeout"
    assert slow.usage.wall_ms < 60_000
    assert slow.connections[0].bytes_in < 1_000
    assert endless.usage.network_bytes <= 3_000_000
    read: Any = endless.value
    assert 1_000_000 < read < 3_000_000
    assert "network_bytes" in endless.warnings[0]


@pytest.mark.promise("E-65", "E-68")
async def test_a_flood_of_connections_holds_up_nobody(
    reaching: SandboxManager, world: World
) -> None:
    """Idle ones, broken ones, and frames that are not the program's to send."""
    code = """
import os, socket, struct, json, threading, time
host, _, port = os.environ["http_proxy"][7:].partition(":")
header = json.dumps({"type": "finished", "reason": None}).encode()
forged = struct.pack(">II", len(header), 0) + header
idle = []
def flood():
    while True:
        try:
            way = socket.create_connection((host, int(port)), 5)
            way.sendall(forged)
            way.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            way.close()
        except OSError:
            time.sleep(0.01)
for _ in range(60):
    idle.append(socket.create_connection((host, int(port))))
    idle[-1].sendall(b"GET ")
threads = [threading.Thread(target=flood, daemon=True) for _ in range(4)]
for each in threads:
    each.start()
print("begun")
time.sleep(600)
"""
    began = anyio.current_time()
    async with reaching.session() as session:
        result = await session.run(
            code, fresh=True, limits=Limits(wall_seconds=5, connections=300)
        )
        after = await session.run(
            "import urllib.request\nurllib.request.urlopen(url).status",
            inputs={"url": world.site.url},
        )

    assert (result.status, result.stdout) == ("timeout", "begun\n")
    assert len(result.connections) <= 300
    assert {connection.verdict for connection in result.connections} <= {"refused"}
    assert after.value == 200, after.stderr
    # The program goes on for ten minutes.
    assert anyio.current_time() - began < 120
