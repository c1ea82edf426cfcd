"""Inspected HTTPS: each request in it is judged, on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError, InvalidInputError
from toolcell.sandbox import (
    Network,
    Sandbox,
    SandboxConfig,
    SandboxManager,
    SandboxSession,
)

from ...conftest import BackendRow
from ...support.cells.gates import Gate
from ...support.cells.web_server import NAME, Site, resolve_here
from ...support.web.packed_websockets import packed_websockets

pytestmark = pytest.mark.anyio

WAYS = """
import http.client, os, socket, ssl, sys, urllib.error, urllib.request
name, port = "api.example.test", int(sys.argv[1])
to = f"{name}:{port}"
context = ssl.create_default_context()
def get(path, **options):
    request = urllib.request.Request(f"https://{to}{path}", **options)
    try:
        return urllib.request.urlopen(request).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers['X-Toolcell-Refusal']}"
def tunnel(**options):
    host, _, door = os.environ["http_proxy"][7:].partition(":")
    way = socket.create_connection((host, int(door)), timeout=30)
    way.sendall(f"CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n".encode())
    said = b""
    while b"\\r\\n\\r\\n" not in said:
        said += way.recv(1)
    context.set_alpn_protocols(options.get("alpn", ["http/1.1"]))
    return context.wrap_socket(way, server_hostname=options.get("sni", name))
def raw(text):
    way = tunnel()
    way.sendall(text.encode("latin-1").replace(b"HERE", to.encode()))
    said = b""
    try:
        while part := way.recv(65536):
            said += part
    except OSError:
        pass
    way.close()
    return said.decode("latin-1")
"""


@pytest.fixture(scope="module")
def network(site: Site, certificate: Path) -> Network:
    return Network(
        mode="guarded",
        hosts=(*site.rules, f"other.example.test:{site.port}"),
        inspect=(f"{NAME}:{site.port}",),
        server_ca=str(certificate),
    )


async def said(
    cell: SandboxSession, code: str, site: Site, gate: Gate | None
) -> list[str]:
    """Return what a command prints that has the ways out at hand."""
    argv = ["python3", "-c", WAYS + code, str(site.port)]
    process = await cell.exec(argv, gate=gate)
    result = await process.wait()
    assert result.status == "ok", result.stderr
    return result.stdout.splitlines()


@pytest.mark.on_nodes
@pytest.mark.promise("boundary-5")
async def test_each_request_inside_of_https_is_judged(
    cell: SandboxSession, site: Site
) -> None:
    gate = Gate(lambda act: act.arguments.get("path") != "/no")
    code = """
print(get("/yes"), get("/no"), get("/no", data=b"x" * 3_000_000))
way = http.client.HTTPSConnection(name, port)
way.sock = tunnel()
for path in ("/1", "/2?q=%7e"):
    way.request("GET", path)
    print(way.getresponse().read().decode())
way.request("POST", "/sum", body=b"0" * 2_000_000)
print(len(way.getresponse().read()))
way.request("GET", "/big/1000000")
print(len(way.getresponse().read()))
way.request("GET", "/no")
print(way.getresponse().status)
"""
    assert await said(cell, code, site, gate) == [
        "hello /yes 403 not_allowed 403 not_allowed",
        "hello /1",
        "hello /2?q=~",
        "64",
        "1000000",
        "403",
    ]
    assert {name for name, _ in gate.asked} == {"http.request"}
    assert [outcome["status"] for outcome in gate.outcomes] == [200] * 5
    assert gate.outcomes[-1]["bytes_in"] > 1_000_000 > gate.outcomes[0]["bytes_in"]
    assert [hit.split()[0::2] for hit in site.hits] == [
        ["GET", "/yes"],
        ["GET", "/1"],
        ["GET", "/2?q=~"],
        ["POST", "/sum"],
        ["GET", "/big/1000000"],
    ]


@pytest.mark.on_nodes
@pytest.mark.promise("boundary-5")
async def test_runs_trust_the_certificate_and_other_hosts_stay_closed(
    manager: Sandbox, site: Site
) -> None:
    gate = Gate()
    code = f"""
