"""The nodes that a driver has links to, and the choice of one for a run.

Each node grants credit: so many runs and sessions of this driver at once. A driver
counts its own, and takes the node with the smallest part of its credit in use; without
credit it waits in the driver's queue, where agents take turns.
"""

from __future__ import annotations

import logging
import operator
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import anyio
import anyio.abc

from toolcell.core import SandboxError, SandboxUnavailableError
from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import FairQueue

from ..directory.connect import connect
from ..directory.records import Directory, NodeRecord
from ..wire.driver_identity import DriverIdentity
from ..wire.handshake import HandshakeRefusedError
from ..wire.link import Link
from ..wire.protocol import PROTOCOL
from . import metrics
from .places import Node, Place
from .protocol_errors import PROTOCOL_ERRORS
from .runs import next_part

NOT_ANSWERED = "the directory has not answered yet"
"""The reason why there is no node before any was tried."""

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 5.0
_log = logging.getLogger(__name__)
_load = operator.attrgetter("load")


@contextmanager
def _readable() -> Iterator[None]:
    """Raise SandboxError where a node says what cannot be read."""
    try:
        yield
    except PROTOCOL_ERRORS as error:
        raise SandboxError(
            f"what it says of itself cannot be read: {type(error).__name__}",
            hint="use the same version of toolcell at both ends",
        ) from None


