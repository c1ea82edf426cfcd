"""The sessions of one driver, and the commands in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import anyio

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import Network, SandboxConfig, SandboxSession
from toolcell.sandbox.spi import SandboxProcess, SandboxWatch

from ..wire.codec import pack_model, pack_result, read_network
from ..wire.exchange_stream import ExchangeStream, relay
from ..wire.link import Exchange
from ..wire.message import WireMessage
from ..wire.tasks import background_tasks
from .calls import RunDriver
from .transfers import TRANSFERS, files, max_archive_bytes, transfer

_Fields = dict[str, Any]
_Answer = tuple[_Fields, list[bytes]]
_PLAIN = (
    "interrupt",
    "install",
    "rollback",
    "drop",
    "aclose",
    "pause",
    "resume",
)
"""Methods of a session without a value, whose arguments are JSON."""


class Sessions:
    """Finds sessions and commands by the numbers that the driver has of them.

    Args:
        config: What cells of this node are.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._network = config.network
        self._max_archive_bytes = max_archive_bytes(config)
        self._numbers = itertools.count(1)
        self._sessions: dict[int, SandboxSession] = {}
        self._processes: dict[int, dict[int, SandboxProcess]] = {}

    @contextmanager
    def kept(self, session: SandboxSession) -> Iterator[int]:
        """Keep a session, and its forks, while it is open; yield its number."""
        number = next(self._numbers)
        self._sessions[number] = session
        self._processes[number] = {}
        try:
            yield number
        finally:
            gone = self._processes.pop(number)
            for alias in [n for n, kept in self._processes.items() if kept is gone]:
                del self._processes[alias], self._sessions[alias]
            del self._sessions[number]

    def find(self, number: object) -> SandboxSession:
        """Return a session. Raises CellLostError."""
        session = self._sessions.get(number) if isinstance(number, int) else None
        if session is None:
            raise CellLostError("the session is closed", hint="open a new session")
        return session

    def about(self, number: int) -> _Fields:
        """Return what the driver knows of a session."""
        session = self._sessions[number]
        return {
            "session": number,
            "warnings": list(session.warnings),
            "limits": pack_model(session.limits),
            "network": pack_model(session.network),
        }

    async def answer(self, exchange: Exchange, message: WireMessage) -> _Answer:
        """Do what a driver asks of a session."""
        fields = message.fields
        session = self.find(fields["session"])
        options = fields.get("options", {})
        name = fields["op"].partition(".")[2]
        if name in _PLAIN:
            await getattr(session, name)(**options)
            return {}, []
        match name:
            case "set_network":
                await session.set_network(self._narrowed(fields["network"]))
                return {}, []
            case "fork" | "context":
                fork = await getattr(session, name)(**options)
                number = next(self._numbers)
                self._sessions[number] = fork
                self._processes[number] = self._processes[fields["session"]]
                return self.about(number), []
            case "usage":
                return {"usage": (await session.usage()).model_dump()}, []
            case "checkpoint":
                return {"checkpoint": await session.checkpoint()}, []
            case "exec":
                return await self._exec(session, exchange, message)
            case "process":
                return await self._of_process(exchange, message)
            case "watch" | "connect":
                return await _open(session, name, exchange, options)
        if name in TRANSFERS:
            most = self._max_archive_bytes
            return await transfer(session, name, exchange, fields, most)
        return await files(session, name, message)

    def _narrowed(self, fields: _Fields) -> Network:
        """Return a network that a driver asks for. Raises InvalidInputError."""
        asked = read_network(fields) or Network.none
        try:
            return self._network.narrowed_by(asked)
        except InvalidInputError as error:
            # On one machine its owner asks, who may widen it.
            raise InvalidInputError(
                f"the node allows less: {error.message}",
                hint="name the hosts in `network` of the nodes' [sandbox]",
            ) from None

    async def _exec(
        self, session: SandboxSession, exchange: Exchange, message: WireMessage
    ) -> _Answer:
        """Start a command, report it, and then its end."""
        fields = message.fields
        options = dict(fields["options"])
        if fields["has_stdin"]:
            options["stdin"] = message.blobs[0]
        number = next(self._numbers)
        processes = self._processes[fields["session"]]

        async def stop() -> None:
            await processes[number].kill()

        driver = RunDriver(exchange, fields, stop)
        process = await session.exec(**options, calls=driver.calls, gate=driver.gate)
        processes[number] = process
        about = {"process": number, "pid": process.pid, "argv": process.argv}
        exchange.send_soon(about)
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(driver.listen)
                await process.ended()
        finally:
            # A driver that has left may never have learned its number.
            await _end(process)
        return {}, []

    async def _of_process(self, exchange: Exchange, message: WireMessage) -> _Answer:
        fields = message.fields
        known = self._processes[fields["session"]]
        process = known.get(fields["process"])
        if process is None:
            raise CellLostError("the command is gone", hint="start another one")
        match fields["do"]:
            case "wait":
                return pack_result(await process.wait())
            case "output":
                async with aclosing(process.output()) as pieces:
                    async for stream, data in pieces:
                        await exchange.send({"output": stream}, data)
                        # Nothing is read ahead of the reader.
                        await exchange.receive()
            case "write":
                await process.write(message.blobs[0])
            case "close_stdin":
                await process.close_stdin()
            case "resize":
                await process.resize(fields["rows"], fields["cols"])
            case "signal":
                await process.signal(fields["number"])
            case "kill":
                await process.kill()
        return {}, []


async def _end(process: SandboxProcess) -> None:
    """Kill a command that has not ended."""
    if process.running:
        with suppress(CellLostError), anyio.move_on_after(1.0, shield=True):
            await process.kill()


async def _open(
    session: SandboxSession, name: str, exchange: Exchange, options: _Fields
) -> _Answer:
    """Open something that lasts as long as its exchange."""
    if name == "watch":
        async with await session.watch(**options) as watch:
            exchange.send_soon({"is_open": True})
            await tell_changes(exchange, watch)
    else:
        server = await session.connect(**options)
        exchange.send_soon({"is_open": True})
        await relay(ExchangeStream(exchange), server)
    return {}, []


async def tell_changes(exchange: Exchange, watch: SandboxWatch) -> None:
    """Answer questions of a driver until it has no more.

    A question takes the place of an earlier one that has no answer yet.
    """
    turn, waiting = anyio.Lock(), anyio.CancelScope()

    async def answer(asked: dict[str, Any], waiting: anyio.CancelScope) -> None:
        async with turn:
            with waiting:
                if asked["at_once"]:
                    found = await watch.changes()
                else:
                    found = (await anext(watch),)
                changes = [change.model_dump() for change in found]
                exchange.send_soon({"number": asked["number"], "changes": changes})

    async with background_tasks() as tasks:
        while True:
            _, message = await exchange.receive()
            waiting.cancel()
            waiting = anyio.CancelScope()
            tasks.start_soon(answer, message.fields, waiting)
