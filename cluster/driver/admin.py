"""Looks at the nodes of a cluster, and has them end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError

from toolcell.core import InvalidInputError, ToolcellError

from ..directory.connect import connect
from ..directory.records import Directory, NodeRecord
from ..wire.handshake import HandshakeRefusedError, checked_token
from ..wire.protocol import LOST_SECONDS, PROTOCOL
from ..wire.tasks import background_tasks
from .requests import listed
from .runs import ask

ASK_SECONDS = 15.0
"""Seconds that a node has for an answer. When they are over it is `unreachable`."""

PREFETCH_NODES = 8
"""Nodes that install packages at once. When it is reached others wait: the index of
packages is one for all."""


class NodeStatus(BaseModel):
    """One node, as it describes itself; an unreachable one has its name alone."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    address: str = ""
    state: Literal["ready", "draining", "sick", "unreachable"] = "unreachable"
    version: str = ""
    """The version of toolcell there."""

    protocol: int = 0
    slots: int = 0
    busy: int = 0
    """Cells that runs and sessions use now."""

    drivers: int = 0
    notices: tuple[str, ...] = ()
    image: str = ""
    """The image of its cells; empty where they have none."""

    packages: tuple[tuple[str, ...], ...] = ()
    """Sets of packages that were installed there since it began."""

    problem: str = ""
    """The reason why runs cannot be placed there; empty: they can."""


class ClusterAdmin:
    """Asks each node of a directory by itself; places no runs.

    Args:
        directory: Where the nodes are.
        token: The cluster's token, 64 hex digits.

    Raises:
        ConfigError: The token is not one.
    """

    def __init__(self, directory: Directory, *, token: str) -> None:
        self._directory = directory
        self._key = checked_token(token)

    async def status(self, *, check: bool = False) -> tuple[NodeStatus, ...]:
        """Return the nodes in the order of their names.

        Args:
            check: True has each node ask whether cells can be made.

        Raises:
            SandboxUnavailableError: The directory does not answer.
        """
        records = await self._records()
        found: dict[str, NodeStatus] = {}

        async def look(record: NodeRecord) -> None:
            found[record.name] = await self._status(record, check=check)

        async with anyio.create_task_group() as tasks:
            for record in records:
                tasks.start_soon(look, record)
        return tuple(found[record.name] for record in records)

    async def waiting(self) -> int:
        """Return how many runs and sessions wait in all drivers.

        Raises:
            SandboxUnavailableError: The directory does not answer.
        """
        return await self._directory.waiting()

    async def prefetch(self, packages: Sequence[str], seconds: float) -> dict[str, str]:
        """Have each node install a set of packages, a few nodes at once.

        Args:
            packages: The packages, as in `run`.
            seconds: Seconds that a node has. When they are over it counts as failed.

        Returns:
            Why each node does not have them, by its name; empty: it has them.

        Raises:
            SandboxUnavailableError: The directory does not answer.
        """
        places = anyio.CapacityLimiter(PREFETCH_NODES)
        found: dict[str, str] = {}
        fields = {"op": "install", "packages": listed(packages)}

        async def fetch(record: NodeRecord) -> None:
            async with places:
                found[record.name] = await self._failure(record, fields, seconds)

        records = await self._records()
        async with anyio.create_task_group() as tasks:
            for record in records:
                tasks.start_soon(fetch, record)
        return {record.name: found[record.name] for record in records}

    async def _failure(
        self, record: NodeRecord, fields: dict[str, Any], seconds: float
    ) -> str:
        """Ask a node for something; return why it failed, or an empty text."""
        try:
            await self._ask(record, fields, seconds)
        except ToolcellError as error:
            return error.message
        except (OSError, TimeoutError, HandshakeRefusedError) as error:
            return f"{type(error).__name__}: {error}".rstrip(": ")
        return ""

    async def drain(self, name: str, seconds: float) -> None:
        """Tell a node to take nothing new, and to end when nothing runs.

        Args:
            name: The node's name.
            seconds: Seconds for what runs there. When they are over it is given up.

        Raises:
            InvalidInputError: There is no such node, or it does not answer.
            SandboxUnavailableError: The directory does not answer.
        """
        await self._tell(name, {"op": "drain", "seconds": seconds})

    async def undrain(self, name: str) -> None:
        """Tell a node that drains to take runs again, and to stay.

        Args:
            name: The node's name.

        Raises:
            InvalidInputError: There is no such node, it does not answer, or it is too
                late: the node ends, or a signal ends it.
            SandboxUnavailableError: The directory does not answer.
        """
        await self._tell(name, {"op": "undrain"})

    async def _tell(self, name: str, fields: dict[str, Any]) -> None:
        for record in await self._records():
            if record.name == name:
                break
        else:
            raise InvalidInputError(
                f"the cluster has no node {name!r}",
                hint="see `toolcell cluster status`",
            )
        try:
            await self._ask(record, fields)
        except InvalidInputError:
            raise
        except (OSError, TimeoutError, HandshakeRefusedError, ToolcellError) as error:
            raise InvalidInputError(
                f"the node {name} does not answer: {error}",
                hint="end its process on its machine",
            ) from None

    async def _records(self) -> Sequence[NodeRecord]:
        return sorted(await self._directory.nodes(), key=lambda each: each.name)

    async def _status(self, record: NodeRecord, *, check: bool) -> NodeStatus:
        address = f"{record.host}:{record.port}"
        status = NodeStatus(name=record.name, address=address)
        problem = ""
        try:
            answer = await self._ask(record, {"op": "status"})
            status = NodeStatus.model_validate(
                {**answer, "name": record.name, "address": address}
            )
            problem = _problem(status)
            if check and not problem:
                await self._ask(record, {"op": "check"})
        except ToolcellError as error:
            problem = error.message
        except (OSError, TimeoutError, HandshakeRefusedError, ValidationError) as error:
            problem = f"{type(error).__name__}: {error}"
        return status.model_copy(update={"problem": problem})

    async def _ask(
        self,
        record: NodeRecord,
        fields: dict[str, Any],
        seconds: float = ASK_SECONDS,
    ) -> dict[str, Any]:
        with anyio.fail_after(seconds):
            link = await connect(record, self._key, LOST_SECONDS)
            async with background_tasks() as tasks:
                tasks.start_soon(link.run)
                return (await ask(link, fields)).fields


def _problem(status: NodeStatus) -> str:
    if status.protocol != PROTOCOL:
        return (
            f"it speaks protocol {status.protocol} of toolcell {status.version}, "
            f"this machine {PROTOCOL}"
        )
    if status.state == "ready":
        return ""
    why = f": {status.problem}" if status.problem else ""
    return f"it is {status.state}{why}"
