"""Guarded networks: a gate judges each connection and request, on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from toolcell.sandbox import HostCalls, Limits, Network, SandboxSession, Stdout
from toolcell.sandbox.network import admission
from toolcell.sandbox.processes.side_channel import SideChannel
from toolcell.sandbox.spi import pause_deadline

from ...conftest import BackendRow
from ...support.cells.gates import Gate
from ...support.cells.web_server import NAME, Site, serving

pytestmark = [pytest.mark.anyio, pytest.mark.on_nodes]

WALL = 5.0
WAYS = """
import os, socket, struct, sys, urllib.error, urllib.request
host, _, door = os.environ["http_proxy"][7:].partition(":")
name, port = "api.example.test", int(sys.argv[1])
def proxy():
    return socket.create_connection((host, int(door)))
def all_of(way):
    said = b""
    while part := way.recv(65536):
        said += part
    return said
def plain(path, **options):
    request = urllib.request.Request(f"http://{name}:{port}{path}", **options)
    try:
        return urllib.request.urlopen(request).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers['X-Toolcell-Refusal']}"
def raw(line, headers="", body=""):
    way = proxy()
    head = f"{line} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n{headers}\\r\\n{body}"
    way.sendall(head.encode("latin-1"))
    return all_of(way)
def tunnel(path):
    way = proxy()
    to = f"{name}:{port}"
    way.sendall(f"CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n".encode())
    answer = b""
    while b"\\r\\n\\r\\n" not in answer:
        answer += way.recv(1)
    if b" 200 " not in answer:
        return answer.split()[1].decode()
    way.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n".encode())
    return all_of(way).split()[1].decode()
def socks():
    way = proxy()
    way.sendall(b"\\5\\1\\0")
    way.recv(2)
    to = bytes([len(name)]) + name.encode() + struct.pack(">H", port)
    way.sendall(b"\\5\\1\\0\\3" + to)
    return way.recv(10)[1]
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as plain:
        yield plain


@pytest.fixture(scope="module")
def network(site: Site) -> Network:
    return Network.guarded(site.rules)


async def said(
    cell: SandboxSession, code: str, site: Site, gate: Gate | None
) -> list[str]:
    """Return what a command prints that has the ways out at hand."""
    argv = ["python3", "-c", WAYS + code, str(site.port)]
    process = await cell.exec(argv, gate=gate)
    result = await process.wait()
    assert result.status == "ok", result.stderr
    return result.stdout.splitlines()


@pytest.mark.promise("boundary-1")
async def test_nothing_goes_out_that_the_gate_has_not_admitted(
    cell: SandboxSession, site: Site
) -> None:
    gate = Gate(lambda act: act.arguments.get("path") == "/yes")
    code = """
print(plain("/yes"), plain("/no"), plain("/no", data=b"x" * 3_000_000), tunnel("/yes"))
print(socks())
"""
    found = await said(cell, code, site, gate)

    assert found == ["hello /yes 403 not_allowed 403 not_allowed 403", "2"]
    assert [name for name, _ in gate.asked] == ["http.request"] * 3 + [
        "net.connect"
    ] * 2
    assert site.hits == [f"GET {NAME}:{site.port} /yes"]
    [outcome] = gate.outcomes
    assert (outcome["verdict"], outcome["status"]) == ("allowed", 200)


@pytest.mark.promise("boundary-1")
async def test_a_request_in_an_admitted_tunnel_is_judged_as_well(
    cell: SandboxSession, site: Site
) -> None:
    gate = Gate(lambda act: act.arguments.get("path") != "/no")

    assert await said(cell, 'print(tunnel("/yes"), tunnel("/no"))', site, gate) == [
        "200 403"
    ]
    assert gate.asked == [
        ("net.connect", site.port),
        ("http.request", "/yes"),
        ("net.connect", site.port),
        ("http.request", "/no"),
    ]
    assert site.hits == [f"GET {NAME}:{site.port} /yes"]


