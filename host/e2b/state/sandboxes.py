"""The sandboxes that are open, each with the task that owns its session."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.abc

from toolcell.core import ConfigError, InvalidInputError, SandboxError, ToolcellError
from toolcell.core.text.counted import counted
from toolcell.sandbox import Network, SandboxConfig
from toolcell.sandbox import Sandbox as Cells
from toolcell.sandbox.spi import is_weaker

from ...config.host_config import HostConfig
from ...http.tokens import Token
from ...operator.event_bus import EventBus
from ...operator.events import (
    SessionClosed,
    SessionEvent,
    SessionOpened,
    SessionPaused,
    SessionResumed,
)
from ...runtime.cluster import open_sandbox
from ..protocol.errors import RETRY_SECONDS, APIError, gone
from .sandbox import Lifecycle, Sandbox

_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_log = logging.getLogger("toolcell.host")


def new_id(prefix: str) -> str:
    """Return an id of 19 random characters behind a prefix."""
    return prefix + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(19))


class Sandboxes:
    """The open sandboxes. Leaving it ends all of them.

    Args:
        config: The configuration of the host.
        environ: The environment, from which secrets of a cluster are read.
        event_bus: Publishes each sandbox that is made, pauses, goes on or has ended,
            and events of their cells.
        shared: The host's own sandbox, whose cells are those of a cluster, as these
            would be; None opens one.
    """

    _group: anyio.abc.TaskGroup

    def __init__(
        self,
        config: HostConfig,
        environ: Mapping[str, str],
        event_bus: EventBus,
        shared: Cells | None = None,
    ) -> None:
        self._environ = environ
        self._event_bus = event_bus
        self._shared = shared
        self._settings = settings = config.sandbox_api
        longest = float(settings.max_timeout_seconds)
        isolation = config.sandbox.minimum_isolation
        if is_weaker(isolation, "namespaces"):
            # Weaker cells have no such work dir: theirs is a folder of the machine.
            isolation = "namespaces"
        sandbox = config.sandbox.model_copy(
            update={
                "work_dir": settings.work_dir,
                "minimum_isolation": isolation,
                "max_concurrency": settings.max_sandboxes,
                "session_idle_seconds": longest,
                # The end of a sandbox may be moved again and again.
                "session_lifetime_seconds": 86_400.0 * 30,
            }
        )
        self._config = config.model_copy(update={"sandbox": sandbox})
        self._stack = AsyncExitStack()
        self._open: dict[str, Sandbox] = {}
        self._starting: list[str] = []

    async def __aenter__(self) -> Sandboxes:
        manager = self._shared
        if manager is None:
            manager = await open_sandbox(
                self._config, self._environ, self._stack, self._event_bus
            )
        try:
            self._require(manager.config)
        except BaseException:
            await self._stack.aclose()
            raise
        self._manager = manager
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self._stack.aclose()

    def _require(self, nodes: SandboxConfig) -> None:
        """Make sure that cells of a cluster can be sandboxes. Raises ConfigError."""
        longest = float(self._settings.max_timeout_seconds)
        lives = min(nodes.session_idle_seconds, nodes.session_lifetime_seconds)
        if nodes.work_dir != self._settings.work_dir or lives < longest:
            raise ConfigError(
                "the nodes of the cluster have cells that are no sandboxes",
                hint=f'give them work_dir = "{self._settings.work_dir}", and '
                f"{longest:g} as session_idle_seconds and session_lifetime_seconds",
            )

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
        if network is not None:
            return own.narrowed_by(network)
        # A session's network does not say what is inspected: its sandbox does.
        return own.model_copy(update={"inspect": (), "server_ca": None})

    async def create(
        self,
        token: Token,
        *,
        template: str,
        lifecycle: Lifecycle,
        env: dict[str, str],
        metadata: dict[str, str],
        network: Network | None,
        archive: Path | None = None,
    ) -> Sandbox:
        """Open a sandbox.

        Args:
            token: Its owner.
            template: What it is made from.
            lifecycle: How long it lives.
            env: Environment variables of all that runs in it.
            metadata: Words of its owner.
            network: A network within that of the configuration; None: that one.
            archive: The files that it begins with.

        Raises:
            APIError: It would live too long, or there are too many.
            ToolcellError: It cannot be opened.
        """
        self._check(token)
        if self._manager.active_cells >= self._manager.config.max_concurrency:
            raise APIError(
                429,
                "the cluster has no cell left",
                reason="busy",
                retry_after=RETRY_SECONDS,
            )
        sandbox = Sandbox(
            id=new_id("i"),
            token=token,
            template=template,
            lifecycle=lifecycle,
            end_at=self.end_at(lifecycle.seconds),
            env=env,
            metadata=metadata,
            home=self._manager.config.work_dir,
        )
        self._starting.append(token.id)
        try:
            own_network = self.narrowed(network)
            await self._group.start(self._hold, sandbox, own_network, archive)
        finally:
            self._starting.remove(token.id)
        return sandbox

    def _check(self, token: Token) -> None:
        owners = [
            *self._starting,
            *(sandbox.token.id for sandbox in self._open.values()),
        ]
        left = self._settings.max_sandboxes - len(owners)
        if owners.count(token.id) >= left:
            raise APIError(
                429,
                f"you have {counted(owners.count(token.id), 'sandbox', 'sandboxes')}; "
                f"{left} left",
                reason="too_many_sandboxes",
            )

    async def _hold(
        self,
        sandbox: Sandbox,
        network: Network,
        archive: Path | None,
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
                if archive is not None:
                    await session.load(archive)
                sandbox.opened, sandbox.tasks = session, tasks
                # Later measurements then wait for no program.
                await sandbox.metrics()
                sandbox.accounted_ms = sandbox.cpu_ms
                self._open[sandbox.id] = sandbox
                began = True
                self._note(SessionOpened, sandbox)
                task_status.started()
                while sandbox.state != "ended":
                    await sandbox.wait_for_end()
                    await self._end_or_pause(sandbox)
                tasks.cancel_scope.cancel()
        except (ToolcellError, ExceptionGroup) as error:
            if not began:
                raise
            sandbox.end("lost")
            if not isinstance(error, SandboxError):
                _log.error("sandbox %s ended badly", sandbox.id, exc_info=error)
        finally:
            sandbox.end("shutdown")
            self._open.pop(sandbox.id, None)
            sandbox.closed.set()
            if began:
                self._note(SessionClosed, sandbox)

    async def _end_or_pause(self, sandbox: Sandbox) -> None:
        """Do what a sandbox wants at the end of its time, which may have been moved."""
        async with sandbox.turn:
            if sandbox.end_at > time.time():
                return
            if sandbox.state == "running" and sandbox.lifecycle.pauses:
                try:
                    await self._pause(sandbox)
                except InvalidInputError as error:
                    _log.warning("sandbox %s ends: %s", sandbox.id, error.message)
                else:
                    return
            sandbox.end("lifetime")

    def of(self, token: Token, sandbox_id: str) -> Sandbox:
        """Return a sandbox of a token.

        Raises:
            APIError: 404: there is none, or it is another's.
        """
        found = self._open.get(sandbox_id)
        if found is None or found.token.id != token.id or found.state == "ended":
            raise APIError(404, f"sandbox {sandbox_id[:64]} not found")
        return found

    def held(self, token: Token, sandbox_id: str) -> Sandbox:
        """Return a sandbox of a token, for what happens in it.

        Raises:
            APIError: 502: it has ended, or is another's.
        """
        found = self._open.get(sandbox_id)
        if found is None or found.token.id != token.id or found.state == "ended":
            raise gone(sandbox_id[:64])
        return found

    def find(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that runs, or wakes up, whose access token was checked.

        Raises:
            APIError: 502: it has ended, or is paused.
        """
        found = self._open.get(sandbox_id)
        if found is None or not (found.state == "running" or found.is_asleep):
            raise gone(sandbox_id[:64])
        return found

    def all_of(self, token: Token) -> list[Sandbox]:
        """Return the sandboxes of a token, the newest first."""
        mine = [
            sandbox
            for sandbox in self._open.values()
            if sandbox.token.id == token.id and sandbox.state != "ended"
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
        async with sandbox.turn:
            if sandbox.state == "paused":
                raise APIError(409, "the sandbox is paused already")
            await self._pause(sandbox)

    async def _pause(self, sandbox: Sandbox) -> None:
        await sandbox.session.pause()
        if sandbox.state == "running":
            sandbox.state = "paused"
            sandbox.set_end(self.end_at(self._settings.max_timeout_seconds))
            self._note(SessionPaused, sandbox)

    async def resume(self, sandbox: Sandbox, seconds: int | None) -> None:
        """Let a paused sandbox go on for so many seconds. Raises APIError."""
        end_at = self.end_at(seconds)
        async with sandbox.turn:
            if sandbox.state == "paused":
                await sandbox.session.resume()
                # It may have been ended meanwhile.
                if sandbox.state == "paused":
                    sandbox.state = "running"
                    sandbox.set_end(end_at)
                    self._note(SessionResumed, sandbox)

    async def kill(self, sandbox: Sandbox) -> None:
        """End a sandbox, and wait until nothing is left of it."""
        sandbox.end("closed")
        await sandbox.closed.wait()

    def _note(self, kind: type[SessionEvent], sandbox: Sandbox) -> None:
        named = {"agent": sandbox.agent_id, "number": None, "session": sandbox.id}
        if kind is SessionClosed:
            named["reason"] = sandbox.end_reason
        self._event_bus.publish(kind.model_validate(named))