import ssl, urllib.request
found = urllib.request.urlopen("https://{NAME}:{site.port}/run").read().decode()
try:
    urllib.request.urlopen("https://other.example.test:{site.port}/")
except urllib.error.URLError as error:
    found += " " + type(error.reason).__name__
found
"""
    result = await manager.run(code, gate=gate)

    assert result.value == "hello /run SSLCertVerificationError"
    assert gate.asked == [("http.request", "/run"), ("net.connect", site.port)]


@pytest.mark.on_nodes
@pytest.mark.promise("boundary-2")
async def test_what_servers_read_in_two_ways_is_refused_inside_of_https(
    cell: SandboxSession, site: Site
) -> None:
    code = r"""
for text in (
    "GET /ok HTTP/1.1|@|Connection: close||",
    "GET /caf\xc3\xa9 HTTP/1.1|@|Connection: close||",
    "GET https://HERE/abs HTTP/1.1|@|Connection: close||",
    "GET https://other.test/ HTTP/1.1|@||",
    "GET http://HERE/ HTTP/1.1|@||",
    "GET / HTTP/1.1|Host: other.test||",
    "GET / HTTP/1.1|@|@||",
    "GET / HTTP/1.1||",
    "POST / HTTP/1.1|@|Content-Length: 4|Content-Length: 4||abcd",
    "POST / HTTP/1.1|@|Content-Length: 4, 4||abcd",
    "POST / HTTP/1.1|@|Content-Length: +4||abcd",
    "POST / HTTP/1.1|@|Content-Length: 5|Transfer-Encoding: chunked||0||",
    "POST / HTTP/1.1|@|Transfer-Encoding: gzip, chunked||0||",
    "GET / HTTP/1.1|@|X: a| b||",
    "GET / HTTP/1.1|Host : HERE||",
    "GET / HTTP/1.1\n@||",
    "GET / HTTP/1.1|@|X: a\rb||",
    "GET / HTTP/1.1|@|X: a\0b||",
    "GET /caf\xe9 HTTP/1.1|@||",
    "GET /a#b HTTP/1.1|@||",
    "GET /a\\b HTTP/1.1|@||",
    "CONNECT HERE HTTP/1.1|@||",
    "PRI * HTTP/2.0||SM||",
    "TRACE / HTTP/1.1|@||",
    "GET /1 HTTP/1.1|@||" "GET /2#x HTTP/1.1|@||" "GET /3 HTTP/1.1|@||",
):
    text = text.replace("@", "Host: HERE").replace("|", "\r\n")
    said = raw(text)
    print(said.count("HTTP/1.1 200"), said.count("not_exact"))
"""
    found = await said(cell, code, site, Gate())

    assert found == ["1 0"] * 3 + ["0 1"] * 21 + ["1 1"]
    assert [hit.split()[-1] for hit in site.hits] == ["/ok", "/caf%C3%A9", "/abs", "/1"]


UPGRADE = r"""
def upgrade(path):
    way = tunnel()
    head = f"GET {path} HTTP/1.1|Host: {to}|Connection: Upgrade|Upgrade: websocket||"
    way.sendall(head.replace("|", "\r\n").encode())
    said = b""
    while b"\r\n\r\n" not in said:
        said += way.recv(65536)
    return way, said.split()[1].decode()
"""


@pytest.mark.on_nodes
@pytest.mark.promise("boundary-5")
async def test_a_web_socket_is_judged_when_it_opens(
    cell: SandboxSession, site: Site
) -> None:
    gate = Gate(lambda act: act.arguments["path"] != "/no")
    code = """
way, status = upgrade("/ws")
way.sendall(b"\\x81\\x02hi" + b"0" * 300_000)
said = b""
while len(said) < 300_004:
    said += way.recv(65536)
