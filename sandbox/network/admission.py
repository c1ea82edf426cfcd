"""The way of a program's act through the gate of its guarded network."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from toolcell.core import ToolcellError
from toolcell.core.event_loop import unwrapped_single_error

from .gate import NetworkAct, RequestGate
from .http_request import CONTINUE, HTTPRequest, UnplacedError
from .run_clock import Pausable, answer_for
from .types import REFUSAL, EgressError, ProgramEnd

if TYPE_CHECKING:
    from ..credentials.agents import AgentCredentials

_log = logging.getLogger(__name__)

INTERIM_SECONDS = 3.0
"""Seconds between interim responses to a client whose request waits for a person; some
give up after 5 without a byte."""

_NO_GATE = "this network is guarded, and the program was started without a guard"


class _Wait:
    """The wait of one act for a person.

    The program's clock stands still. A program that goes away meanwhile withdraws what
    it asked for.

    Args:
        clock: The clock of its run, or command.
        stream: Its connection.
        withdraw: Called when it has gone away.
        interim: True if it gets interim answers while somebody looks.
    """

    def __init__(
        self,
        clock: Pausable,
        stream: ProgramEnd,
        withdraw: Callable[[], object],
        *,
        interim: bool,
    ) -> None:
        self._clock = clock
        self._stream = stream
        self._withdraw = withdraw
        self._interim = interim

    @asynccontextmanager
    async def pause_deadline(self) -> AsyncIterator[None]:
        """Stop the clock."""
        with unwrapped_single_error():
            async with (
                self._clock.pause_deadline(),
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(self._watch)
                if self._interim:
                    tasks.start_soon(self._reassure)
                yield
                tasks.cancel_scope.cancel()

    async def _watch(self) -> None:
        await self._stream.ended()
        self._withdraw()

    async def _reassure(self) -> None:
        while True:
            await anyio.sleep(INTERIM_SECONDS)
            await self._stream.send(CONTINUE)


@asynccontextmanager
async def admitted(
    gate: RequestGate | None,
    act: NetworkAct,
    clock: Pausable,
    stream: ProgramEnd,
    withdraw: Callable[[], object],
    http: HTTPRequest | None,
) -> AsyncIterator[None]:
    """Have an act admitted; the body does it.

    Args:
        gate: Judges it; None refuses it.
        act: What the program asks for.
        clock: The clock of its run, or command.
        stream: The connection on which it asks.
        withdraw: Called when it goes away while a person looks.
        http: The request that it asks for, if it is one that can be read.

    Raises:
        EgressError: On entering: it is not admitted.
    """
    if gate is None:
        raise EgressError(_NO_GATE, headers={REFUSAL: "no_guard"})
    interim = http is not None and http.takes_interim
    answer_for(_Wait(clock, stream, withdraw, interim=interim))
    async with AsyncExitStack() as stack:
        if http is not None:
            stack.callback(http.let_go)
        try:
            await stack.enter_async_context(gate.admit(act))
        except ToolcellError as error:
            raise _refusal(error, act) from None
        yield


async def use_credentials(
    http: HTTPRequest,
    credentials: AgentCredentials,
    gate: RequestGate | None,
    act: NetworkAct,
) -> None:
    """Write credentials into a request.

    Args:
        http: It.
        credentials: Those of its program's agent.
        gate: Takes note if they cannot be written; None: there is no one to.
        act: What the program asks for.

    Raises:
        EgressError: They cannot; or it opens a WebSocket.
    """
    try:
        http.use(credentials)
    except UnplacedError as error:
        if gate is not None:
            await _note(gate, act, error)
        raise


async def _note(gate: RequestGate, act: NetworkAct, error: UnplacedError) -> None:
    try:
        await gate.unplaced(act, error.reason, str(error))
    except ToolcellError as problem:
        _log.error("a refused %s is not recorded: %s", act.name, problem)


def _refusal(error: ToolcellError, act: NetworkAct) -> EgressError:
    """Return the refusal for a program, in words for a model that reads them."""
    facts = act.arguments
    host = f"{facts['host']}:{facts['port']}"
    wanted = host if act.name == "net.connect" else f"{facts['method']} {host}"
    if act.name != "net.connect":
        wanted += str(facts["path"])[:200]
    reason = str(error.details.get("reason") or error.kind)
    if reason == "tool.cancelled":
        message = f"a person stopped {act.name} {wanted}"
        return EgressError(message, headers={REFUSAL: "cancelled"})
    rule = error.details.get("rule")
    headers = {REFUSAL: reason}
    retry_after = error.details.get("retry_after")
    why = f" ({rule})" if rule else ""
    message = (
        f"the policy of this sandbox does not allow {act.name} {wanted}: "
        f"{error.message}{why}. "
    )
    if isinstance(retry_after, int | float):
        headers["Retry-After"] = str(math.ceil(retry_after))
        message += f"Try again in {math.ceil(retry_after)} s."
    else:
        message += (
            "There is no other way to send it: say so, or ask for what is allowed."
        )
    return EgressError(message, headers=headers)
