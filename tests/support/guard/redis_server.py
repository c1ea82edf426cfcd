"""A real Redis server for tests, on a socket of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from ...conftest import missing

UNTIL_IT_RUNS = Retry(ConstantBackoff(0.05), 1200)
"""For a minute, or more: a server may be starting."""


class RedisServer:
    """A server that can be stopped and started again.

    Args:
        folder: Its data.
        keeps: Whether it keeps them, by `appendonly`.
        port: A port of loopback for clients that know no sockets; 0: none.
    """

    def __init__(self, folder: Path, *, keeps: bool = True, port: int = 0) -> None:
        self._program = shutil.which("redis-server") or ""
        if not self._program:
            missing("there is no redis-server")
        self._folder = folder
        self._keeps = "yes" if keeps else "no"
        self._port = str(port)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder}/redis.sock"

    def start(self) -> None:
        """Start, and wait until it answers."""
        self._process = subprocess.Popen(
            [
                *(self._program, "--port", self._port, "--bind", "127.0.0.1"),
                *("--unixsocket", "redis.sock"),
                *("--save", "", "--appendonly", self._keeps, "--appendfsync", "always"),
            ],
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
        )
        with redis.Redis.from_url(
            self.url, retry=UNTIL_IT_RUNS, retry_on_error=[redis.ConnectionError]
        ) as client:
            client.ping()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an administrator does."""
        self._end(signal.SIGTERM)

    def _end(self, by: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it hang; what it is sent meanwhile it does later."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """Return a client of the test's own."""
        return redis.Redis.from_url(self.url)