way.close()
print(status, said[:4], upgrade("/no")[1])
"""
    assert await said(cell, UPGRADE + code, site, gate) == [
        "101 b'\\x81\\x02hi' 403",
    ]
    assert gate.asked == [("http.upgrade", "/ws"), ("http.upgrade", "/no")]
    assert [outcome["status"] for outcome in gate.outcomes] == [101]
    assert gate.outcomes[0]["bytes_out"] > 300_000


@pytest.mark.promise("boundary-5")
async def test_a_client_of_web_sockets_speaks_through_the_proxy(
    cell: SandboxSession, site: Site
) -> None:
    await cell.write_file("websockets.zip", packed_websockets())
    gate = Gate()
    code = """
sys.path.insert(0, "websockets.zip")
from websockets.sync.client import connect
with connect(f"wss://{to}/talk") as socket:
    for message in ("hello", "x" * 300_000):
        socket.send(message)
        print(socket.recv() == message)
"""
    assert await said(cell, code, site, gate) == ["True", "True"]
    assert gate.asked == [("http.upgrade", "/talk")]


@pytest.mark.promise("boundary-5")
async def test_a_server_has_to_prove_its_name(backend: BackendRow, site: Site) -> None:
    inspected = (f"{NAME}:{site.port}",)
    network = Network(mode="allow", hosts=tuple(site.rules), inspect=inspected)
    site.hits.clear()
    code = f"""
import urllib.error, urllib.request
try:
    urllib.request.urlopen("https://{NAME}:{site.port}/")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
    config = backend.config(network=network)
    async with SandboxManager(config, resolver=resolve_here) as manager:
        result = await manager.run(code)

    told = f"the certificate of {NAME} does not verify: self-signed certificate"
    assert result.stdout.strip() == f"502 toolcell: {told}"
    assert [
        (connection.verdict, connection.reason) for connection in result.connections
    ] == [("failed", told)]
    assert site.hits == []


@pytest.mark.promise("boundary-5")
async def test_what_cannot_be_read_is_refused(cell: SandboxSession, site: Site) -> None:
    code = """
for options in ({"alpn": ["h2"]}, {"sni": "other.example.test"}):
    try:
        tunnel(**options)
    except OSError as error:
        print("refused")
try:
    urllib.request.urlopen(f"http://{to}/plain")
except urllib.error.HTTPError as error:
    print(error.code)
"""
    assert await said(cell, code, site, Gate()) == ["refused", "refused", "403"]
    assert site.hits == []


@pytest.mark.promise("boundary-2")
async def test_odd_answers_are_passed_on_or_explained(
    cell: SandboxSession, site: Site
) -> None:
    code = """
print(get("/wide"))
answer = raw("GET /silent HTTP/1.1\\r\\nHost: HERE\\r\\n\\r\\n")
print(answer.splitlines()[0], answer.splitlines()[-1])
"""
    assert await said(cell, code, site, Gate()) == [
        "wide",
        "HTTP/1.1 502 Bad Gateway toolcell: the server ended the connection without "
        "an answer",
    ]


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"inspect": ["a.test:443"]}, "mode"),
        ({"mode": "allow", "inspect": ["a.test:443"]}, "cannot be reached"),
        ({"mode": "guarded", "inspect": ["a.test"]}, "port"),
        ({"mode": "guarded", "inspect": ["192.0.2.1:443"]}, "by their names"),
        ({"mode": "guarded", "server_ca": "/ca.pem"}, "server_ca"),
    ],
)
def test_an_inspection_that_cannot_be_is_a_config_error(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        Network(**settings)


@pytest.mark.promise("boundary-5")
@pytest.mark.parametrize("text", [None, "no certificate"])
async def test_a_file_of_certificates_that_cannot_be_read_is_named_at_the_start(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    network = Network(mode="guarded", inspect=("a.test:443",), server_ca=str(path))
    with pytest.raises(ConfigError, match=str(path)):
        await SandboxManager.open(SandboxConfig(network=network))


@pytest.mark.promise("boundary-5")
async def test_only_a_whole_sandbox_is_inspected(
    manager: SandboxManager, cell: SandboxSession
) -> None:
    network = Network(mode="guarded", inspect=("a.test:443",))
    with pytest.raises(InvalidInputError, match="whole sandbox"):
        await cell.set_network(network)
    with pytest.raises(InvalidInputError, match="whole sandbox"):
        await manager.run("1", network=network)
