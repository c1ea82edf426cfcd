"""The entrance to a cluster: the methods of `SandboxManager`, with cells elsewhere."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from toolcell.core import CellLostError, InvalidInputError, SandboxUnavailableError
from toolcell.core.detached import Detachable
from toolcell.sandbox import Event, ExecutionResult, Network, Sandbox, SandboxConfig
from toolcell.sandbox.spi import PoolStats, RunRequest

from ..directory.records import Directory
from ..wire.codec import pack_model
from ..wire.driver_identity import DriverIdentity
from ..wire.handshake import checked_token
from ..wire.protocol import LOST_SECONDS
from . import metrics
from .nodes import Nodes
from .requests import RemoteRun, listed
from .runs import ask, is_node_lost, next_part, run_at, stream_on
from .session import ClusterSession

if TYPE_CHECKING:
    from toolcell.sandbox.spi import OnStep

_MAX_CONCURRENCY = 4096


class ClusterSandbox(Sandbox, Detachable):
    """Runs untrusted programs in cells of the nodes of a cluster.

    It is a `Sandbox`, as `SandboxManager` is: arguments, results and errors are the
    same. A run goes to the node with most room; a session stays on its node. If a node
    is lost its runs and sessions raise CellLostError at once (`details["reason"]` is
    `node_lost`); nothing is repeated by itself. Tool calls of a program come back
    to this process and its guard.

    Args:
        directory: Where the nodes are.
        token: The cluster's token, 64 hex digits.
        wait_seconds: Seconds that opening, and a run, wait while there is no node;
            default 5. When they are over SandboxUnavailableError is raised.
        lost_seconds: Seconds without a sign of life until a node is lost; default 10.
        retry_lost: True runs a program again, once and on another node, if its node is
            lost. Programs that have made a call, or whose output or connections were
            passed on, are not run again; nor are streams and sessions.
        image: The image, as the nodes' configuration names it, that cells must have;
            other nodes get nothing. None takes all nodes.
        driver: The name of this driver, for credentials of nodes, and its key, 64 hex
            digits; nodes that do not know both get nothing. Processes of one name are
            one driver: their agents of one name are one agent at a node. None: it has
            no name.

    Raises:
        ConfigError: The token is not one, or `driver` is no name and key.
    """

    _nodes: Nodes

    def __init__(
        self,
        directory: Directory,
        *,
        token: str,
        wait_seconds: float = 5.0,
        lost_seconds: float = LOST_SECONDS,
        retry_lost: bool = False,
        image: str | None = None,
        driver: tuple[str, str] | None = None,
    ) -> None:
        self._find_nodes = partial(
            Nodes,
            directory,
            checked_token(token),
            wait_seconds=wait_seconds,
            lost_seconds=lost_seconds,
            image=image,
            identity=None if driver is None else DriverIdentity(*driver),
        )
        self._retry_lost = retry_lost
        self._stack = AsyncExitStack()
        self._is_open = False

    @classmethod
    async def open(
        cls,
        directory: Directory,
        *,
        token: str,
        wait_seconds: float = 5.0,
        lost_seconds: float = LOST_SECONDS,
        retry_lost: bool = False,
        image: str | None = None,
        driver: tuple[str, str] | None = None,
    ) -> Self:
        """Return an open sandbox, which any task of this event loop may close.

        Arguments and errors are those of `ClusterSandbox` and of entering it.
        """
        made = cls(
            directory,
            token=token,
            wait_seconds=wait_seconds,
            lost_seconds=lost_seconds,
            retry_lost=retry_lost,
            image=image,
            driver=driver,
        )
        return await made._open_detached()

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise InvalidInputError(
                "the cluster is open already", hint="make another ClusterSandbox"
            )
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(self._tasks.cancel_scope.cancel)
        self._nodes = self._find_nodes(tasks=self._tasks)
        try:
            await self._nodes.start()
        except BaseException:
            self._nodes.close()
            await self._stack.aclose()
            raise
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        self._nodes.close()
        await self._stack.aclose()

    @property
    def config(self) -> SandboxConfig:
        """The limits and rules of the nodes; `max_concurrency` is that of them all.

        Raises:
            SandboxUnavailableError: The cluster is not open.
        """
        nodes = self._open_nodes
        slots = sum(node.slots for node in nodes.open)
        update = {"max_concurrency": min(max(slots, 1), _MAX_CONCURRENCY)}
        return nodes.rules.model_copy(update=update)

    @property
    def active_cells(self) -> int:
        """The number of cells that runs and sessions of this process use now."""
        return self._nodes.in_use if self._is_open else 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes with a link, in no order."""
        return tuple(node.record.name for node in self._open_nodes.open)

    @property
    def notices(self) -> tuple[str, ...]:
        """Facts that users of the nodes should know, each with the node's name."""
        return self._open_nodes.notices

    async def _run(self, request: RunRequest) -> ExecutionResult:
        run = RemoteRun(request)
        nodes = self._open_nodes
        asked = run.packed(nodes.rules.limits, {"op": "run"})
        agent_id, packages = request.agent_id, request.packages
        place = await nodes.place(agent_id, packages=packages)
        try:
            return await run_at(place, run, asked)
        except CellLostError as error:
            if not self._retry_lost or run.was_heard or not is_node_lost(error):
                raise
            lost = error
        try:
            place = await nodes.place(
                agent_id, avoid=place.node.record, packages=packages
            )
            metrics.retries.add(1)
            return await run_at(place, run, asked)
        except SandboxUnavailableError:
            # It may have run on the first one.
            raise lost from None

    async def _stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        nodes, agent_id = self._open_nodes, request.agent_id
        run = RemoteRun(request)
        asked = run.packed(nodes.rules.limits, {"op": "stream"})
        with await nodes.place(agent_id, packages=request.packages) as node:
            async with aclosing(stream_on(node.link, run, asked)) as events:
                async for event in events:
                    yield event

    @asynccontextmanager
    async def session(
        self,
        *,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
    ) -> AsyncIterator[ClusterSession]:
        asked = {
            "op": "session",
            "packages": listed(packages),
            "agent_id": agent_id,
            "network": pack_model(network),
        }
        with await self._open_nodes.place(agent_id, packages=packages) as node:
            async with node.link.exchange(asked) as exchange:
                about = (await next_part(exchange)).fields
                name = node.record.name
                yield ClusterSession(node.link, name, agent_id, about, self._start)

    @property
    def _usual_concurrency(self) -> int:
        return self.config.max_concurrency

    def _start(self, work: Callable[[], Any]) -> anyio.CancelScope:
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await work()

        self._tasks.start_soon(run)
        return scope

    async def install(
        self, packages: Sequence[str] = (), *, on_step: OnStep | None = None
    ) -> str:
        """Install packages on each node; as `SandboxManager.install`.

        Args:
            packages: As in `run`.
            on_step: Called with the name of each node that has them.

        Returns:
            The path of the packages in cells; empty if there are none.
        """
        path = ""
        for node in self._open_nodes.open:
            asked = {"op": "install", "packages": listed(packages)}
            answer = await ask(node.link, asked)
            path = str(answer.fields.get("path", ""))
            if on_step is not None:
                on_step(f"{node.record.name} has them")
        return path

    def pool_stats(self) -> PoolStats:
        """Return what waits here; the pools are the nodes'.

        Raises:
            SandboxUnavailableError: The cluster is not open.
        """
        waiting = self._open_nodes.waiting
        return PoolStats(size=0, ready=0, made=0, discarded=0, waiting=waiting)

    async def check(self) -> None:
        """Ask one node after the other until one can make cells.

        Raises:
            SandboxUnavailableError: No node can.
        """
        found: SandboxUnavailableError | None = None
        for node in self._open_nodes.open:
            try:
                await ask(node.link, {"op": "check"})
                return
            except SandboxUnavailableError as error:
                found = error
        raise found or self._open_nodes.no_nodes()

    @property
    def _open_nodes(self) -> Nodes:
        if not self._is_open:
            raise SandboxUnavailableError(
                "the cluster is not open", hint="use it in `async with`"
            )
        return self._nodes
