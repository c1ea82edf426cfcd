"""A real Redis Cluster of three nodes for tests, on loopback."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis

from ...conftest import missing
from .redis_server import UNTIL_IT_RUNS

NODES = 3
_SLOTS = 16_384
_BUS = 10_000
_SECONDS = 60.0


class RedisCluster:
    """Three nodes, each with a third of the slots and without a replica.

    Args:
        folder: Their data.
    """

    def __init__(self, folder: Path) -> None:
        self._program = shutil.which("redis-server") or ""
        if not self._program:
            missing("there is no redis-server")
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []

    @property
    def url(self) -> str:
        """The first node; it names the others."""
        return f"redis://127.0.0.1:{self.ports[0]}"

    def start(self) -> None:
        """Start the nodes, and wait until each knows all slots."""
        for number in range(NODES):
            self._start_node(number)
        clients = [self.node(number) for number in range(NODES)]
        bounds = [_SLOTS * number // NODES for number in range(NODES + 1)]
        for number, client in enumerate(clients):
            last = bounds[number + 1] - 1
            _ask(client, "CLUSTER ADDSLOTSRANGE", bounds[number], last)
            _ask(client, "CLUSTER SET-CONFIG-EPOCH", number + 1)
        for port in self.ports[1:]:
            _ask(clients[0], "CLUSTER MEET", "127.0.0.1", port)
        deadline = time.monotonic() + _SECONDS
        while not all(map(_is_whole, clients)):
            assert time.monotonic() < deadline, "the cluster does not come together"
            time.sleep(0.01)
        for client in clients:
            client.close()

    def node(self, number: int) -> redis.Redis:
        """Return a client of one node."""
        return redis.Redis(
            port=self.ports[number],
            retry=UNTIL_IT_RUNS,
            retry_on_error=[redis.ConnectionError],
            decode_responses=True,
        )

    def pause(self, number: int) -> None:
        """Let a node hang."""
        self._nodes[number].send_signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Let it go on."""
        self._nodes[number].send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all nodes with SIGKILL."""
        for node in self._nodes:
            node.kill()
            node.wait()

    def _start_node(self, number: int) -> None:
        """Start a node on a port that nobody else was quicker to take."""
        folder = self._folder / f"node-{number}"
        folder.mkdir()
        options = ["--save", "", "--cluster-enabled", "yes", "--bind", "127.0.0.1"]
        # Longer than any pause of a test machine: no node is to be given up.
        options += ["--cluster-node-timeout", "60000"]
        while len(self.ports) == number:
            port = _free_port()
            node = subprocess.Popen(
                [self._program, *options, "--port", str(port)],
                cwd=folder,
                stdout=subprocess.DEVNULL,
            )
            if _answers(node, port):
                self._nodes.append(node)
                self.ports.append(port)


def _answers(node: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a node answers at its port; return False if it has ended."""
    with redis.Redis(port=port, socket_timeout=1) as client:
        while node.poll() is None:
            with suppress(redis.RedisError):
                if client.info("server")["process_id"] == node.pid:
                    return True
            time.sleep(0.01)
    return False


def _is_whole(client: redis.Redis) -> bool:
    facts = _ask(client, "CLUSTER INFO")
    known = facts["cluster_known_nodes"]
    return bool(facts["cluster_state"] == "ok" and known == str(NODES))


def _ask(client: Any, *command: object) -> Any:
    return client.execute_command(*command)


def _free_port() -> int:
    """Return a port that is free, as is the port of the node's bus.

    Both are below those that Linux gives to whoever names none.
    """
    while True:
        port = random.randrange(10_000, 22_000)
        with ExitStack() as stack, suppress(OSError):
            for wanted in (port, port + _BUS):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", wanted))
            return port


@contextmanager
def redis_cluster(folder: Path) -> Iterator[RedisCluster]:
    """Yield a cluster that runs."""
    cluster = RedisCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
