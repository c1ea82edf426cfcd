"""Nodes and drivers in processes of their own, beside a real Redis."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from toolcell.cluster import RedisDirectory, new_token
from toolcell.cluster.spi import NodeRecord

from ..cells.leak_check import owner_of

HERE = Path(__file__).parent


class NodeProcess:
    """A node: its process, its record and its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        self.record = NodeRecord.model_validate_json(line)
        self.owner = owner_of(process.pid)
        """The name that its folders and groups have."""


class ClusterProcesses:
    """Starts the nodes of a cluster, and ends what is left of them.

    Args:
        url: The Redis server of the directory.
        folder: For logs.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.token = new_token()
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def directory(self) -> RedisDirectory:
        return RedisDirectory(self.url, token=self.token, seconds=30.0)

    def node(
        self, name: str, *, lost_seconds: float = 10.0, **sandbox: Any
    ) -> NodeProcess:
        """Start a node; return when drivers can connect."""
        log = self._folder / f"{name}.log"
        asked = {
            "name": name,
            "lost_seconds": lost_seconds,
            "sandbox": {"backend": "subprocess", **sandbox},
        }
        return NodeProcess(self._start("agent_main.py", asked, log), log)

    def driver(self, code: str, *, uploads: bool = False) -> subprocess.Popen[str]:
        """Start a driver that runs one program in a session, beside an upload."""
        asked = {"code": code, "uploads": uploads}
        return self._start("driver_main.py", asked, self._folder / "driver")

    def _start(
        self, script: str, asked: dict[str, Any], log: Path
    ) -> subprocess.Popen[str]:
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, HERE / script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._processes.append(process)
        assert process.stdin is not None
        settings = {"url": self.url, "token": self.token, **asked}
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        return process

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