@pytest.mark.promise("boundary-1")
async def test_without_a_gate_all_is_refused(cell: SandboxSession, site: Site) -> None:
    code = 'print(plain("/a"), tunnel("/b"), socks())'

    assert await said(cell, code, site, None) == ["403 no_guard 403 2"]
    assert site.hits == []


@pytest.mark.promise("boundary-1")
async def test_runs_have_the_gate_and_a_refusal_that_models_understand(
    cell: SandboxSession, site: Site
) -> None:
    code = f"""
import urllib.error, urllib.request
try:
    urllib.request.urlopen("http://{NAME}:{site.port}/x?key=1")
except urllib.error.HTTPError as error:
    print(error.read().decode(), error.headers["Retry-After"])
"""
    result = await cell.run(code, gate=Gate(lambda act: False))

    assert (
        result.stdout.split()
        == (
            "toolcell: the policy of this sandbox does not allow http.request GET "
            f"{NAME}:{site.port}/x: no rule allows it (a.deny[0]). Try again in 7 s. 7"
        ).split()
    )
    assert [connection.verdict for connection in result.connections] == ["refused"]
    assert site.hits == []


@pytest.mark.promise("boundary-1")
async def test_streams_have_the_gate(cell: SandboxSession, site: Site) -> None:
    gate = Gate(lambda act: act.arguments.get("path") == "/yes")
    code = (
        WAYS.replace("int(sys.argv[1])", str(site.port))
        + """
print(plain("/yes"), plain("/no"), tunnel("/no"), flush=True)
"""
    )
    found = []
    for given in (gate, None):
        events = [event async for event in cell.stream(code, gate=given)]
        pieces = [event.data for event in events if isinstance(event, Stdout)]
        found.append(b"".join(pieces))

    assert found == [
        b"hello /yes 403 not_allowed 403\n",
        b"403 no_guard 403 no_guard 403\n",
    ]
    assert len(gate.asked) == 3
    assert site.hits == [f"GET {NAME}:{site.port} /yes"]
    [outcome] = gate.outcomes
    assert (outcome["verdict"], outcome["status"]) == ("allowed", 200)


@pytest.mark.promise("boundary-2")
async def test_what_is_sent_is_what_was_judged(
    cell: SandboxSession, site: Site
) -> None:
    code = """
for line in ("/%61%2d%3f?q=%7e", "/a/%2e%2e/b", "/a//b", "/%252e%252e/b", "/a#b"):
    print(raw(f"GET http://{name}:{port}{line}").split()[1].decode())
both = "Content-Length: 3\\r\\nTransfer-Encoding: chunked\\r\\n"
print(raw(f"POST http://{name}:{port}/c", both, "0\\r\\n\\r\\n").split()[1].decode())
print(raw(f"TRACE http://{name}:{port}/d").split()[1].decode())
"""
    gate = Gate()

    assert await said(cell, code, site, gate) == ["200"] + ["403"] * 6
    assert gate.asked == [("http.request", "/a-%3F")]
    assert site.hits == [f"GET {NAME}:{site.port} /a-%3F?q=~"]


class Slow(Gate):
    """A gate whose person takes longer than a program may run."""

    async def look(self) -> None:
        async with pause_deadline():
            await anyio.sleep(WALL + 0.5)


@pytest.mark.promise("boundary-3")
async def test_the_clock_stands_still_while_a_person_looks(
    cell: SandboxSession, site: Site
) -> None:
    code = f"""
import urllib.request
urllib.request.urlopen("http://{NAME}:{site.port}/late").read().decode()
"""
    result = await cell.run(code, gate=Slow(), limits=Limits(wall_seconds=WALL))
    argv = ["python3", "-c", WAYS + 'print(plain("/later"))', str(site.port)]
    process = await cell.exec(argv, gate=Slow(), timeout_seconds=WALL)

    assert (result.status, result.value) == ("ok", "hello /late")
    assert (await process.wait()).stdout.strip() == "hello /later"


