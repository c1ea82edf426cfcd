"""Rows on inspected HTTPS: what it adds to a request, and takes from a body.

mitmproxy runs in another environment, whose `mitmdump` `TOOLCELL_MITMDUMP` names.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines import programs
from baselines.programs import PYTHON
from harness.measure import Missing, Row, Sample, WrongResult
from harness.options import Options

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.sandbox import Limits, Network, SandboxConfig, SandboxManager, Session
from toolcell.tools import ConcurrentExecutor, ToolRegistry

_NAME = "bench.example.test"
_CONNECTIONS = 10
_REQUESTS = 50
_TURNS = 5
_BODY_MB = 100
_MITMDUMP = "TOOLCELL_MITMDUMP"
_START_SECONDS = 60.0

_SERVER = """
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
BLOCK = b"x" * 1_000_000
def answer(way, head):
    blocks = int(head.split(b" ")[1][1:] or 0)
    size = blocks * len(BLOCK) or 2
    way.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % size
                + (b"" if blocks else b"ok"))
    for _ in range(blocks):
        way.sendall(BLOCK)
def serve(client):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(client, server_side=True) as way:
        head = b""
        while data := way.recv(65536):
            head += data
            while b"\\r\\n\\r\\n" in head:
                first, _, head = head.partition(b"\\r\\n\\r\\n")
                answer(way, first)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
# It trusts any certificate: what is measured is the way, and not the check.
_CLIENT = f"""
import os, socket, ssl, time
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
to = os.environ.get("BENCH_TO") or f"{_NAME}:{{port}}"
def connected():
    proxy = os.environ.get("https_proxy")
    if not proxy:
        way = socket.create_connection(("127.0.0.1", port))
    else:
        host, _, number = proxy[7:].partition(":")
        way = socket.create_connection((host, int(number)))
        way.sendall(f"CONNECT {{to}} HTTP/1.1\\r\\nHost: {{to}}\\r\\n\\r\\n".encode())
        said = b""
        while not said.endswith(b"\\r\\n\\r\\n"):
            said += way.recv(1)
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(way, server_hostname={_NAME!r})
def get(way):
    way.sendall(f"GET / HTTP/1.1\\r\\nHost: {{to}}\\r\\n\\r\\n".encode())
    said = b""
    while not said.endswith(b"ok"):
        said += way.recv(65536)
def timed(work):
    began = time.perf_counter()
    result = work()
    print((time.perf_counter() - began) * 1000)
    return result
def opened():
    with connected() as way:
        get(way)
"""
_NEW = f"{_CLIENT}\nfor _ in range({_CONNECTIONS}): timed(opened)\n"
_OPEN = f"{_CLIENT}\nway = connected()\nget(way)\n"
_OPEN += f"for _ in range({_REQUESTS}): timed(lambda: get(way))\nway.close()\n"
_BODY = f"""{_CLIENT}
buffer = bytearray(262144)
def body():
    bearer = "Authorization: Bearer " + os.environ.get("API_TOKEN", "none")
    head = f"GET /{_BODY_MB} HTTP/1.1\\r\\nHost: {{to}}\\r\\n{{bearer}}\\r\\n\\r\\n"
    way.sendall(head.encode())
    left = {_BODY_MB}_000_000
    while left > 0:
        got = way.recv_into(buffer)
        assert got
        left -= got
with connected() as way:
    get(way)
    timed(body)
"""


@contextmanager
def _server() -> Iterator[tuple[int, str]]:
    """Serve in another process; give its port and the file of its certificate."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = f"{folder}/key.pem", f"{folder}/certificate.pem"
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
        made += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={_NAME}"]
        made += ["-addext", f"subjectAltName=DNS:{_NAME}"]
        made += ["-keyout", key, "-out", certificate]
        subprocess.run(made, check=True, capture_output=True)
        process = subprocess.Popen(
            [PYTHON, "-I", "-c", _SERVER, certificate, key],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), certificate
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


async def _resolve(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A session whose programs reach the server."""

    session: Session
    gate: Any

    async def median(self, code: str, port: int) -> float:
        """Return the median of the milliseconds that a program prints."""
        result = await self.session.run(
            code, fresh=True, inputs={"port": port}, gate=self.gate
        )
        if not result.ok:
            raise WrongResult(f"the requests became {result!r}")
        return statistics.median(map(float, result.stdout.split()))


