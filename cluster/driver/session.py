"""A session on a node."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyio import TemporaryDirectory, to_thread

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import Event, ExecutionResult, Limits, Network, SandboxSession
from toolcell.sandbox.spi import (
    CellUsage,
    FileInfo,
    RequestGate,
    RunRequest,
    folder_prefix,
)

from ..wire.codec import pack_model, read_limits, read_network
from ..wire.exchange_stream import ExchangeStream
from ..wire.folders import pack_folder, require_new, unpack_folder
from ..wire.link import Link
from ..wire.message import WireMessage
from .process import ClusterProcess
from .protocol_errors import closing_link_on_error
from .remote_session import RemoteSession
from .requests import RemoteRun, bytes_of, listed, packed_calls, packed_gate
from .runs import Caller, next_part, run_on, stream_on
from .watch import ClusterWatch

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from toolcell.sandbox import HostCalls
    from toolcell.sandbox.spi import OnStep

_MAX_READ_BYTES = 256 * 1024 * 1024
_MAX_DOWNLOAD_BYTES = 1024 * 1024 * 1024


class ClusterSession(SandboxSession):
    """A cell of a node that several runs of one agent share.

    It is a `SandboxSession`, as `Session` is. It stays on its node; if that is lost,
    every later call raises CellLostError.

    Args:
        link: Leads to the node.
        node: The node's name.
        agent_id: The agent whose session it is.
        about: The node's report of it.
        start: Starts work that ends with the cluster.
        processes: Commands of the same cell; forks share them.

    Raises:
        CellLostError: The node broke the protocol.
    """

    def __init__(
        self,
        link: Link,
        node: str,
        agent_id: str | None,
        about: dict[str, Any],
        start: Callable[[Callable[[], Awaitable[None]]], object],
        processes: dict[int, ClusterProcess] | None = None,
    ) -> None:
        with closing_link_on_error(link):
            number, warnings = int(about["session"]), [*map(str, about["warnings"])]
            limits = read_limits(about["limits"]) or Limits()
            network = read_network(about["network"]) or Network.none
        self._link = link
        self._remote = RemoteSession(link, number)
        self._start = start
        self._processes = {} if processes is None else processes
        self.node = node
        """The name of its node."""

        self.agent_id = agent_id
        self.warnings = tuple(warnings)
        self._limits = limits
        self._network = network

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def network(self) -> Network:
        return self._network

    @property
    def alive(self) -> bool:
        """True if the next run finds its cell, as far as this process knows."""
        return self._remote.alive and not self._link.lost

    async def _run(self, request: RunRequest) -> ExecutionResult:
        run = RemoteRun(request)
        try:
            asked = run.packed(self.limits, self._remote.fields("run"))
            return await run_on(self._link, run, asked, on_answer=self._remote.note)
        except CellLostError:
            self._remote.alive = False
            raise

    async def _stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        run = RemoteRun(request)
        asked = run.packed(self.limits, self._remote.fields("stream"))
        streamed = stream_on(self._link, run, asked, on_answer=self._remote.note)
        async with aclosing(streamed) as events:
            async for event in events:
                yield event

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | Literal["pipe"] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        timeout_seconds: float | None = None,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        calls: HostCalls | None = None,
        gate: RequestGate | None = None,
    ) -> ClusterProcess:
        has_stdin = isinstance(stdin, bytes)
        options = {
            "command": listed(command),
            "stdin": None if has_stdin else stdin,
            "env": None if env is None else dict(env),
            "cwd": cwd,
            "timeout_seconds": timeout_seconds,
            "pty": pty,
            "background": background,
        }
        blobs = [stdin] if isinstance(stdin, bytes) else []
        more: dict[str, Any] = {"options": options, "has_stdin": has_stdin}
        if calls is not None:
            more["calls"] = packed_calls(calls)
        if gate is not None:
            more["gate"] = packed_gate(gate)
        asking = self._remote.exchange("exec", *blobs, **more)
        async with AsyncExitStack() as stack:
            exchange = await stack.enter_async_context(asking)
            early = [await next_part(exchange)]
            while "process" not in early[-1].fields:
                early.append(await next_part(exchange))
            about = early.pop().fields
            with closing_link_on_error(exchange):
                caller = Caller(
                    exchange, RemoteRun(RunRequest("", calls=calls, gate=gate))
                )
                process = ClusterProcess(self._link, self._remote.number, about, caller)
            self._start(partial(process.follow, early, stack.pop_all()))
        self._processes[process.number] = process
        return process

    def processes(self) -> tuple[ClusterProcess, ...]:
        """Return the commands of this process that run in the session's cell."""
        ended = [n for n, process in self._processes.items() if not process.running]
        for number in ended:
            del self._processes[number]
        return tuple(self._processes.values())

    async def connect(self, port: int) -> ByteStream:
        async with AsyncExitStack() as stack:
            asking = self._remote.exchange("connect", options={"port": port})
            exchange = await stack.enter_async_context(asking)
            await next_part(exchange)
            return ExchangeStream(exchange, stack.pop_all())

    async def watch(
        self, path: str | PathLike[str] = "", *, recursive: bool = False
    ) -> ClusterWatch:
        async with AsyncExitStack() as stack:
            options = {"path": _path(path), "recursive": recursive}
            asking = self._remote.exchange("watch", options=options)
            exchange = await stack.enter_async_context(asking)
            await next_part(exchange)
            return ClusterWatch(exchange, stack.pop_all())

    async def pause(self) -> None:
        await self._remote.ask("pause")

    async def resume(self) -> None:
        await self._remote.ask("resume")

    @property
    def paused(self) -> bool:
        """True from `pause` to `resume`, as far as this process knows."""
        return self._remote.paused

    async def save(
        self, target: str | Path, *, max_bytes: int = _MAX_DOWNLOAD_BYTES
    ) -> tuple[str, ...]:
        require_new(Path(target), "archive")
        found = await self._remote.fetch(Path(target), "save", max_bytes=max_bytes)
        return self._remote.read(lambda m: tuple(map(str, m.fields["left"])), found)

    async def load(
        self, source: str | Path, *, max_bytes: int = _MAX_DOWNLOAD_BYTES
    ) -> int:
        found = await self._remote.send(Path(source), "load", max_bytes=max_bytes)
        return self._remote.read(lambda m: int(m.fields["entries"]), found)

    async def install(
        self, packages: Sequence[str], *, on_step: OnStep | None = None
    ) -> None:
        """Let programs import more packages; as `Session.install`.

        `on_step` is called once, with the node's name.
        """
        await self._remote.ask("install", options={"packages": listed(packages)})
        if on_step is not None:
            on_step(f"{self.node} has them")

    async def set_network(self, network: Network) -> None:
        """Change the hosts that its runs may reach, within those of its node.

        Else it is as `Session.set_network`.
        """
        if not isinstance(network, Network):
            raise InvalidInputError(
                "network must be a Network", hint="use Network.allow([...])"
            )
        await self._remote.ask("set_network", network=pack_model(network))
        self._network = network

    async def interrupt(self) -> None:
        await self._remote.ask("interrupt")

    async def fork(self, *, allow_threads: bool = False) -> ClusterSession:
        found = await self._remote.ask("fork", options={"allow_threads": allow_threads})
        return self._second(found)

    async def context(self) -> ClusterSession:
        return self._second(await self._remote.ask("context"))

    def _second(self, answer: WireMessage) -> ClusterSession:
        return ClusterSession(
            self._link,
            self.node,
            self.agent_id,
            answer.fields,
            self._start,
            self._processes,
        )

    async def usage(self) -> CellUsage:
        return await self._remote.value(
            lambda m: CellUsage.model_validate(m.fields["usage"]), "usage"
        )

    async def checkpoint(self) -> str:
        return await self._remote.value(
            lambda m: str(m.fields["checkpoint"]), "checkpoint"
        )

    async def rollback(self, checkpoint: str) -> None:
        await self._remote.ask("rollback", options={"checkpoint": checkpoint})

    async def drop(self, checkpoint: str) -> None:
        await self._remote.ask("drop", options={"checkpoint": checkpoint})

    async def aclose(self) -> None:
        await self._remote.ask("aclose")

    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        await self._remote.ask("write_file", bytes_of(data), path=_path(path))

    async def read_file(
        self, path: str | PathLike[str], max_bytes: int = _MAX_READ_BYTES
    ) -> bytes:
        return await self._remote.value(
            lambda m: m.blobs[0], "read_file", path=_path(path), max_bytes=max_bytes
        )

    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        return await self._remote.value(
            lambda m: tuple(map(FileInfo.model_validate, m.fields["files"])),
            "list_files",
            path=path,
        )

    async def remove(self, path: str | PathLike[str]) -> None:
        await self._remote.ask("remove", path=_path(path))

    async def upload(self, source: str | Path, path: str = "") -> int:
        async with TemporaryDirectory(prefix=folder_prefix()) as place:
            archive = Path(place, "archive")
            await to_thread.run_sync(pack_folder, Path(source), archive)
            found = await self._remote.send(archive, "upload", path=path)
        return self._remote.read(_files, found)

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = _MAX_DOWNLOAD_BYTES,
    ) -> int:
        require_new(Path(target))
        async with TemporaryDirectory(prefix=folder_prefix()) as place:
            archive = Path(place, "archive")
            found = await self._remote.fetch(
                archive, "download", max_bytes=max_bytes, path=path
            )
            await to_thread.run_sync(unpack_folder, archive, Path(target))
        return self._remote.read(_files, found)


def _files(message: WireMessage) -> int:
    return int(message.fields["files"])


def _path(path: str | PathLike[str]) -> str:
    return fspath(path) if isinstance(path, PathLike) else path
