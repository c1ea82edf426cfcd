"""Rows on inspected HTTPS: what it adds to a request."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

from baselines import programs
from baselines.programs import PYTHON
from harness.measure import Row, Sample, WrongResult
from harness.options import Options

from toolcell.sandbox import Limits, Network, SandboxConfig, SandboxManager, Session

_NAME = "bench.example.test"
_CONNECTIONS = 10
_REQUESTS = 50
_TURNS = 5

_SERVER = """
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
def serve(client):
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(client, server_side=True) as way:
        head = b""
        while data := way.recv(65536):
            head += data
            while b"\\r\\n\\r\\n" in head:
                head = head.partition(b"\\r\\n\\r\\n")[2]
                way.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
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
to = f"{_NAME}:{{port}}"
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


async def _session(stack: AsyncExitStack, network: Network) -> Session:
    config = SandboxConfig(
        backend="subprocess",
        python=PYTHON,
        network=network,
        limits=Limits(connections=100_000),
    )
    manager = SandboxManager(config, resolver=_resolve)
    sandbox = await stack.enter_async_context(manager)
    return await stack.enter_async_context(sandbox.session())


async def _median(session: Session, code: str, port: int) -> float:
    result = await session.run(code, fresh=True, inputs={"port": port})
    if not result.ok:
        raise WrongResult(f"the requests became {result!r}")
    return statistics.median(map(float, result.stdout.split()))


def _direct(code: str, port: int) -> float:
    text = programs.output([PYTHON, "-I", "-c", f"port = {port}\n{code}"])
    return statistics.median(map(float, text.split()))


async def inspected_network(options: Options) -> list[Row]:
    """On new connections, and on one that is open."""
    new = Sample(name="over a direct connection")
    kept = Sample(name="over the proxy, not inspected")
    with _server() as (port, certificate):
        hosts = (f"{_NAME}:{port}", f"127.0.0.1:{port}")
        inspected = Network(
            mode="allow", hosts=hosts, inspect=hosts[:1], server_ca=certificate
        )
        async with AsyncExitStack() as stack:
            ours = await _session(stack, inspected)
            plain = await _session(stack, Network.allow(hosts))
            for _ in range(_TURNS):
                direct = _direct(_NEW, port)
                new.values.append(await _median(ours, _NEW, port) - direct)
                through = await _median(plain, _OPEN, port)
                kept.values.append(await _median(ours, _OPEN, port) - through)
    work = "inspected request, on a new connection"
    again = "inspected request, on an open connection"
    return [
        Row(work=work, ours=new, compare="absolute"),
        Row(work=again, ours=kept, compare="absolute"),
    ]


INSPECTED_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "inspected-network": inspected_network,
}
