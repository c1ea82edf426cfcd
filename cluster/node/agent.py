"""Serves a sandbox to the drivers of a cluster."""

from __future__ import annotations

import logging
import platform
import socket
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal

import anyio
import anyio.abc
import anyio.to_thread

from toolcell.core import ConfigError, InvalidInputError, SandboxUnavailableError
from toolcell.core.detached import Detachable
from toolcell.sandbox import Sandbox, SandboxConfig
from toolcell.sandbox.spi import sweep_folders

from ..directory.connect import meet
from ..directory.records import NodeRecord
from ..directory.redis import RENEW_SECONDS, RedisDirectory
from ..wire.codec import pack_model
from ..wire.handshake import (
    HANDSHAKE_SECONDS,
    HandshakeRefusedError,
    admit_driver,
    checked_token,
    new_identity,
)
from ..wire.link import Link
from ..wire.protocol import LOST_SECONDS, PROTOCOL, rules_of
from ..wire.sockets import accept, listening
from ..wire.tls import TLSSocket
from . import metrics
from .driver_connection import DriverConnection
from .health import CHECK_SECONDS, Health
from .known_drivers import KnownDrivers

MAX_STRANGERS = 64
"""Connections that have not shown the token yet. When it is reached the oldest one is
closed for the next: who has the token shows it in milliseconds."""

_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - drivers cannot connect to these
_LOOK_SECONDS = 0.1
_log = logging.getLogger(__name__)
State = Literal["ready", "draining", "sick"]
MAX_SETS = 64
"""Sets of packages that a node reports. When it is exceeded the one that was longest
out of use is reported no more; it stays installed."""


