"""A server of sandboxes on a port of its own, and a client of its routes."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2

from toolcell.guard import Approve
from toolcell.host import Host, HostConfig
from toolcell.host.e2b.app import SandboxAPI, open_app
from toolcell.host.http.serving import listen, serving
from toolcell.host.http.tokens import open_tokens
from toolcell.tools import ToolExecutionRecord

POLICIES = """
[[policies]]
agent_id = "a"
allow = ["sandbox.*"]
[[policies]]
agent_id = "b"
allow = ["sandbox.*"]
"""


def policies_without(tool: str, operation: str) -> str:
    """Return policies that deny agent `a` one operation of a tool."""
    when = f'{{ operation = {{ equals = "{operation}" }} }}'
    deny = f'deny = [{{ tools = ["{tool}"], when = {when} }}]'
    allow = 'allow = ["sandbox.*"]'
    return POLICIES.replace(allow, f"{allow}\n{deny}", 1)


@dataclass(frozen=True)
class Sandbox:
    """One sandbox, as a client knows it."""

    http: httpx2.AsyncClient
    id: str
    access: str

    @property
    def headers(self) -> dict[str, str]:
        return {"e2b-sandbox-id": self.id, "x-access-token": self.access}

    async def unary(self, method: str, **message: Any) -> httpx2.Response:
        return await self.http.post(f"/{method}", json=message, headers=self.headers)

    async def events(
        self, method: str, timeout_ms: int | None = None, **message: Any
    ) -> list[dict[str, Any]]:
        """Return the messages of a stream; the last one is its end."""
        headers = self.headers
        if timeout_ms is not None:
            headers["connect-timeout-ms"] = str(timeout_ms)
        answer = await self.http.post(
            f"/{method}", content=envelope(message), headers=headers
        )
        assert answer.status_code == 200, answer.text
        return envelopes(answer.content)

    async def command(self, script: str, **options: Any) -> tuple[bytes, Any]:
        """Run a script; return its output and the last two messages."""
        config = {"cmd": "/bin/bash", "args": ["-l", "-c", script]}
        events = await self.events(
            "process.Process/Start", process=config, stdin=False, **options
        )
        data = [event["event"].get("data", {}) for event in events if "event" in event]
        output = b"".join(b64decode(each.get("stdout", "")) for each in data)
        return output, events[-2:]

    @asynccontextmanager
    async def started(self, *argv: str, **config: Any) -> AsyncIterator[None]:
        """Start a command, whose client leaves at the end of the block."""
        process = {"cmd": argv[0], "args": argv[1:], **config}
        async with self.http.stream(
            "POST",
            "/process.Process/Start",
            content=envelope({"process": process}),
            headers=self.headers,
        ) as answer:
            # The connection is closed when nobody holds the iterator.
            chunks = answer.aiter_bytes()
            await anext(chunks)
            yield

    async def start(self, *argv: str, **config: Any) -> None:
        """Start a command, and leave it to itself."""
        async with self.started(*argv, **config):
            pass

    async def write(self, path: str, data: bytes) -> httpx2.Response:
        return await self.http.post(
            "/files",
            params={"path": path},
            content=data,
            headers={**self.headers, "content-type": "application/octet-stream"},
        )

    async def read(self, path: str) -> httpx2.Response:
        return await self.http.get(
            "/files", params={"path": path}, headers=self.headers
        )

    async def code(self, **message: Any) -> list[dict[str, Any]]:
        """Run code; return the lines of the answer."""
        headers = {**self.headers, "e2b-sandbox-port": "49999"}
        answer = await self.http.post("/execute", json=message, headers=headers)
        assert answer.status_code == 200, answer.text
        return [json.loads(line) for line in answer.text.splitlines()]


@dataclass(frozen=True)
class Service:
    """A server with tokens of two agents."""

    host: Host
    app: SandboxAPI
    url: str
    http: httpx2.AsyncClient
    keys: dict[str, str]

    def key(self, agent: str = "a") -> dict[str, str]:
        return {"x-api-key": self.keys[agent]}

    async def create(self, agent: str = "a", **message: Any) -> Sandbox:
        answer = await self.http.post(
            "/v2/sandboxes", json=message, headers=self.key(agent)
        )
        assert answer.status_code == 201, answer.text
        made = answer.json()
        return Sandbox(self.http, made["sandboxID"], made["envdAccessToken"])


async def written(service: Service, count: int) -> list[ToolExecutionRecord]:
    """Return the records; the last one may come just after its client's answer."""
    records = service.host.executor.records
    with anyio.fail_after(60):
        while len(found := records.all_records()) < count:
            await anyio.sleep(0.01)
    return found


async def approve_next(service: Service, **edited: Any) -> None:
    """Approve the next action that asks, with these arguments changed."""
    approvals = service.host.approvals
    with anyio.fail_after(60):
        while not (found := await approvals.pending()):
            await anyio.sleep(0.01)
    [request] = found
    arguments: Any = {**request.call.arguments, **edited}
    await approvals.answer(request.id, Approve(approver="ann", arguments=arguments))


def envelope(message: dict[str, Any]) -> bytes:
    text = json.dumps(message).encode()
    return b"\0" + len(text).to_bytes(4, "big") + text


def envelopes(data: bytes) -> list[dict[str, Any]]:
    """Return the messages that are whole."""
    found = []
    while len(data) >= (end := 5 + int.from_bytes(data[1:5], "big")):
        found.append(json.loads(data[5:end]))
        data = data[end:]
    return found


def resident_kb() -> int:
    """Return the memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [found] = [line.split()[1] for line in lines if line.startswith("VmRSS")]
    return int(found)


@asynccontextmanager
async def served(
    folder: Path,
    settings: str = "",
    policies: str = POLICIES,
    environ: Mapping[str, str] | None = None,
    **sandbox: Any,
) -> AsyncIterator[Service]:
    """Serve sandboxes.

    Args:
        folder: A place for the configuration and its state.
        settings: Lines of `[sandbox_api]`, and tables after it.
        policies: The policies.
        environ: The environment of the host; None: that of this process.
        sandbox: Keys of `[sandbox]`; `backend` is `subprocess` unless given.
    """
    keys = {"backend": "subprocess", **sandbox}
    lines = "\n".join(f"{name} = {value!r}" for name, value in keys.items())
    path = folder / "toolcell.toml"
    path.write_text(
        f'[sandbox]\n{lines}\n[state]\nfolder = "state"\n'
        f"{policies}\n[sandbox_api]\n{settings}\n"
    )
    config = HostConfig.from_file(path)
    with open_tokens(config) as tokens:
        keys = {name: tokens.create(name, form="e2b")[1] for name in ("a", "b")}
    with listen("127.0.0.1:0") as listening:
        limit = config.sandbox_api.max_body_bytes
        async with (
            Host(config, environ=environ) as host,
            open_app(host) as app,
            serving(app, listening, 64, max_message_bytes=limit) as url,
            httpx2.AsyncClient(base_url=url, timeout=60) as http,
        ):
            yield Service(host, app, url, http, keys)