class Nodes:
    """Finds nodes in a directory, keeps links to them, and places runs.

    Args:
        directory: Where the nodes are.
        key: The cluster's token, as bytes.
        wait_seconds: Seconds that a run waits while there is no node at all.
        lost_seconds: Seconds without a sign of life until a node is given up.
        image: The image that its cells must have; None: any, or none.
        identity: The driver's name, which it proves to each node; None: it has none.
        tasks: Owns the links.
    """

    def __init__(
        self,
        directory: Directory,
        key: bytes,
        *,
        wait_seconds: float,
        lost_seconds: float,
        image: str | None,
        identity: DriverIdentity | None,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._directory = directory
        self._key = key
        self._wait_seconds = wait_seconds
        self._lost_seconds = lost_seconds
        self._image = image
        self._identity = identity
        self._saw_other_image = False
        self._tasks = tasks
        self._queue = FairQueue(0, 0)
        self._driver = secrets.token_hex(8)
        self._told = 0
        self._known: set[str] = set()
        self._open: dict[str, Node] = {}
        # Those with credit; the one that was taken last is the last.
        self._fit: dict[Node, None] = {}
        self._rules: SandboxConfig | None = None
        self._changed = anyio.Event()
        self._why_none = NOT_ANSWERED
        # Runs that wait while there is no node.
        self._waiting: set[anyio.CancelScope] = set()
        self._metrics = ExitStack()

    @property
    def open(self) -> tuple[Node, ...]:
        """The nodes with a link."""
        return tuple(self._open.values())

    @property
    def rules(self) -> SandboxConfig:
        """The configuration that all nodes have. Raises SandboxUnavailableError."""
        if self._rules is None:
            raise self.no_nodes()
        return self._rules

    @property
    def in_use(self) -> int:
        """The number of runs and sessions that have a place."""
        return sum(node.in_use for node in self.open)

    @property
    def waiting(self) -> int:
        """The number of runs and sessions that wait for a place."""
        return self._queue.waiting

    @property
    def states(self) -> tuple[str, ...]:
        """The state of each node with a link."""
        return tuple(node.state for node in self.open)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the users of each node, with its name."""
        return tuple(
            f"{node.record.name}: {notice}"
            for node in self.open
            for notice in node.notices
        )

    async def start(self) -> None:
        """Find the nodes; return when there is a link to one.

        Raises:
            SandboxUnavailableError: There was none in time
                (`details["reason"]` is `no_nodes`).
        """
        self._metrics.enter_context(metrics.drivers.watched(self))
        self._tasks.start_soon(self._look)
        with self._patience():
            while not self._open:
                await self._changed.wait()
        if not self._open:
            raise self.no_nodes()

    def close(self) -> None:
        """Refuse what waits, and place nothing more."""
        self._metrics.close()
        self._queue.close()

    async def place(
        self,
        agent_id: str | None,
        *,
        avoid: NodeRecord | None = None,
        packages: Sequence[str] = (),
    ) -> Place:
        """Wait for a place on a node, which the caller has to leave.

        Args:
            agent_id: The agent that waits for it.
            avoid: A node that must not get it.
            packages: Packages that it needs; a node with room that has them is taken
                before one that would have to install them.

        Raises:
            SandboxUnavailableError: Too many wait, or there is no node.
        """
        entered = self._queue.enter_at_once()
        if entered is None:
            entered = await self._enter(agent_id)
        fit: Iterable[Node] = self._fit
        if avoid is not None:
            fit = [each for each in fit if each.record != avoid]
        if packages:
            wanted = tuple(sorted(set(packages)))
            ready = [each for each in fit if wanted in each.packages and each.load < 1]
            fit = ready or fit
        node = min(fit, key=_load, default=None)
        if node is None:
            self._queue.leave(entered)
            raise self.no_nodes()
        # The last one among equals the next time: its pool is filled meanwhile.
        del self._fit[node]
        self._fit[node] = None
        metrics.placed.add(1)
        return Place(node, self._queue, entered)

    async def _enter(self, agent_id: str | None) -> float:
        with self._patience():
            return await self._queue.enter(agent_id)
        raise self.no_nodes()

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Let what is done inside wait; not for long while there is no node."""
        with anyio.CancelScope() as scope:
            if not self._fit:
                scope.deadline = anyio.current_time() + self._wait_seconds
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

    def no_nodes(self) -> SandboxUnavailableError:
        """Return the error of whoever finds no node, with the reason."""
        why = self._why_none
        for node in self.open:
            if node.state != "ready":
                why = f"{node.record.name} is {node.state}"
                why += f": {node.problem}" if node.problem else ""
        if self._has_no_image():
            return SandboxUnavailableError(
                f"no node has the image: {why}",
                hint="`toolcell images pull` on the machines of the cluster",
                details={"reason": "image_missing"},
            )
        return SandboxUnavailableError(
            f"the cluster has no node: {why}",
            hint="start a `NodeAgent` on a machine, see docs/cluster.md",
            details={"reason": "no_nodes"},
        )

    def _has_no_image(self) -> bool:
        """Return True if all nodes lack their image, or have another one."""
        if not self.open:
            return self._saw_other_image
        return all(node.reason == "image_missing" for node in self.open)

    async def _look(self) -> None:
        """Open links to nodes as they appear in the directory."""
        while True:
            try:
                records = await self._directory.nodes()
                if not records:
                    self._why_none = "the directory names no node"
                for record in records:
                    if record.fingerprint not in self._known:
                        self._known.add(record.fingerprint)
                        self._tasks.start_soon(self._hold, record)
                await self._tell()
            except SandboxUnavailableError as error:
                self._why_none = error.message
                _log.warning("%s", error)
            await anyio.sleep(_LOOK_SECONDS)

    async def _tell(self) -> None:
        """Tell the directory how many runs wait, while some do, and that none does."""
        waiting = self.waiting
        if waiting or self._told:
            await self._directory.tell(self._driver, waiting)
            self._told = waiting

    async def _hold(self, record: NodeRecord) -> None:
        """Hold a link to a node until it is gone."""
        try:
            async with anyio.create_task_group() as tasks:
                link = await connect(record, self._key, self._lost_seconds)
                tasks.start_soon(link.run)
                await self._use(record, link)
                tasks.cancel_scope.cancel()
        except* OSError as group:
            self._complain(record, f"no connection ({group.exceptions[0]})")
        except* (HandshakeRefusedError, SandboxError) as group:
            self._complain(record, str(group.exceptions[0]))
        # If it is in the directory still, it is tried again.
        await anyio.sleep(_AGAIN_SECONDS)
        self._known.discard(record.fingerprint)

    def _complain(self, record: NodeRecord, why: str) -> None:
        self._why_none = f"{record.name}: {why}"
        _log.warning("the node %s: %s", record.name, why)

    async def _use(self, record: NodeRecord, link: Link) -> None:
        """Place runs on a node while its link is there."""
        hello = {"op": "hello"}
        if self._identity is not None:
            hello["driver"] = self._identity.name
            hello["proof"] = self._identity.proof(record.fingerprint, "driver")
        async with link.exchange(hello) as greeting:
            message = await next_part(greeting)
            node = self._checked(record, link, message.fields)
            self._open[record.fingerprint] = node
            self._resize()
            try:
                while True:
                    message = await next_part(greeting)
                    with _readable():
                        node.update(message.fields)
                    self._resize()
            finally:
                del self._open[record.fingerprint]
                self._resize()
                # Whoever holds a place there may not leave it for long.
                node.is_lost = True
                metrics.lost.add(len(node.held))
                for place in node.held:
                    place.give_back()

    def _checked(self, record: NodeRecord, link: Link, about: dict[str, Any]) -> Node:
        if about.get("protocol") != PROTOCOL:
            raise SandboxError(
                f"it speaks protocol {about.get('protocol')} of toolcell "
                f"{about.get('version')}, this driver {PROTOCOL}",
                hint="use the same version of toolcell at both ends",
            )
        if self._identity is not None and not self._identity.accepts(
            about.get("proof"), record.fingerprint, "node"
        ):
            raise SandboxError(
                "it did not prove that it has the key of this driver",
                hint="give the nodes the name and the key of this driver",
            )
        with _readable():
            node = Node(record, link, about)
        if self._image not in (None, node.image):
            self._saw_other_image = True
            raise SandboxError(
                f"its cells have the image {node.image!r}, not {self._image!r}",
                hint="start nodes with that image",
            )
        if self._rules is not None and node.rules != self._rules:
            raise SandboxError(
                "its limits or rules are not those of the other nodes",
                hint="give all nodes of a cluster the same [sandbox]",
            )
        self._rules = node.rules
        self._queue.max_waiting = node.rules.max_queue
        return node

    def _resize(self) -> None:
        self._fit = {node: None for node in self.open if node.credit}
        credit = sum(node.credit for node in self.open)
        self._queue.resize(credit)
        self._changed.set()
        self._changed = anyio.Event()
        deadline = float("inf")
        if not credit:
            deadline = anyio.current_time() + self._wait_seconds
        for scope in self._waiting:
            scope.deadline = deadline
