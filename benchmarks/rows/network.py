"""Rows on the network: what the way through a cell's channel costs."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from baselines import programs
from baselines.programs import PYTHON
from harness.measure import Contender, Row, Sample, WrongResult, against, take_turns
from harness.options import Options
from harness.processes import cells_cpu_seconds

from toolcell.sandbox import Limits, Network, SandboxConfig, SandboxManager, Session

_BODY_MB = 100
_REQUESTS = 20

_SERVER = """
import socket, threading
BLOCK = b"x" * 1_000_000
def serve(client):
    with client:
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            head += client.recv(65536)
        blocks = int(head.split(b" ")[1][1:])
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % (
            blocks * len(BLOCK)))
        for _ in range(blocks):
            client.sendall(BLOCK)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
_CLIENT = """
import os, socket, time
def get(port, path):
    way = os.environ.get("http_proxy")
    to = ("127.0.0.1", port)
    base = ""
    if way:
        host, _, number = way[7:].partition(":")
        to, base = (host, int(number)), f"http://127.0.0.1:{port}"
    began = time.perf_counter()
    first, size, buffer = 0.0, 0, bytearray(262144)
    with socket.create_connection(to) as way:
        head = f"GET {base}/{path} HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n"
        way.sendall(head.encode())
        while got := way.recv_into(buffer):
            first = first or time.perf_counter() - began
            size += got
    return first * 1000, (time.perf_counter() - began) * 1000, size
"""
_BODY = f"{_CLIENT}\nfirst, whole, size = get(port, {_BODY_MB})\n"
_BODY += f"assert size > {_BODY_MB}_000_000\nprint(whole)\n"
_FIRST = f"{_CLIENT}\nprint(*[get(port, 0)[0] for _ in range({_REQUESTS})])\n"


@contextmanager
def _server() -> Iterator[int]:
    """Serve in its own process; give its port."""
    process = subprocess.Popen(
        [PYTHON, "-I", "-c", _SERVER], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def _inside(session: Session, code: str, port: int) -> list[float]:
    result = await session.run(code, fresh=True, inputs={"port": port})
    if not result.ok:
        raise WrongResult(f"the download became {result!r}")
    return [float(word) for word in result.stdout.split()]


def _outside(code: str, port: int) -> list[float]:
    text = programs.output([PYTHON, "-I", "-c", f"port = {port}\n{code}"])
    return [float(word) for word in text.split()]


async def _rows(
    config: SandboxConfig, place: str, gates: tuple[float, float], runs: int
) -> list[Row]:
    """Measure one big body and many small ones, through the channel and directly.

    The gates are of the big body: its milliseconds, and its share of the direct way.
    """
    first = Sample(name="over a direct connection")
    spent = Sample(name="host, supervisor and program")
    with _server() as port:
        network = Network.allow([f"127.0.0.1:{port}"])
        limits = Limits(network_bytes=2**40, connections=100_000)
        config = config.model_copy(update={"network": network, "limits": limits})
        async with SandboxManager(config) as sandbox, sandbox.session() as session:

            async def ours() -> float:
                began = cells_cpu_seconds()
                [whole] = await _inside(session, _BODY, port)
                seconds = cells_cpu_seconds() - began
                spent.values.append(seconds * 1_000 * 2**30 / (_BODY_MB * 1_000_000))
                return whole

            async def theirs() -> float:
                return _outside(_BODY, port)[0]

            contenders = [
                Contender(name="sandbox.run", run=ours, burst=1),
                Contender(name="python3, directly", run=theirs, burst=1),
            ]
            bodies = await take_turns(contenders, runs)
            for _ in range(5):
                direct = statistics.median(_outside(_FIRST, port))
                through = await _inside(session, _FIRST, port)
                first.values += [each - direct for each in through]
    own = [each.by_own_clock() for each in bodies]
    body = f"{place}, {_BODY_MB} MB over the network"
    rows = [
        Row(work=body, ours=own[0], compare="absolute", gate=gates[0]),
        *against(body, own, [gates[1]], "share"),
        Row(work=f"{place}, first byte", ours=first, compare="absolute", gate=5),
    ]
    if config.backend == "subprocess":
        # Processes of containers are not below this one.
        name = f"{place}, CPU time of a GiB over the network"
        rows.append(Row(work=name, ours=spent, compare="absolute"))
    return rows


async def network(options: Options) -> list[Row]:
    """Through the channel of a process of this machine."""
    config = SandboxConfig(backend="subprocess", python=PYTHON)
    return await _rows(config, "subprocess", (1_000, 2), options.runs)


async def docker_network(runtime: str, options: Options) -> list[Row]:
    """Through the engine's stream."""
    programs.needs_docker(options.image, runtime)
    config = SandboxConfig(backend="docker", image=options.image, runtime=runtime)
    return await _rows(config, f"docker/{runtime}", (2_500, 4), options.runs)


NETWORK_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "subprocess-network": network,
    "docker-network": partial(docker_network, "runc"),
}
