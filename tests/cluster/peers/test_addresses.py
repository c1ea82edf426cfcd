"""Nodes and drivers where a name has several addresses."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, cast

import anyio
import pytest

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent
from toolcell.cluster.directory import connect
from toolcell.cluster.spi import NodeRecord
from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.sandbox import Sandbox

from ...support.cluster.null_nodes import TOKEN, NullSandbox, driver
from ...support.cluster.patience import LONG, refusal

pytestmark = pytest.mark.anyio
NAME = "node.example"
# Of no machine: RFC 5737.
ELSEWHERE = "192.0.2.1"
Resolve = Callable[..., None]


@pytest.fixture
def name_of(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Give a name the addresses that a test wants."""
    resolve = socket.getaddrinfo

    def set_addresses(*addresses: str) -> None:
        def found(host: Any, *args: Any, **options: Any) -> list[Any]:
            name = host.decode() if isinstance(host, bytes) else host
            hosts = addresses if name == NAME else [host]
            return [each for one in hosts for each in resolve(one, *args, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", found)

    return set_addresses


def node(host: str, **options: Any) -> NodeAgent:
    cells = NullSandbox("one", 2)
    cells.waits = False
    options = {"token": TOKEN, "name": "one", "check_seconds": 1e6, **options}
    return NodeAgent(cast(Sandbox, cells), host=host, **options)


async def answers_at(record: NodeRecord, host: str) -> bool:
    async with driver(record.model_copy(update={"host": host})) as sandbox:
        return (await sandbox.run("it")).value == "it"


async def why_not(record: NodeRecord) -> str:
    sandbox = ClusterSandbox(FixedNodes([record]), token=TOKEN, wait_seconds=LONG)
    return (await refusal(sandbox)).message


@contextmanager
def taken(host: str, port: int = 0) -> Iterator[int]:
    """Yield a port where somebody listens, and never answers."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        yield int(listener.getsockname()[1])


async def test_a_node_listens_at_each_address_of_its_name(name_of: Resolve) -> None:
    name_of("127.0.0.1", "127.0.0.2", "::1")
    async with node(NAME) as agent:
        assert agent.record.host == NAME
        for host in ("127.0.0.1", "127.0.0.2", "::1"):
            assert await answers_at(agent.record, host)
        assert "refused" in await why_not(
            agent.record.model_copy(update={"host": "127.0.0.3"})
        )


async def test_a_port_that_is_taken_at_one_address_is_refused_and_named(
    name_of: Resolve,
) -> None:
    name_of("127.0.0.1", "::1")
    with taken("::1") as port:
        with pytest.raises(SandboxUnavailableError) as caught:
            async with node(NAME, port=port):
                pass
    assert f"[::1]:{port}: Address already in use" in caught.value.message
    # Nothing of the attempt is left.
    with taken("127.0.0.1", port):
        pass


async def test_an_address_of_another_machine_is_left_out_and_told(
    name_of: Resolve, caplog: pytest.LogCaptureFixture
) -> None:
    name_of(ELSEWHERE, "127.0.0.1")
    with caplog.at_level(logging.WARNING):
        async with node(NAME) as agent:
            assert await answers_at(agent.record, "127.0.0.1")
    assert f"does not listen at {ELSEWHERE}:0" in caplog.text

    name_of(ELSEWHERE)
    with pytest.raises(SandboxUnavailableError, match="Cannot assign"):
        async with node(NAME):
            pass


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_a_node_that_listens_anywhere_needs_a_host_for_drivers(host: str) -> None:
    with pytest.raises(ConfigError, match="public_host"):
        node(host)
    async with node(host, public_host="localhost") as agent:
        assert agent.record.host == "localhost"


@pytest.mark.promise("QL5")
async def test_drivers_come_to_the_port_that_is_published() -> None:
    with socket.create_server(("127.0.0.1", 0)) as router:
        published = router.getsockname()[1]
        async with node("127.0.0.1", public_port=published) as agent:
            assert agent.record.port == published


@pytest.mark.parametrize("first", ["nobody", "silent", "other node"])
async def test_a_driver_tries_each_address_of_a_node(
    name_of: Resolve, first: str
) -> None:
    """The first one leads nowhere, is a hole, or leads to another machine."""
    name_of("127.0.0.2", "127.0.0.1")
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(node("127.0.0.1"))
        port = agent.record.port
        if first == "silent":
            stack.enter_context(taken("127.0.0.2", port))
        if first == "other node":
            await stack.enter_async_context(node("127.0.0.2", port=port))
        assert await answers_at(agent.record, NAME)


@pytest.mark.promise("QL4")
async def test_a_driver_says_what_was_wrong_at_each_address(name_of: Resolve) -> None:
    name_of("127.0.0.2", "::1")
    async with node("127.0.0.1") as agent:
        why = await why_not(agent.record.model_copy(update={"host": NAME}))
    port = agent.record.port
    assert f"127.0.0.2:{port}: Connection refused" in why
    assert f"[::1]:{port}: Connection refused" in why


async def test_a_connection_is_closed_whose_driver_goes_as_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    class Connection:
        def close(self) -> None:
            closed.append("it")

    with anyio.CancelScope() as scope:

        async def made(*_: Any) -> Any:
            scope.cancel()
            return Connection()

        monkeypatch.setattr(connect, "_meet", made)
        record = NodeRecord(name="one", host="127.0.0.1", port=1, fingerprint="0" * 64)
        await connect.meet(record, b"key")
    assert closed == ["it"]
