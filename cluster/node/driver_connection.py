"""Answers the exchanges of one driver."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import anyio
from pydantic import SecretStr, ValidationError

from toolcell.core import InvalidInputError, SandboxError, ToolcellError
from toolcell.sandbox import (
    ExecutionResult,
    Finished,
    Sandbox,
    SandboxSession,
)

from ..wire.codec import (
    pack_error,
    pack_event,
    pack_result,
    read_limits,
    read_network,
)
from ..wire.link import Exchange, Kind
from ..wire.message import WireMessage
from ..wire.protocol import FOLLOWED, OPTIONS
from ..wire.tasks import background_tasks
from . import metrics
from .calls import CallerFailedError, RunDriver
from .sessions import Sessions

_Fields = dict[str, Any]
_Answer = tuple[_Fields, list[bytes]]
_numbers = itertools.count(1)
_log = logging.getLogger(__name__)


class Agent(Protocol):
    """The agent of a node, as far as its drivers see it."""

    @property
    def warning(self) -> str:
        """The notice in results of sessions while the node drains; else empty."""

    def about(self) -> _Fields:
        """Return what the node says of itself."""

    def share(self) -> None:
        """Divide the slots anew."""

    def has_packages(self, packages: Sequence[str]) -> None:
        """Note that packages are installed."""

    async def retire(self, seconds: float) -> None:
        """Take nothing new; end when nothing runs, or after so many seconds."""

    async def undrain(self) -> None:
        """Take runs again."""


class DriverConnection:
    """One driver at a node: its runs, its sessions, its credit.

    Args:
        sandbox: The node's sandbox.
        agent: The node's agent.
        name_of: Returns the name that a greeting proves, and the node's proof for it;
            None twice if it says none. It raises SandboxError if the driver does not
            have that name.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        agent: Agent,
        name_of: Callable[[_Fields], tuple[str | None, str | None]],
    ) -> None:
        self._sandbox = sandbox
        self._agent = agent
        self._name_of = name_of
        self._sessions = Sessions(sandbox.config)
        # No name begins with a digit.
        self._name = str(next(_numbers))
        self._greeted: Exchange | None = None
        self._granted: _Fields = {}

    @property
    def places_runs(self) -> bool:
        """True once it has asked for credit; a command that looks does not."""
        return self._greeted is not None

    def grant(self, fields: _Fields) -> None:
        """Tell the driver what the node grants and has, if that has changed.

        Args:
            fields: `credit`, the runs and sessions that it may have at once, and the
                facts of `NodeAgent`.
        """
        if fields != self._granted:
            self._granted = fields
            if self._greeted is not None:
                self._greeted.send_soon(fields)

    async def serve(self, exchange: Exchange, message: WireMessage) -> None:
        """Answer one exchange."""
        try:
            fields, blobs = await self._answer(exchange, message)
            exchange.finish(Kind.END, fields, *blobs)
        except ToolcellError as error:
            exchange.finish(Kind.ERROR, pack_error(error))
        except CallerFailedError:
            failed = SandboxError("a function of the caller failed", hint="see there")
            exchange.finish(Kind.ERROR, pack_error(failed))
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            problem = InvalidInputError(
                f"the node cannot read the request: {type(error).__name__}",
                hint="use the same version of toolcell at both ends",
            )
            exchange.finish(Kind.ERROR, pack_error(problem))
        except Exception as error:  # noqa: BLE001 - the agent outlives its faults
            # Without its text, which may hold what a program was given.
            _log.error("an exchange failed: %s", type(error).__name__)
            failed = SandboxError(
                f"the node failed: {type(error).__name__}", hint="see its log"
            )
            exchange.finish(Kind.ERROR, pack_error(failed))

    async def _answer(self, exchange: Exchange, message: WireMessage) -> _Answer:
        fields = message.fields
        match fields["op"]:
            case "hello":
                return await self._hello(exchange, fields)
            case "run":
                return await self._run(exchange, message, self._sandbox, _give_up)
            case "stream":
                return await self._stream(exchange, message, self._sandbox, _give_up)
            case "session":
                return await self._session(exchange, fields)
            case "install" | "check" | "status" | "drain" | "undrain":
                return await self._of_node(fields), []
        session = self._sessions.find(fields["session"])
        match fields["op"]:
            case "session.run":
                answer = await self._run(exchange, message, session, session.interrupt)
            case "session.stream":
                answer = await self._stream(
                    exchange, message, session, session.interrupt
                )
            case _:
                answer = await self._sessions.answer(exchange, message)
        answer[0]["alive"] = session.alive
        answer[0]["paused"] = session.paused
        return answer

    async def _of_node(self, fields: _Fields) -> _Fields:
        match fields["op"]:
            case "install":
                path = await self._sandbox.install(fields["packages"])
                self._agent.has_packages(fields["packages"])
                return {"path": path}
            case "check":
                await self._sandbox.check()
            case "status":
                return self._agent.about()
            case "drain":
                await self._agent.retire(float(fields["seconds"]))
            case "undrain":
                await self._agent.undrain()
        return {}

    async def _hello(self, exchange: Exchange, fields: _Fields) -> _Answer:
        name, proof = self._name_of(fields)
        self._name = name or self._name
        exchange.send_soon({**self._agent.about(), "credit": 0, "proof": proof})
        self._greeted = exchange
        self._agent.share()
        await anyio.sleep_forever()
        return {}, []

    async def _run(
        self,
        exchange: Exchange,
        message: WireMessage,
        place: Sandbox | SandboxSession,
        stop: Callable[[], Awaitable[None]],
    ) -> _Answer:
        fields = message.fields
        options = self._options_of(message)
        if not FOLLOWED.isdisjoint(fields):
            result = await self._followed_run(exchange, fields, options, place, stop)
        else:
            result = await place.run(**options)
        metrics.runs.add(1, {"toolcell.status": result.status})
        self._agent.has_packages(options.get("packages", ()))
        return pack_result(self._warned(place, result))

    def _warned(
        self, place: Sandbox | SandboxSession, result: ExecutionResult
    ) -> ExecutionResult:
        """Return the result that ends a session whose node drains."""
        warning = self._agent.warning
        if place is self._sandbox or not warning:
            return result
        return result.model_copy(update={"warnings": (*result.warnings, warning)})

    async def _followed_run(
        self,
        exchange: Exchange,
        fields: _Fields,
        options: _Fields,
        place: Sandbox | SandboxSession,
        stop: Callable[[], Awaitable[None]],
    ) -> ExecutionResult:
        """Run a program, and report it to the driver while it goes on."""
        if "on_output" in fields:
            options["on_output"] = lambda stream, data: exchange.send_soon(
                {"output": stream}, data
            )
        if "on_display" in fields:
            options["on_display"] = lambda output: exchange.send_soon(
                {"display": output.model_dump(mode="json")}
            )
        if "on_connection" in fields:
            options["on_connection"] = lambda found: exchange.send_soon(
                {"connection": found.model_dump()}
            )
        driver = RunDriver(exchange, fields, stop)
        result: ExecutionResult
        async with background_tasks() as tasks:
            tasks.start_soon(driver.listen)
            result = await place.run(**options, calls=driver.calls, gate=driver.gate)
        return result

    async def _stream(
        self,
        exchange: Exchange,
        message: WireMessage,
        place: Sandbox | SandboxSession,
        stop: Callable[[], Awaitable[None]],
    ) -> _Answer:
        options = self._options_of(message)
        driver = RunDriver(exchange, message.fields, stop)
        async with background_tasks() as tasks:
            tasks.start_soon(driver.listen)
            async with aclosing(place.stream(**options, gate=driver.gate)) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        metrics.runs.add(1, {"toolcell.status": event.result.status})
                        return pack_event(Finished(self._warned(place, event.result)))
                    fields, blobs = pack_event(event)
                    await exchange.send(fields, *blobs)
                    # Nothing is read ahead of the reader.
                    await driver.wants_more()
        raise SandboxError("a stream ended without its result", hint="run it again")

    def _options_of(self, message: WireMessage) -> _Fields:
        options = options_of(message)
        if "agent_id" in options:
            options["agent_id"] = self._agent_of(options["agent_id"])
        return options

    def _agent_of(self, name: str | None) -> str | None:
        """Return an agent's name at this node, where drivers share no agents."""
        return None if name is None else f"{self._name}/{name}"

    async def _session(self, exchange: Exchange, fields: _Fields) -> _Answer:
        opened = self._sandbox.session(
            packages=fields["packages"],
            agent_id=self._agent_of(fields["agent_id"]),
            network=read_network(fields["network"]),
        )
        async with opened as session:
            self._agent.has_packages(fields["packages"])
            with self._sessions.kept(session) as number:
                exchange.send_soon(self._sessions.about(number))
                await anyio.sleep_forever()
        return {}, []


async def _give_up() -> None:
    raise CallerFailedError


def options_of(message: WireMessage) -> _Fields:
    """Return the arguments of `run` or `stream` that a driver sent."""
    fields, blobs = message.fields, [*message.blobs]
    options: _Fields = dict(fields["options"])
    if odd := options.keys() - OPTIONS:
        raise InvalidInputError(
            f"a run on a node has no {', '.join(sorted(odd))}",
            hint="what cells are is in the node's own configuration",
        )
    if "limits" in fields:
        options["limits"] = read_limits(fields["limits"])
    if "network" in fields:
        options["network"] = read_network(fields["network"])
    if "secrets" in fields:
        secrets: Mapping[str, str] = fields["secrets"]
        options["secrets"] = {name: SecretStr(text) for name, text in secrets.items()}
    if "stdin" in fields:
        options["stdin"] = blobs.pop(0)
    if "files" in fields:
        options["files"] = dict(zip(fields["files"], blobs, strict=True))
    return options
