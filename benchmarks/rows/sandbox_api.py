"""Rows on the sandbox API: commands and files through a server in its own process."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from baselines.programs import PYTHON, TOOLCELL
from harness.measure import (
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager

_MEGABYTES = 100
_SIZE = _MEGABYTES * 1024 * 1024
_ADDED_MS = 10
_FILE_MS = _MEGABYTES / 50 * 1000
_CONFIG = f"""
profile = "development"
[sandbox]
backend = "subprocess"
python = "{PYTHON}"
[sandbox.limits]
disk_mib = 400
memory_mib = 1024
[state]
folder = "state"
[[policies]]
agent_id = "a"
allow = ["sandbox.*"]
"""


class _Client:
    """A client of one sandbox, on one connection."""

    def __init__(self, url: str, key: str) -> None:
        place = urlsplit(url)
        self._http = http.client.HTTPConnection(place.hostname or "", place.port)
        made = json.loads(self.ask("POST", "/sandboxes", b"{}", {"x-api-key": key}))
        self._headers = {
            "e2b-sandbox-id": made["sandboxID"],
            "x-access-token": made["envdAccessToken"],
        }

    def ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> bytes:
        with suppress(BrokenPipeError):  # The answer says why.
            self._http.request(method, path, body, headers)
        answer = self._http.getresponse()
        data = answer.read()
        if answer.status >= 400:
            raise WrongResult(f"{path} was answered {answer.status}: {data[:200]!r}")
        return data

    async def command(self) -> None:
        text = json.dumps({"process": {"cmd": "true"}, "stdin": False}).encode()
        message = b"\0" + len(text).to_bytes(4, "big") + text
        path = "/process.Process/Start"
        if b"exit status 0" not in self.ask("POST", path, message, self._headers):
            raise WrongResult("`true` did not end well")

    async def upload(self) -> None:
        kind = {"content-type": "application/octet-stream"}
        self.ask("POST", "/files?path=data", _data(), {**self._headers, **kind})

    async def download(self) -> None:
        if len(self.ask("GET", "/files?path=data", None, self._headers)) != _SIZE:
            raise WrongResult("bytes were lost")


@cache
def _data() -> bytes:
    return os.urandom(_SIZE)


@contextmanager
def _client() -> Iterator[_Client]:
    try:
        import python_multipart  # noqa: F401
        import wsproto  # noqa: F401
    except ImportError:
        raise Missing("the extra sandbox-api is not installed") from None
    with TemporaryDirectory() as folder:
        Path(folder, "toolcell.toml").write_text(_CONFIG)
        create = [TOOLCELL, "tokens", "create", "--agent", "a", "--form", "e2b"]
        done = subprocess.run(create, cwd=folder, check=True, capture_output=True)
        key = done.stdout.decode().strip()
        serve = [TOOLCELL, "serve", "--json", "--sandbox-api", "127.0.0.1:0"]
        with subprocess.Popen(serve, cwd=folder, stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                url = json.loads(server.stdout.readline())["url"]
                yield _Client(url, key)
            finally:
                server.terminate()


async def commands(options: Options) -> list[Row]:
    """`true` through the API against `session.exec` of it, guarded and recorded."""
    config = SandboxConfig(backend="subprocess", python=PYTHON, limits=Limits())
    with _client() as client:
        async with SandboxManager(config) as sandbox, sandbox.session() as session:

            async def native() -> None:
                if (await (await session.exec(["true"])).wait()).exit_code != 0:
                    raise WrongResult("`true` did not end well")

            contenders = [
                Contender(name="POST /process.Process/Start", run=client.command),
                Contender(name="session.exec", run=native),
            ]
            samples = await take_turns(contenders, options.runs)
    ours, base = samples
    added = Sample(
        name="the difference",
        values=[a - b for a, b in zip(ours.values, base.values, strict=True)],
    )
    bound = Row(
        work="what the API adds to a command",
        ours=added,
        compare="absolute",
        gate=_ADDED_MS,
    )
    return [*against("a command through the API", samples, [None], "share"), bound]


async def files(options: Options) -> list[Row]:
    """100 MB into a sandbox and out again, through the API and by a session's calls."""
    limits = Limits(disk_mib=4 * _MEGABYTES, memory_mib=1024)
    config = SandboxConfig(backend="subprocess", python=PYTHON, limits=limits)
    with _client() as client:
        async with SandboxManager(config) as sandbox, sandbox.session() as session:

            async def write() -> None:
                await session.write_file("data", _data())

            async def read() -> None:
                if len(await session.read_file("data")) != _SIZE:
                    raise WrongResult("bytes were lost")

            runs = max(1, options.runs // 4)
            up = await take_turns(
                [
                    Contender(name="POST /files", run=client.upload, burst=1),
                    Contender(name="session.write_file", run=write, burst=1),
                ],
                runs,
            )
            down = await take_turns(
                [
                    Contender(name="GET /files", run=client.download, burst=1),
                    Contender(name="session.read_file", run=read, burst=1),
                ],
                runs,
            )
    rows = []
    for work, samples in (("up", up), ("down", down)):
        work = f"100 MB {work} through the API"
        rows += against(work, samples, [None], "share")
        rows.append(Row(work=work, ours=samples[0], compare="absolute", gate=_FILE_MS))
    return rows


SANDBOX_API_ROWS = {"sandbox-api-commands": commands, "sandbox-api-files": files}