@pytest.mark.promise("boundary-3")
async def test_a_command_that_waits_for_two_persons_at_once_gains_the_time_once(
    cell: SandboxSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[float] = []
    send, asked = SideChannel.send, [anyio.Event(), anyio.Event()]

    async def watched(
        self: SideChannel, header: dict[str, Any], payload: bytes = b""
    ) -> None:
        if header["type"] == "exec_extend":
            moved.append(header["seconds"])
        await send(self, header, payload)

    async def wait_for_both(number: int) -> None:
        async with pause_deadline():
            asked[number].set()
            for event in asked:
                await event.wait()

    async def handler(*_: Any) -> dict[str, Any]:
        await wait_for_both(0)
        return {"value": 5}

    class Asking(Gate):
        async def look(self) -> None:
            await wait_for_both(1)

    monkeypatch.setattr(SideChannel, "send", watched)
    calls = HostCalls(names=("ask",), handler=handler, max_pause_seconds=900)
    code = (
        "import subprocess\n"
        'asking = subprocess.Popen(["tools", "ask"], close_fds=False)\n'
        'print(plain("/both"), asking.wait())'
    )
    argv = ["python3", "-c", WAYS + code, str(site.port)]
    process = await cell.exec(argv, gate=Asking(), calls=calls, timeout_seconds=60)
    result = await process.wait()

    assert result.stdout.split() == ["5", "hello", "/both", "0"], result.stderr
    assert [seconds > 0 for seconds in moved] == [True, False]
    assert sum(moved) < 60


class Never(Gate):
    """A gate whose person never answers."""

    async def look(self) -> None:
        async with pause_deadline():
            await anyio.sleep_forever()


@pytest.mark.promise("boundary-3")
async def test_a_program_that_goes_away_withdraws_its_request(
    cell: SandboxSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "INTERIM_SECONDS", 0.05)
    code = """
way = proxy()
way.sendall(f"POST http://{name}:{port}/pay HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n"
            "Content-Length: 2\\r\\n\\r\\nhi".encode())
said = b""
while b"\\r\\n\\r\\n" not in said:
    said += way.recv(1)
print(said.split(b"\\r\\n")[0].decode(), flush=True)
way.close()
sys.stdin.read()
"""
    gate = Never()
    argv = ["python3", "-c", WAYS + code, str(site.port)]
    process = await cell.exec(argv, gate=gate, stdin="pipe")
    assert await anext(process.output()) == ("stdout", b"HTTP/1.1 100 Continue\n")

    with anyio.fail_after(60):
        while not gate.cancelled:
            await anyio.sleep(0.01)
    assert process.running
    assert site.hits == []


@pytest.mark.promise("boundary-3")
async def test_a_reader_that_leaves_a_stream_withdraws_its_requests(
    cell: SandboxSession, site: Site
) -> None:
    gate = Never()
    code = f"""
import threading, time, urllib.request
url = "http://{NAME}:{site.port}/pay"
threading.Thread(target=urllib.request.urlopen, args=[url, b"hi"]).start()
while True:
    print("waits", flush=True)
    time.sleep(0.01)
"""
    with anyio.fail_after(60):
        async with aclosing(cell.stream(code, gate=gate)) as events:
            async for _ in events:
                if gate.asked:
                    break
        while not gate.cancelled:
            await anyio.sleep(0.01)

    assert gate.asked == [("http.request", "/pay")]
    assert site.hits == []


@pytest.mark.promise("boundary-1")
async def test_a_network_that_becomes_guarded_ends_what_nobody_judged(
    backend: BackendRow, cell: SandboxSession, site: Site
) -> None:
    if backend.on_nodes:
        pytest.skip("a driver cannot loosen the network of a node")
    hosts = site.rules
    await cell.set_network(Network.allow(hosts))
    code = """
way = proxy()
to = f"{name}:{port}"
way.sendall(f"CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n".encode())
print(way.recv(100).split()[1].decode(), flush=True)
print(way.recv(1) == b"", plain("/new"))
"""
    argv = ["python3", "-c", WAYS + code, str(site.port)]
    process = await cell.exec(argv, gate=Gate(lambda act: False))
    output = process.output()
    assert await anext(output) == ("stdout", b"200\n")
    await cell.set_network(Network.guarded(hosts))

    assert b"".join([data async for _, data in output]) == b"True 403 not_allowed\n"
