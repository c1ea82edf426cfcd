"""Nodes without cells, and a wire between driver and node that can be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
from anyio.abc import ByteStream, SocketAttribute

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent
from toolcell.cluster.spi import NodeRecord
from toolcell.sandbox import ExecutionResult, Sandbox, SandboxConfig

from ..polling import until
from .patience import LONG

TOKEN = "c0" * 32


class NullSandbox:
    """What a node needs of a sandbox; its runs last until they are released."""

    notices = ()

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.config = SandboxConfig(max_concurrency=slots)
        self.begun: list[str] = []
        """The programs that came, in their order."""

        self.active_cells = 0
        self.waits = True
        """False: runs end at once."""

        self.on_run: Callable[[str], Awaitable[None]] | None = None
        """Called with each program, in place of a wait."""

        self._release = anyio.Event()

    async def run(self, code: str, **_: Any) -> ExecutionResult:
        self.begun.append(code)
        self.active_cells += 1
        try:
            if self.on_run is not None:
                await self.on_run(code)
            elif self.waits:
                await self._release.wait()
        finally:
            self.active_cells -= 1
        return ExecutionResult(status="ok", value=code)

    def release(self) -> None:
        """Let those that wait end; later ones wait again."""
        self._release.set()
        self._release = anyio.Event()


@asynccontextmanager
async def null_node(
    name: str, slots: int, **options: Any
) -> AsyncIterator[tuple[NullSandbox, NodeRecord]]:
    cells = NullSandbox(name, slots)
    agent = NodeAgent(
        cast(Sandbox, cells), token=TOKEN, name=name, check_seconds=1e6, **options
    )
    async with agent:
        yield cells, agent.record


@asynccontextmanager
async def driver(*records: NodeRecord, **options: Any) -> AsyncIterator[ClusterSandbox]:
    """Yield a driver with a link to each node, and credit on it."""
    nodes = FixedNodes(records)
    options = {"wait_seconds": LONG, **options}
    async with ClusterSandbox(nodes, token=TOKEN, **options) as sandbox:
        await until(
            lambda: (
                [bool(each.credit) for each in sandbox._nodes.open]
                == [True] * len(records)
            )
        )
        yield sandbox


class Wire:
    """Carries bytes between a driver and a node, until it is cut."""

    def __init__(self) -> None:
        self._streams: list[ByteStream] = []
        self.record: NodeRecord
        self.bytes_left: float = float("inf")
        """Bytes to the driver until it is cut by itself."""

        self.holds = False
        """True: nothing more is carried to the node."""

        self.flips = False
        """True: the next piece to the driver has a bit turned over."""

    async def cut(self) -> None:
        """End all connections; new ones are carried."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await anyio.aclose_forcefully(stream)

    async def _pass(
        self, source: ByteStream, target: ByteStream, *, back: bool
    ) -> None:
        try:
            while True:
                data = await source.receive()
                if self.holds and not back:
                    await anyio.sleep_forever()
                if back and self.flips:
                    self.flips = False
                    data = bytes([*data[:-1], data[-1] ^ 1])
                if back and self.bytes_left < len(data):
                    await target.send(data[: int(self.bytes_left)])
                    self.bytes_left = float("inf")
                    break
                if back:
                    self.bytes_left -= len(data)
                await target.send(data)
        except (
            anyio.EndOfStream,
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
        ):
            pass
        for stream in (source, target):
            await anyio.aclose_forcefully(stream)


@asynccontextmanager
async def wire_to(record: NodeRecord) -> AsyncIterator[Wire]:
    """Yield a wire; drivers use its `record`."""
    wire = Wire()

    async def carry(near: ByteStream) -> None:
        far = await anyio.connect_tcp(record.host, record.port)
        wire._streams += [near, far]
        async with near, far, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: wire._pass(near, far, back=False))
            tasks.start_soon(lambda: wire._pass(far, near, back=True))

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(SocketAttribute.local_port)
    wire.record = record.model_copy(update={"port": port})
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, carry)
        yield wire
        tasks.cancel_scope.cancel()