class NodeAgent(Detachable):
    """Serves the sandbox of this machine to whoever has the cluster's token.

    A driver that goes, or is silent for too long, leaves nothing behind: its runs are
    cancelled and its sessions closed. Leaving the agent does so for all drivers.

    Args:
        sandbox: The sandbox; open, and closed by its owner after the agent.
        token: The cluster's token, 64 hex digits.
        name: The name of this node, unique in the cluster.
        host: The address to listen at; of a name, all addresses that this machine has.
        port: The port; 0, the default, takes a free one.
        public_host: The address, or the name, that drivers connect to; None takes
            `host`.
        public_port: The port that drivers connect to, where a container or a router
            publishes `port` as another; None takes `port`.
        directory: Where drivers find the node; None: they find it in another way.
        lost_seconds: Seconds without a sign of life until a driver is given up; default
            10.
        check_seconds: Seconds between two tries of a cell; default 30. When two fail
            the node is sick, and takes nothing new until three in a row are good.
        notices: Further remarks on this machine, beside those of the sandbox.
        drivers: The keys of drivers by their names, 64 hex digits each; `agents` of
            credentials name the agents of these drivers, as `DRIVER/AGENT`.

    Raises:
        ConfigError: The token is not one, or drivers cannot connect to the host; a name
            or a key cannot be used; a credential is for others than agents of
            `drivers`.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        token: str,
        name: str,
        host: str = "127.0.0.1",
        port: int = 0,
        public_host: str | None = None,
        public_port: int | None = None,
        directory: RedisDirectory | None = None,
        lost_seconds: float = LOST_SECONDS,
        check_seconds: float = CHECK_SECONDS,
        notices: Sequence[str] = (),
        drivers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._sandbox = sandbox
        self._key = checked_token(token)
        self._name = name
        self._host = host
        self._port = port
        self._public_host = public_host or _reachable(host)
        self._public_port = public_port
        self._directory = directory
        self._lost_seconds = lost_seconds
        self._notices = tuple(notices)
        self._known_drivers = KnownDrivers(drivers, token, sandbox.config)
        self._slots = sandbox.config.max_concurrency
        self._strangers: dict[anyio.CancelScope, None] = {}
        self._drivers: list[DriverConnection] = []
        self._draining = False
        self._leaving: anyio.CancelScope | None = None
        self._leaves_for_good = False
        self._health = Health(sandbox, check_seconds)
        self._inventory = Inventory(sandbox.config)
        self._stack = AsyncExitStack()
        self._record: NodeRecord | None = None

    @property
    def record(self) -> NodeRecord:
        """The node, as the directory has it. Raises InvalidInputError if not open."""
        if self._record is None:
            raise InvalidInputError("the agent is not open", hint="use `async with`")
        return self._record

    async def __aenter__(self) -> NodeAgent:
        self._identity = new_identity()
        # An agent that was killed may have left files that were under way.
        await anyio.to_thread.run_sync(sweep_folders)
        try:
            listeners = await listening(self._host, self._port)
        except OSError as error:
            raise SandboxUnavailableError(
                f"cannot listen at {self._host}, port {self._port}: {error.strerror}",
                hint="use a free port and an address of this machine",
            ) from None
        self._record = NodeRecord(
            name=self._name,
            host=self._public_host,
            port=self._public_port or listeners[0].getsockname()[1],
            fingerprint=self._identity.fingerprint,
        )
        if self._directory is not None:
            try:
                await self._check_name(self._directory, self._record)
                await self._directory.announce(self._record)
            except BaseException:
                for listener in listeners:
                    listener.close()
                raise
            self._stack.push_async_callback(self._withdraw, self._directory)
        for listener in listeners:
            self._stack.callback(listener.close)
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        self._tasks = tasks
        self._retired = anyio.Event()
        self._stack.enter_context(metrics.agents.watched(self))
        for listener in listeners:
            tasks.start_soon(accept, listener, self._welcome)
        tasks.start_soon(self._health.watch, self.share)
        if self._directory is not None:
            tasks.start_soon(self._renew, self._directory)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def slots(self) -> int:
        """The number of cells that it may have at once."""
        return self._slots

    @property
    def drivers(self) -> int:
        """The number of drivers that place runs here."""
        return sum(driver.places_runs for driver in self._drivers)

    @property
    def takes_runs(self) -> bool:
        """True while it is neither sick nor draining."""
        return self.state == "ready"

    @property
    def busy(self) -> int:
        """The number of cells that runs and sessions use now."""
        return self._sandbox.active_cells

    @property
    def state(self) -> State:
        """`ready`, `draining` or `sick`; the last two take nothing new."""
        if self._draining:
            return "draining"
        return "sick" if self._health.is_sick else "ready"

    @property
    def warning(self) -> str:
        """The notice in results of sessions while it drains; else empty."""
        if not self._draining:
            return ""
        end = "takes nothing new"
        if self._leaving is not None:
            left = max(0.0, self._leaving.deadline - anyio.current_time())
            end = f"ends, with this session, in {left:.0f} seconds at the latest"
        return f"the node {self._name} {end}: save what is to be kept"

    async def drain(self) -> None:
        """Take no new runs and sessions; those that are there go on."""
        self._draining = True
        self.share()

    async def retire(self, seconds: float, *, for_good: bool = False) -> None:
        """Drain, and let `retired` return when nothing runs, or after some seconds.

        Args:
            seconds: Seconds for what runs. When they are over it is given up. If it is
                told so again, the new seconds count.
            for_good: True: `undrain` comes too late from now on.
        """
        await self.drain()
        self._leaves_for_good = self._leaves_for_good or for_good
        if self._leaving is None:
            self._leaving = anyio.CancelScope()
            self._tasks.start_soon(self._leave, self._leaving)
        self._leaving.deadline = anyio.current_time() + seconds

    async def _leave(self, leaving: anyio.CancelScope) -> None:
        with leaving:
            while self.busy:  # noqa: ASYNC110 - cells report no ends
                await anyio.sleep(_LOOK_SECONDS)
        if leaving is self._leaving:
            self._retired.set()

    async def undrain(self) -> None:
        """Take runs and sessions again, as if it had not been drained.

        Raises:
            InvalidInputError: It is too late: the node ends.
        """
        if self._leaves_for_good or self._retired.is_set():
            raise InvalidInputError(
                f"the node {self._name} ends already", hint="start it again"
            )
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            leaving.cancel()
        self._draining = False
        self.share()

    async def retired(self) -> None:
        """Return when the agent was asked to end; its owner leaves it then."""
        await self._retired.wait()

    async def _check_name(self, directory: RedisDirectory, own: NodeRecord) -> None:
        """Check that no other node that lives has this node's name.

        One that was killed is in the directory for a while. It does not answer, or it
        had the address that this node listens at now.
        """
        other = await directory.named(own.name)
        if other is None or (other.host, other.port) == (own.host, own.port):
            return
        try:
            connection = await meet(other, self._key)
        except (OSError, HandshakeRefusedError):
            return
        connection.close()
        raise SandboxUnavailableError(
            f"the cluster has a node {own.name!r} at {other.host}:{other.port}",
            hint="give each node its own name: `node` in [cluster]",
            details={"reason": "node_name_taken"},
        )

    async def _withdraw(self, directory: RedisDirectory) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await directory.withdraw(self.record)
            except SandboxUnavailableError as error:
                _log.warning("the node stays in the directory for a while: %s", error)

    async def _renew(self, directory: RedisDirectory) -> None:
        while True:
            await anyio.sleep(RENEW_SECONDS)
            try:
                await directory.announce(self.record)
            except SandboxUnavailableError as error:
                _log.warning("%s", error)

    async def _welcome(self, plain: socket.socket) -> None:
        """Serve one connection; nothing of it ends the agent."""
        connection: TLSSocket | None = None
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        with anyio.CancelScope() as scope:
            self._strangers[scope] = None
            try:
                connection = await self._admitted(plain)
            except (OSError, TimeoutError, HandshakeRefusedError) as why:
                _log.warning("a connection was refused: %s", type(why).__name__)
            finally:
                self._strangers.pop(scope, None)
        if connection is None:
            return
        driver = DriverConnection(self._sandbox, self, self._name_of)
        link = Link(
            connection,
            name="driver",
            lost_seconds=self._lost_seconds,
            serve=driver.serve,
        )
        await self._serve(link, driver)

    def _name_of(self, greeting: dict[str, Any]) -> tuple[str | None, str | None]:
        return self._known_drivers.name_of(greeting, self._identity.fingerprint)

    async def _admitted(self, plain: socket.socket) -> TLSSocket:
        """Return the connection of a driver that has the token."""
        context, fingerprint = self._identity.context, self._identity.fingerprint
        connection = TLSSocket(plain, context, server_side=True)
        try:
            with anyio.fail_after(HANDSHAKE_SECONDS):
                await connection.shake_hands()
                await admit_driver(connection, self._key, fingerprint)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _serve(self, link: Link, driver: DriverConnection) -> None:
        self._drivers.append(driver)
        try:
            await link.run()
        finally:
            self._drivers.remove(driver)
            self.share()

    def share(self) -> None:
        """Divide the slots between the drivers."""
        drivers = [driver for driver in self._drivers if driver.places_runs]
        for driver in drivers:
            share = max(1, self._slots // len(drivers))
            driver.grant({"credit": share if self.takes_runs else 0, **self._now()})

    def has_packages(self, packages: Sequence[str]) -> None:
        """Note that packages are installed, and report it to the drivers."""
        if packages and self._inventory.note(packages):
            self.share()

    def _now(self) -> dict[str, Any]:
        """Return the status that drivers get whenever it changes."""
        why = self._health.why if self.state == "sick" else None
        return {
            "state": self.state,
            "problem": "" if why is None else why.message,
            "reason": "" if why is None else str(why.details.get("reason", "")),
            "packages": self._inventory.packages,
        }

    def about(self) -> dict[str, Any]:
        """Return what the node says of itself."""
        return {
            "protocol": PROTOCOL,
            "version": version("toolcell"),
            "python": platform.python_version(),
            "name": self._name,
            "slots": self._slots,
            **self._now(),
            "image": self._inventory.image,
            "busy": self.busy,
            "drivers": self.drivers,
            "notices": [*self._sandbox.notices, *self._notices],
            "rules": pack_model(rules_of(self._sandbox.config)),
        }


def _reachable(host: str) -> str:
    """Return a host that drivers can connect to. Raises ConfigError."""
    if host in _ANYWHERE:
        raise ConfigError(
            f"{host} is no address that drivers can connect to",
            hint="set public_host to the address, or the name, of this machine",
        )
    return host


class Inventory:
    """Knows what programs find on a node without a wait.

    Args:
        config: The configuration of its sandbox.
    """

    def __init__(self, config: SandboxConfig) -> None:
        names_image = config.backend == "docker" or "image" in config.model_fields_set
        self.image = config.image if names_image else ""
        """The image of its cells; empty where they have none."""

        self._sets: dict[tuple[str, ...], None] = {}

    @property
    def packages(self) -> list[list[str]]:
        """The sets of packages that were installed since this node began."""
        return [list(each) for each in sorted(self._sets)]

    def note(self, packages: Sequence[str]) -> bool:
        """Note that a set of packages is there; return True if that is news."""
        found = tuple(sorted(set(packages)))
        is_new = found not in self._sets
        self._sets.pop(found, None)
        self._sets[found] = None
        if len(self._sets) > MAX_SETS:
            del self._sets[next(iter(self._sets))]
        return is_new
