"""A Ray cluster of machines that are simulated, seen from outside.

All of Ray is in processes of its own: it changes a process for good, and the tests of
other files run in this one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from anyio import to_thread

from toolcell.cluster.spi import NodeRecord
from toolcell.core import SandboxUnavailableError

from ...conftest import missing
from ..guard.redis_server import RedisServer
from ..process_tree import arguments, below, runs

MAIN = Path(__file__).with_name("ray_main.py")
TOKEN = "5a" * 32
ENVIRON = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": TOKEN,
    "RAY_worker_niceness": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
}


def own_address() -> str:
    """Return the address of this machine that Ray gives to its processes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # Nothing is sent; TEST-NET-3 is nowhere.
            asking.connect(("203.0.113.1", 80))
        except OSError:
            return "127.0.0.1"
        return str(asking.getsockname()[0])


class RayProcesses:
    """The processes of a Ray cluster; it is a `Directory`, by way of a `RayDirectory`.

    Args:
        log: A file for what they print.
        environ: Variables for them.
    """

    def __init__(self, log: Path, environ: dict[str, str]) -> None:
        if find_spec("ray") is None:
            missing("Ray is not installed")
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, MAIN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log
        self._lock = threading.Lock()
        self.address = self._exchange({"environ": environ})

    def _exchange(self, asked: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._lock:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        assert line, self._log.read_text()[-5000:]
        return json.loads(line)

    async def ask(self, op: str, **fields: Any) -> Any:
        """Have something done. Raises SandboxUnavailableError if it fails."""
        asked = {"op": op, **fields}
        answer = await to_thread.run_sync(self._exchange, asked)
        if isinstance(answer, dict) and "error" in answer:
            raise SandboxUnavailableError(answer["error"], hint="see the test's log")
        return answer

    async def nodes(self) -> Sequence[NodeRecord]:
        return [NodeRecord(**each) for each in await self.ask("nodes")]

    async def tell(self, driver: str, waiting: int) -> None:
        await self.ask("tell", waiting=waiting)

    async def waiting(self) -> int:
        return 0

    def driver(self, code: str, environ: dict[str, str]) -> subprocess.Popen[str]:
        """Start a driver that finds the nodes by Ray, and runs a program in a session.

        Args:
            code: The program.
            environ: The whole environment of the process.
        """
        process = subprocess.Popen(
            [sys.executable, MAIN.with_name("driver_main.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            text=True,
        )
        assert process.stdin is not None
        asked = {"address": self.address, "code": code}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return process

    def actors(self, kind: str) -> list[int]:
        """Return the processes of our actors of a kind, such as `NodeActor`."""
        title = f"ray::{kind}".encode()
        return [
            pid for pid in below(self.process.pid) if arguments(pid).startswith(title)
        ]

    def end(self) -> None:
        left = below(self.process.pid)
        try:
            self.process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        for pid, started in left.items():
            if runs(pid, started):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_with_tables_in_redis(folder: Path, port: int) -> Iterator[RayProcesses]:
    """Yield a Ray cluster whose head can come back.

    Args:
        folder: An empty folder.
        port: A free port of loopback.
    """
    redis = RedisServer(folder, keeps=False, port=port)
    redis.start()
    address = {"RAY_REDIS_ADDRESS": f"127.0.0.1:{port}"}
    started = RayProcesses(folder / "log", {**ENVIRON, **address})
    yield started
    started.end()
    redis.stop()
