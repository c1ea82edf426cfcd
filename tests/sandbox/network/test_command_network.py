"""The network of commands: the rules, limits and records of runs; attacked."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from toolcell.core import CellLostError
from toolcell.sandbox import Limits, Network, Process, SandboxManager, Session

from ...conftest import BackendRow
from ...support.cells.web_server import Site, resolve_here, self_signed, serving

pytestmark = pytest.mark.anyio

GET = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
"""
HOLD = """
import os, socket, sys
host, _, port = os.environ['http_proxy'][7:].partition(':')
way = socket.create_connection((host, int(port)))
to = sys.argv[1]
way.sendall(f'CONNECT {to} HTTP/1.1\\r\\nHost: {to}\\r\\n\\r\\n'.encode())
print(way.recv(100).split(b'\\r\\n')[0].decode(), flush=True)
print('end', way.recv(1), flush=True)
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory() as folder, serving() as plain:
        assert self_signed(Path(folder))
        yield plain


@pytest.fixture
async def session(backend: BackendRow, site: Site) -> AsyncIterator[Session]:
    network = Network.allow(site.rules)
    config = backend.config(network=network, limits=Limits(connections=5))
    async with (
        SandboxManager(config, resolver=resolve_here) as manager,
        manager.session() as session,
    ):
        yield session


async def get(session: Session, url: str) -> Process:
    return await session.exec(["python3", "-c", GET, url])


async def test_a_command_reaches_what_the_session_may(
    session: Session, site: Site
) -> None:
    allowed = await (await get(session, f"{site.url}/a")).wait()
    refused = await (await get(session, f"http://127.0.0.1:{site.port + 1}/")).wait()

    assert allowed.ok, allowed.stderr
    [record] = allowed.connections
    assert (record.verdict, record.port) == ("allowed", site.port)
    assert allowed.usage.connections == 1
    assert allowed.usage.network_bytes == record.bytes_in + record.bytes_out > 0
    assert refused.exit_code == 1
    assert [connection.verdict for connection in refused.connections] == ["refused"]


async def test_commands_and_a_run_have_networks_of_their_own(
    session: Session, site: Site
) -> None:
    code = f"{GET.replace('sys.argv[1]', 'url')}"
    one, two = await get(session, site.url), await get(session, site.url)
    run = await session.run(code, inputs={"url": site.url})
    for result in (run, await one.wait(), await two.wait()):
        assert result.ok, result.stderr
        assert len(result.connections) == 1


@pytest.mark.promise("E-67")
async def test_without_network_a_command_has_none(backend: BackendRow) -> None:
    code = (
        "import os\n"
        "print([name for name in os.environ if 'proxy' in name.lower()])\n"
        "rows = [line.split() for line in open('/proc/net/tcp')][1:]\n"
        "print([row[1] for row in rows if row[3] == '0A'])"
    )
    async with (
        SandboxManager(backend.config()) as manager,
        manager.session() as session,
    ):
        result = await (await session.exec(["python3", "-c", code])).wait()
        assert result.stdout == "[]\n[]\n", result.stderr
        assert result.connections == ()


@pytest.mark.promise("E-67", "E-68")
async def test_the_way_of_a_command_ends_with_it(session: Session, site: Site) -> None:
    """A process that is left behind, or another command, has no way out by it."""
    late = f"echo $http_proxy; (sleep 1; python3 -c {GET!r} {site.url} > late 2>&1) &"
    first = await (await session.exec(late, env={"no_proxy": ""})).wait()
    way = first.stdout.strip()
    assert way.startswith("http://127.0.0.1:")
    borrowed = await session.exec(
        ["python3", "-c", GET, site.url],
        env={"http_proxy": way, "HTTP_PROXY": way, "no_proxy": "", "NO_PROXY": ""},
    )
    result = await borrowed.wait()
    assert result.exit_code == 1 and result.connections == ()
    wait = "until test -s late; do sleep 0.05; done; cat late"
    said = await (await session.exec(wait, timeout_seconds=30)).wait()
    assert "Error" in said.stdout or "rror" in said.stdout, said.stdout


async def test_rules_change_for_commands_that_run(session: Session, site: Site) -> None:
    process = await session.exec(["python3", "-c", HOLD, f"127.0.0.1:{site.port}"])
    output = process.output()
    assert b" 200 " in (await anext(output))[1]
    await session.set_network(Network.none)
    assert (await anext(output))[1] == b"end b''\n"
    result = await process.wait()
    assert [connection.reason for connection in result.connections] == [
        "the rules have changed"
    ]
    hosts = site.rules
    await session.set_network(Network.allow(hosts))
    assert (await (await get(session, site.url)).wait()).ok


@pytest.mark.promise("E-50")
async def test_limits_hold_for_each_command(session: Session, site: Site) -> None:
    code = (
        "import sys, urllib.request\nfor n in range(8):\n"
        "    try: urllib.request.urlopen(sys.argv[1], timeout=60).read(); print('ok')\n"
        "    except OSError: print('no')"
    )
    for _ in range(2):
        process = await session.exec(["python3", "-c", code, site.url])
        result = await process.wait()
        assert result.stdout.split() == ["ok"] * 5 + ["no"] * 3
        assert "used up its 5 connections" in result.warnings[0]


async def test_a_lost_cell_ends_connections(backend: BackendRow, site: Site) -> None:
    network = Network.allow([f"127.0.0.1:{site.port}"])
    async with SandboxManager(backend.config(network=network)) as manager:
        async with manager.session() as session:
            process = await session.exec(
                ["python3", "-c", HOLD, f"127.0.0.1:{site.port}"]
            )
            assert b" 200 " in (await anext(process.output()))[1]
        with pytest.raises(CellLostError), anyio.fail_after(60):
            await process.wait()
