"""Clients that know of no proxy reach the hosts that rules name exactly."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from toolcell.sandbox import Limits, Mount, Network, SandboxManager
from toolcell.sandbox.config.host_rules import hosts_file, loopback_addresses
from toolcell.sandbox.spi import Connection

from ...conftest import CONFINED, BackendRow
from ...support.cells.web_server import NAME, resolve_here, serving
from ...support.guard.redis_server import RedisServer
from ...support.web.ports import free_port

pytestmark = pytest.mark.anyio

DATABASE, MAIL, OTHER = "db.example.test", "mail.example.test", "other.example.test"
CLIENTS = "/clients"


@pytest.fixture(scope="module")
def database() -> Iterator[int]:
    """A real Redis server; its port of this machine's loopback."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), keeps=False, port=port)
        server.start()
        yield port
        server.stop()


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    with serving() as site:
        yield site.port


def rules(*ports: int) -> Network:
    """Return rules for all names at these ports."""
    names = (DATABASE, NAME, "127.0.0.1")
    hosts = [f"{name}:{port}" for name in names for port in ports]
    return Network.allow([*hosts, f"{MAIL}:25"])


@pytest.fixture(scope="module")
async def reaching(
    backend: BackendRow, database: int, site: int
) -> AsyncIterator[SandboxManager]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(Path(redis.__file__).parent, f"{folder}/redis")
        # It is for Python before 3.11.3, and for asynchronous clients alone.
        Path(folder, "async_timeout.py").write_text("timeout = None\n")
        config = backend.config(
            limits=Limits(wall_seconds=60),
            network=rules(database, site),
            mounts=[Mount(source=folder, target=CLIENTS)],
            env={"PYTHONPATH": CLIENTS},
        )
        async with SandboxManager(config, resolver=resolve_here) as manager:
            yield manager


STORE = f"""
import redis
with redis.Redis("{DATABASE}", port) as client:
    client.set("k", "v" * 200_000)
    print(len(client.get("k")))
"""


def told(connections: tuple[Connection, ...]) -> list[tuple[str, int, str]]:
    return [
        (connection.host, connection.port, connection.verdict)
        for connection in connections
    ]


@pytest.mark.promise("QN10")
async def test_a_driver_of_a_database_reaches_its_rule(
    reaching: SandboxManager, database: int
) -> None:
    result = await reaching.run(STORE, inputs={"port": database})

    assert (result.status, result.stdout) == ("ok", "200000\n"), result.stderr
    assert told(result.connections) == [(DATABASE, database, "allowed")]
    assert result.connections[0].bytes_out > 200_000 < result.connections[0].bytes_in
    assert result.usage.network_bytes > 400_000


@pytest.mark.promise("QN10")
async def test_runs_and_commands_of_a_session_take_turns(
    reaching: SandboxManager, database: int
) -> None:
    code = f"port = {database}\n{STORE}"
    async with reaching.session() as session:
        for _ in range(2):
            result = await session.run(STORE, inputs={"port": database})
            assert (result.status, len(result.connections)) == ("ok", 1), result.stderr
            command = await session.exec(["python3", "-c", code])
            done = await command.wait()
            assert (done.status, len(done.connections)) == ("ok", 1), done.stderr


CONNECT = """
import socket
with socket.create_connection((host, port), 10) as way:
    way.sendall(b"GET / HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\n" % called.encode())
    print(way.recv(12).decode())
"""


@pytest.mark.promise("QN10", "QN3")
@pytest.mark.parametrize(
    ("called", "answer", "verdict"),
    [("", "HTTP/1.1 200", "allowed"), (OTHER, "", "refused")],
    ids=["its host", "another host"],
)
async def test_http_is_for_the_host_of_the_rule(
    reaching: SandboxManager, site: int, called: str, answer: str, verdict: str
) -> None:
    inputs = {"host": NAME, "port": site, "called": called or f"{NAME}:{site}"}
    result = await reaching.run(CONNECT, inputs=inputs)

    assert result.stdout.strip() == answer, result.stderr
    assert told(result.connections) == [(NAME, site, verdict)]


@pytest.mark.promise("QN10", "E-36")
async def test_a_run_with_fewer_rules_reaches_no_more(
    reaching: SandboxManager, database: int, site: int
) -> None:
    inputs = {"host": DATABASE, "port": database, "called": DATABASE}
    narrow = await reaching.run(CONNECT, inputs=inputs, network=rules(site))
    none = await reaching.run(CONNECT, inputs=inputs, network=Network())

    for result in (narrow, none):
        assert result.exception is not None
        assert result.exception.type == "ConnectionRefusedError"
        assert result.connections == ()


@pytest.mark.promise("QN10")
async def test_rules_that_change_hold_for_listeners(
    reaching: SandboxManager, database: int, site: int
) -> None:
    async with reaching.session() as session:
        before = await session.run(STORE, inputs={"port": database})
        await session.set_network(rules(site))
        inputs = {"host": DATABASE, "port": database, "called": DATABASE}
        after = await session.run(CONNECT, inputs=inputs)
        await session.set_network(rules(site, database))
        again = await session.run(STORE, inputs={"port": database})

    assert (before.status, again.status) == ("ok", "ok"), again.stderr
    assert after.exception is not None
    assert after.exception.type == "ConnectionRefusedError"


@pytest.mark.promise("QN10")
async def test_a_host_that_does_not_answer_is_recorded(
    reaching: SandboxManager,
) -> None:
    code = CONNECT.replace("way.sendall", "way.recv(1) or exit(9)\n    way.sendall")
    inputs = {"host": MAIL, "port": 25, "called": MAIL}
    result = await reaching.run(code, inputs=inputs)

    # The rules allow the name, and it leads to an address that they do not name.
    assert result.exit_code == 9, result.stderr
    assert told(result.connections) == [(MAIL, 25, "refused")]


def test_names_have_addresses_of_the_loopback() -> None:
    hosts = ["b.test:1", "*.c.test:2", "10.0.0.5:3", "a.test:4", "a.test:5", "cell:6"]

    assert loopback_addresses(hosts) == {"a.test": "127.77.0.1", "b.test": "127.77.0.2"}
    assert hosts_file(hosts).endswith("cell\n127.77.0.1 a.test\n127.77.0.2 b.test\n")
    assert len(loopback_addresses(f"h{n}.test:1" for n in range(999))) == 64


@pytest.mark.promise("QN10")
@pytest.mark.slow
async def test_confined_cells_say_that_names_have_no_address() -> None:
    config = CONFINED.config(network=Network.allow([f"{DATABASE}:5432", "a.test:443"]))
    inputs = {"host": DATABASE, "port": 5432, "called": DATABASE}
    async with SandboxManager(config) as manager, manager.session() as session:
        failed = await session.run(CONNECT, inputs=inputs)
        command = await session.exec(["false"])
        results = [failed, await command.wait()]
        fine = await session.run("1")

    for result in results:
        [warning] = result.warnings
        assert f"no connection to {DATABASE}:5432: " in warning
        assert "HTTPS_PROXY" in warning
    assert fine.warnings == ()
