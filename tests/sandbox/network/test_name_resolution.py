"""Names are looked up beside everything else, and nobody keeps others from it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from toolcell.sandbox import Limits, Network, SandboxManager
from toolcell.sandbox.network.name_resolution import MAX_LOOKUPS, NameResolver

from ...conftest import SUBPROCESS
from ...support.polling import until

pytestmark = pytest.mark.anyio

OPENS = """
import threading, urllib.request
def open(number):
    try: urllib.request.urlopen(f"http://{number}.%s.example/")
    except OSError: pass
threads = [threading.Thread(target=open, args=(n,)) for n in range(%d)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


class NameServer:
    """Answers when it is told to; names under `fast` at once."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self.at_work = 0
        self.most = 0
        self._lock = threading.Lock()

    def find(self, host: str, port: int) -> list[str]:
        with self._lock:
            self.asked += 1
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        if host != "fast":
            self.answers.wait(120)
        with self._lock:
            self.at_work -= 1
        if host == "nowhere":
            raise OSError("no such name")
        return ["192.0.2.1"]


@contextmanager
def name_server() -> Iterator[NameServer]:
    server = NameServer()
    try:
        yield server
    finally:
        server.answers.set()


@pytest.mark.promise("A24")
async def test_runs_with_a_slow_name_server_slow_no_other_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with name_server() as server:

        def getaddrinfo(host: str | bytes, port: int, *_: Any, **__: Any) -> list[Any]:
            name = "fast" if "fast" in str(host) else "slow"
            return [(0, 0, 0, "", (each, port)) for each in server.find(name, port)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        network = Network.allow(["*.slow.example:80", "*.fast.example:80"])
        config = SUBPROCESS.config(limits=Limits(wall_seconds=30), network=network)
        async with (
            SandboxManager(config) as manager,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(3):
                tasks.start_soon(manager.run, OPENS % ("slow", 4))
            at_once = min(8, 4 + (os.cpu_count() or 1))
            await until(lambda: server.at_work >= at_once)
            result = await manager.run(OPENS % ("fast", 1))
            tasks.cancel_scope.cancel()

    [connection] = result.connections
    assert "leads to 192.0.2.1" in connection.reason


@pytest.mark.promise("A24")
async def test_a_slow_name_server_keeps_no_other_run_and_agent_from_theirs() -> None:
    with name_server() as server:
        resolver = NameResolver(server.find)
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                greedy = resolver.of_run("greedy")
                for _ in range(8):
                    tasks.start_soon(greedy, "slow", 443)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(60):
                for agent in ("other", "third", None):
                    assert await resolver.of_run(agent)("fast", 443) == ["192.0.2.1"]
            tasks.cancel_scope.cancel()


@pytest.mark.promise("A24")
async def test_a_run_of_an_agent_leaves_room_to_its_others() -> None:
    with name_server() as server:
        resolver = NameResolver(server.find)
        async with anyio.create_task_group() as tasks:
            slow = resolver.of_run("a")
            for _ in range(100):
                tasks.start_soon(slow, "slow", 443)
            await until(lambda: server.at_work == 4)
            with anyio.fail_after(60):
                assert await resolver.of_run("a")("fast", 443) == ["192.0.2.1"]
            assert server.asked == 5
            tasks.cancel_scope.cancel()


@pytest.mark.promise("A24")
async def test_what_was_given_up_holds_its_place_until_the_name_server_answers() -> (
    None
):
    with name_server() as server:
        resolver = NameResolver(server.find)
        for _ in range(200):
            with anyio.CancelScope() as scope:
                scope.deadline = anyio.current_time() + 0.001
                await resolver.of_run("greedy")("slow", 443)
        held = resolver._of_agents.total()
        await until(lambda: server.at_work == held)
        assert server.most <= MAX_LOOKUPS

        waiting = resolver.of_run("greedy")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiting, "fast", 443)
            await anyio.wait_all_tasks_blocked()
            assert server.asked == held
            server.answers.set()


async def test_many_agents_together_pass_no_limit() -> None:
    with name_server() as server:
        resolver = NameResolver(server.find)
        async with anyio.create_task_group() as tasks:
            for agent in range(MAX_LOOKUPS):
                for _ in range(2):
                    tasks.start_soon(resolver.of_run(f"agent {agent}"), "slow", 443)
            await anyio.wait_all_tasks_blocked()
            assert server.most <= MAX_LOOKUPS
            server.answers.set()
        assert server.asked == 2 * MAX_LOOKUPS


async def test_a_name_without_an_address_is_an_error() -> None:
    with name_server() as server:
        server.answers.set()
        with pytest.raises(OSError, match="no such name"):
            await NameResolver(server.find).of_run("a")("nowhere", 443)