async def _cell(stack: AsyncExitStack, network: Network, **more: Any) -> _Cell:
    config = SandboxConfig(
        backend="subprocess",
        python=PYTHON,
        network=network,
        limits=Limits(connections=100_000),
        **more,
    )
    manager = SandboxManager(config, resolver=_resolve)
    sandbox = await stack.enter_async_context(manager)
    session = await stack.enter_async_context(sandbox.session(agent_id="a"))
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["http.request"])])
    executor = ConcurrentExecutor(ToolRegistry([]), guard=guard)
    return _Cell(session, executor.request_gate(agent_id="a"))


def _inspected(port: int, certificate: str) -> Network:
    hosts = (f"{_NAME}:{port}", f"127.0.0.1:{port}")
    return Network(
        mode="guarded", hosts=hosts, inspect=hosts[:1], server_ca=certificate
    )


def _tunnelled(port: int) -> Network:
    return Network.allow([f"{_NAME}:{port}", f"127.0.0.1:{port}"])


def _direct(code: str, port: int, **variables: str) -> float:
    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    text = programs.output([*words, PYTHON, "-I", "-c", f"port = {port}\n{code}"])
    return statistics.median(map(float, text.split()))


async def inspected_network(options: Options) -> list[Row]:
    """On new connections, and on one that is open."""
    new = Sample(name="over a direct connection")
    kept = Sample(name="over the proxy, not inspected")
    with _server() as (port, certificate):
        async with AsyncExitStack() as stack:
            ours = await _cell(stack, _inspected(port, certificate))
            plain = await _cell(stack, _tunnelled(port))
            for _ in range(_TURNS):
                direct = _direct(_NEW, port)
                new.values.append(await ours.median(_NEW, port) - direct)
                through = await plain.median(_OPEN, port)
                kept.values.append(await ours.median(_OPEN, port) - through)
    work = "inspected request, on a new connection"
    again = "inspected request, on an open connection"
    return [
        Row(work=work, ours=new, compare="absolute"),
        Row(work=again, ours=kept, compare="absolute"),
    ]


async def inspected_body(options: Options) -> list[Row]:
    """Much in one answer, and with a credential that is found all over it."""
    with _server() as (port, certificate):
        token = Path(certificate).with_name("token")
        token.write_text("x" * 40)
        credential = {
            "name": "api",
            "value": f"file:{token}",
            "hosts": [f"{_NAME}:{port}"],
            "agents": ["a"],
            "variable": "API_TOKEN",
        }
        network = _inspected(port, certificate)
        async with AsyncExitStack() as stack:
            cells = {
                "tunnel, not inspected": await _cell(stack, _tunnelled(port)),
                "inspected": await _cell(stack, network),
                "inspected, searched": await _cell(
                    stack, network, credentials=(credential,)
                ),
            }
            rates = {name: Sample(name=name, unit="MB/s") for name in cells}
            for _ in range(_TURNS):
                for name, cell in cells.items():
                    took = await cell.median(_BODY, port)
                    rates[name].values.append(_BODY_MB * 1_000 / took)
    tunnel, *ours = rates.values()
    return [
        Row(
            work=f"{_BODY_MB} MB, {each.name}",
            ours=each,
            baseline=tunnel,
            compare="rate",
            gate=gate,
        )
        for each, gate in zip(ours, (0.5, 0.35), strict=True)
    ]


def _listens(port: int) -> bool:
    with closing(socket.socket()) as way:
        return way.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _mitmproxy() -> Iterator[str]:
    """Run mitmproxy; give its URL."""
    command = os.environ.get(_MITMDUMP)
    if command is None:
        raise Missing(f"{_MITMDUMP} names no mitmdump")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    argv = [command, "--listen-host", "127.0.0.1", "--listen-port", str(port), "-q"]
    process = subprocess.Popen([*argv, "--ssl-insecure"])
    try:
        latest = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > latest:
                raise Missing(f"{command} does not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def peer_inspected(options: Options) -> list[Row]:
    """Requests on an open connection, one after the other."""
    ours = Sample(name="inspected, guarded and recorded", unit="/s")
    theirs = Sample(name="mitmproxy", unit="/s")
    with _mitmproxy() as url, _server() as (port, certificate):
        variables = {"https_proxy": url, "BENCH_TO": f"127.0.0.1:{port}"}
        async with AsyncExitStack() as stack:
            cell = await _cell(stack, _inspected(port, certificate))
            for _ in range(_TURNS):
                theirs.values.append(1_000 / _direct(_OPEN, port, **variables))
                ours.values.append(1_000 / await cell.median(_OPEN, port))
    work = "inspected requests on an open connection"
    return [Row(work=work, ours=ours, baseline=theirs, compare="rate")]


INSPECTED_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "inspected-network": inspected_network,
    "inspected-body": inspected_body,
    "peer-inspected-mitmproxy": peer_inspected,
}
