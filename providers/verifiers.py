"""Verifiers: `agent.run(task, runtime=runtime)` of a started `ToolcellRuntime`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic_config import BaseConfig
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import (
    BaseRuntimeInfo,
    ProgramResult,
    Runtime,
    RuntimeProcess,
)

from toolcell.core import GuardError, InvalidInputError, ToolcellError
from toolcell.guard import ActionGuard
from toolcell.sandbox import Network, SandboxConfig
from toolcell.tools import Records

from .cells.door import open_door
from .cells.guarded_session import exit_code
from .cells.thread_session import ThreadSession
from .verifiers_process import LiveProcess

_REFUSED = 126
# The hosts of verifiers are at 127.0.0.1 of this machine; servers inside at localhost.
_THROUGH_PROXY = {"no_proxy": "localhost,::1", "NO_PROXY": "localhost,::1"}


class ToolcellConfig(BaseConfig):
    """Names the runtime in traces; a runtime's cell is its own `SandboxConfig`."""

    type: Literal["toolcell"] = "toolcell"


class ToolcellRuntimeInfo(ToolcellConfig, BaseRuntimeInfo):
    """The part of a trace that describes the runtime."""


class ToolcellRuntime(Runtime):
    """A runtime of verifiers in one session: start it, run agents in it, stop it.

    A program that the guard refuses ends with exit code 126 and the reason on its
    standard error; a file is a SandboxError. Programs reach the model's endpoint and
    tool servers of this machine through the cell's proxy, and servers of their own at
    `localhost`; more only where the configuration's network names it.

    Args:
        config, guard, agent_id, records: As in `ThreadSession`.
        name: The name in logs. None: a random one.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "verifiers",
        records: Records | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.config = ToolcellConfig()
        self.info = ToolcellRuntimeInfo(id=self.name)
        self._open = partial(
            ThreadSession, config, guard=guard, agent_id=agent_id, records=records
        )
        self._network = config.network if config else Network.none
        self._thread: ThreadSession | None = None

    async def start(self) -> None:
        """Open the session. Raises SandboxUnavailableError: there is no cell."""
        self._thread = await asyncio.to_thread(self._open)

    def cleanup(self) -> None:
        """End the session with all that runs in it; again: nothing."""
        if self._thread is not None:
            self._thread.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        try:
            result = await self._live.acall(
                self._live.guarded.exec, argv, env=self._env(env)
            )
        except (GuardError, InvalidInputError) as error:
            return ProgramResult(_REFUSED, "", str(error))
        return ProgramResult(exit_code(result), result.stdout, result.stderr)

    async def open_process(
        self, argv: list[str], env: dict[str, str]
    ) -> RuntimeProcess:
        """Start a program with an open input. Raises SandboxError: it is refused."""
        process = await self._call(
            self._live.guarded.spawn, argv, env=self._env(env), stdin="pipe"
        )
        return LiveProcess(process, self._live)

    async def run_background(
        self, argv: list[str], env: dict[str, str], log: str
    ) -> None:
        """Start a program that goes on. Raises SandboxError: it is refused."""
        script = ["sh", "-c", 'log="$1"; shift; exec "$@" > "$log" 2>&1', "sh", log]
        await self._call(self._live.guarded.spawn, [*script, *argv], env=self._env(env))

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None:
            return await super()._read(path, max_bytes)
        data: bytes = await self._call(self._live.guarded.read_file, path)
        return data

    async def write(self, path: str, data: bytes) -> None:
        await self._call(self._live.guarded.write_file, path, data)

    async def prepare_execution(self, routes: list[str] | None) -> None:
        """Open the way to the model's endpoint and to tool servers, and no other."""
        hosts = [f"{url.hostname}:{_port(url)}" for url in map(urlsplit, routes or ())]
        allowed = self._network.to(sorted({*self._network.hosts, *hosts}))
        session = self._live.guarded.session
        await self._live.acall(session.set_network, allowed)

    async def expose(self, port: int) -> str:
        """Return the URL of a port of this machine that leads to a server inside."""
        return f"http://127.0.0.1:{await open_door(self._live, port)}"

    @property
    def _live(self) -> ThreadSession:
        if self._thread is None:
            raise SandboxError("the runtime was not started")
        return self._thread

    def _env(self, env: dict[str, str]) -> dict[str, str]:
        return {**_THROUGH_PROXY, **self.process_env(env)}

    async def _call(self, function: Any, *args: Any, **options: Any) -> Any:
        try:
            return await self._live.acall(function, *args, **options)
        except ToolcellError as error:
            raise SandboxError(str(error)) from error


def _port(url: SplitResult) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
