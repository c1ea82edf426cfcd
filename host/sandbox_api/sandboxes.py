"""The sandboxes that are open: a session each, with an owner and an end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import anyio
import anyio.abc

from toolcell.core import SandboxError, ToolcellError
from toolcell.sandbox import FileWatch, Network, Process, SandboxManager, Session

from ..config.host_config import HostConfig
from ..mcp_http.tokens import Token
from ..sandbox_http.errors import APIError, gone

ENVD_VERSION = "0.5.8"
"""The version of E2B's daemon whose calls are served; clients choose theirs by it."""

_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_log = logging.getLogger("toolcell.host")


@dataclass(slots=True, eq=False)
class Command:
    """A command that a client started."""

    process: Process
    config: Mapping[str, Any]
    tag: str | None
    has_terminal: bool
    attached: anyio.Event = field(default_factory=anyio.Event)
    """Set when the client that started it has stopped reading."""


@dataclass(slots=True, eq=False)
class Watcher:
    """A folder whose changes a client asks for again and again."""

    watch: FileWatch
    turn: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(slots=True, eq=False, kw_only=True)
class CodeContext:
    """A place to run code in; of Python it has an interpreter of its own."""

    id: str
    language: str
    cwd: str
    session: Session
    is_default: bool = False
    runs: int = 0
    is_in_place: bool = False
    """True once its interpreter is in its folder."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(slots=True, eq=False, kw_only=True)
class Sandbox:
    """One sandbox. Times are seconds since 1970 (UTC)."""

    id: str
    token: Token
    template: str
    end_at: float
    env: dict[str, str]
    metadata: dict[str, str]
    home: str
    started_at: float = field(default_factory=time.time)
    commands: dict[int, Command] = field(default_factory=dict)
    contexts: dict[str, CodeContext] = field(default_factory=dict)
    watchers: dict[str, Watcher] = field(default_factory=dict)
    state: Literal["running", "paused", "ended"] = "running"
    closed: anyio.Event = field(default_factory=anyio.Event)
    tasks: anyio.abc.TaskGroup | None = None
    """The tasks that end with it: its commands."""

    opened: Session | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def agent_id(self) -> str:
        """The agent that its calls are made as."""
        return self.token.agent_id

    @property
    def base_env(self) -> dict[str, str]:
        """The environment variables of all that runs in it."""
        own = {"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": self.id, "HOME": self.home}
        return {**own, **self.env}

    @property
    def session(self) -> Session:
        """Its session. Raises APIError if it has ended."""
        if self.opened is None or self.state == "ended":
            raise gone()
        return self.opened

    @property
    def work(self) -> anyio.abc.TaskGroup:
        """The tasks that end with it. Raises APIError if it has ended."""
        if self.tasks is None or self.state == "ended":
            raise gone()
        return self.tasks

    def end(self) -> None:
        """Let it end."""
        self.state = "ended"
        self._wake()

    def set_end(self, end_at: float) -> None:
        """Let it end at another time."""
        self.end_at = end_at
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def wait_for_end(self) -> None:
        """Wait until its time is over, or `end` is called."""
        while self.state != "ended" and (left := self.end_at - time.time()) > 0:
            with anyio.move_on_after(left):
                await self.changed.wait()
        self.state = "ended"

    def to_json(self) -> dict[str, Any]:
        """Return what its owner sees of it, without its access token."""
        limits = self.session.limits
        return {
            "sandboxID": self.id,
            "templateID": self.template,
            "alias": self.template,
            "clientID": "toolcell",
            "startedAt": _date(self.started_at),
            "endAt": _date(self.end_at),
            "envdVersion": ENVD_VERSION,
            "cpuCount": max(1, round(limits.cpus)),
            "memoryMB": limits.memory_mb,
            "diskSizeMB": limits.disk_mb,
            "metadata": self.metadata,
            "state": self.state,
        }


class Sandboxes:
    """The open sandboxes. Leaving it ends all of them.

    Args:
        config: The configuration of the host.
    """

    _group: anyio.abc.TaskGroup

    def __init__(self, config: HostConfig) -> None:
        self._settings = settings = config.sandbox_api
        longest = float(settings.max_timeout_seconds)
        sandbox = config.sandbox.model_copy(
            update={
                "work_dir": settings.work_dir,
                "max_concurrency": settings.max_sandboxes,
                "session_idle_seconds": longest,
                # The end of a sandbox may be moved again and again.
                "session_lifetime_seconds": 86_400.0 * 30,
            }
        )
        self._manager = SandboxManager(sandbox)
        self._open: dict[str, Sandbox] = {}
        self._starting: list[str] = []

    async def __aenter__(self) -> Sandboxes:
        await self._manager.__aenter__()
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._manager.__aexit__()

    def end_at(self, seconds: int | None) -> float:
        """Return the time at which a sandbox ends. Raises APIError."""
        settings = self._settings
        if seconds is None:
            seconds = settings.timeout_seconds
        if not 0 <= seconds <= settings.max_timeout_seconds:
            raise APIError(
                400, f"timeout must be 0 to {settings.max_timeout_seconds} seconds"
            )
        return time.time() + seconds

    def narrowed(self, network: Network | None) -> Network:
        """Return the network of the configuration, or one within it.

        Raises:
            InvalidInputError: It reaches further.
        """
        own = self._manager.config.network
        return own if network is None else own.narrowed_by(network)

    async def create(
        self,
        token: Token,
        *,
        template: str,
        seconds: int | None,
        env: dict[str, str],
        metadata: dict[str, str],
        network: Network | None,
    ) -> Sandbox:
        """Open a sandbox.

        Raises:
            APIError: Its template is unknown, it would live too long, or there are
                too many.
            ToolcellError: It cannot be opened.
        """
        self._check(token, template)
        sandbox = Sandbox(
            id="i" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(19)),
            token=token,
            template=template,
            end_at=self.end_at(seconds),
            env=env,
            metadata=metadata,
            home=self._manager.config.work_dir,
        )
        self._starting.append(token.id)
        try:
            await self._group.start(self._hold, sandbox, self.narrowed(network))
        finally:
            self._starting.remove(token.id)
        return sandbox

    def _check(self, token: Token, template: str) -> None:
        if template not in self._settings.templates:
            known = ", ".join(self._settings.templates)
            raise APIError(404, f"there is no template {template!r}; there are {known}")
        owners = [*self._starting, *(each.token.id for each in self._open.values())]
        left = self._settings.max_sandboxes - len(owners)
        if owners.count(token.id) >= left:
            raise APIError(
                429, f"you have {owners.count(token.id)} sandboxes; {left} are left"
            )

    async def _hold(
        self,
        sandbox: Sandbox,
        network: Network,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        """Own the session of a sandbox from its first moment to its end."""
        began = False
        try:
            async with (
                self._manager.session(
                    agent_id=sandbox.agent_id, network=network
                ) as session,
                anyio.create_task_group() as tasks,
            ):
                sandbox.opened, sandbox.tasks = session, tasks
                self._open[sandbox.id] = sandbox
                began = True
                task_status.started()
                await sandbox.wait_for_end()
                tasks.cancel_scope.cancel()
        except (ToolcellError, ExceptionGroup) as error:
            if not began:
                raise
            if not isinstance(error, SandboxError):
                _log.error("sandbox %s ended badly", sandbox.id, exc_info=error)
        finally:
            sandbox.state = "ended"
            self._open.pop(sandbox.id, None)
            sandbox.closed.set()

    def of(self, token: Token, sandbox_id: str) -> Sandbox:
        """Return a sandbox of a token.

        Raises:
            APIError: 404: there is none, or it is another's.
        """
        found = self._open.get(sandbox_id)
        if found is None or found.token.id != token.id or found.state == "ended":
            raise APIError(404, f"sandbox {sandbox_id[:64]} not found")
        return found

    def find(self, sandbox_id: str) -> Sandbox:
        """Return a running sandbox whose access token was checked.

        Raises:
            APIError: 502: it has ended, or is paused.
        """
        found = self._open.get(sandbox_id)
        if found is None or found.state != "running":
            raise gone()
        return found

    def all_of(self, token: Token) -> list[Sandbox]:
        """Return the sandboxes of a token, the newest first."""
        mine = [
            each
            for each in self._open.values()
            if each.token.id == token.id and each.state != "ended"
        ]
        return sorted(mine, key=lambda each: each.started_at, reverse=True)

    def ids(self) -> list[str]:
        """Return the ids of all sandboxes."""
        return list(self._open)

    async def pause(self, sandbox: Sandbox) -> None:
        """Stop the processes of a sandbox; it then lives for the longest time-out.

        Raises:
            APIError: It is paused already.
            InvalidInputError: Its processes cannot be stopped.
        """
        if sandbox.state == "paused":
            raise APIError(409, "the sandbox is paused already")
        await sandbox.session.pause()
        sandbox.state = "paused"
        sandbox.set_end(self.end_at(self._settings.max_timeout_seconds))

    async def resume(self, sandbox: Sandbox, end_at: float) -> None:
        """Let a paused sandbox go on until `end_at`."""
        await sandbox.session.resume()
        sandbox.state = "running"
        sandbox.set_end(end_at)

    async def kill(self, sandbox: Sandbox) -> None:
        """End a sandbox, and wait until nothing is left of it."""
        sandbox.end()
        await sandbox.closed.wait()


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
