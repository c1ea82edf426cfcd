"""Requests of a program on a node to a guarded network, which the driver judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import anyio
import anyio.abc
from pydantic import JsonValue

from toolcell.core import GuardDeniedError, ToolcellError
from toolcell.sandbox.spi import ActName, NetworkAct, RequestGate, Unplaced

from ..wire.codec import pack_refusal, read_refusal
from ..wire.link import Exchange
from ..wire.message import WireMessage
from .remote_clock import RemoteClock

_Fields = dict[str, Any]

MAX_OPEN = 1_000
"""Acts of one run at once. When it is reached further ones are refused."""

MAX_BYTES = 256 * 1024
"""Bytes of a message about an act. When a node sends more its link ends; an honest one
has the target of a request, at most 8 KiB, or the 4 KiB of a body that people see."""

_BUSY = GuardDeniedError(
    f"{MAX_OPEN} requests of this run wait or are under way",
    hint="send fewer at once",
    details={"reason": "busy"},
)
_FAULT = GuardDeniedError(
    "the guard failed", hint="see the log of the driver", details={"reason": "fault"}
)


def is_about_act(message: WireMessage) -> bool:
    """Return True for a message that begins an act, or goes on with one."""
    return not message.fields.keys().isdisjoint(("act", "held", "ended"))


@dataclass(frozen=True, kw_only=True)
class _Body:
    """A body that a node holds, as the node describes it."""

    facts: Mapping[str, JsonValue]
    shown: str


class Acts:
    """The acts of one run on a guarded network.

    Args:
        exchange: The run's exchange.
        gate: Judges it.
        fail: Ends the run, since the gate has a fault.
    """

    def __init__(
        self,
        exchange: Exchange,
        gate: RequestGate,
        fail: Callable[[Exception], object],
    ) -> None:
        self._exchange = exchange
        self._gate = gate
        self._fail = fail
        self._open: dict[int, _Act] = {}

    def take(self, message: WireMessage, tasks: anyio.abc.TaskGroup) -> None:
        """Begin an act, or go on with one. Raises KeyError, TypeError, ValueError."""
        fields = message.fields
        if message.size > MAX_BYTES:
            raise ValueError("too much about an act")
        if "act" in fields:
            act = _Act(self._exchange, fields)
            if act.number in self._open:
                raise ValueError("an act twice")
            if len(self._open) >= MAX_OPEN:
                act.settle(_BUSY)
                return
            self._open[act.number] = act
            tasks.start_soon(self._answer, act)
            return
        number = int(fields["held" if "held" in fields else "ended"])
        if number in self._open:
            self._open[number].go_on(fields)
        elif "ended" in fields:
            # It was refused meanwhile, or its request was never sent.
            self._exchange.send_soon({"number": number, "settled": True})

    async def _answer(self, act: _Act) -> None:
        refusal: ToolcellError | None = None
        try:
            await act.answer(self._gate)
        except ToolcellError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - raised by the run
            refusal = _FAULT
            self._fail(error)
        finally:
            del self._open[act.number]
            act.settle(refusal)


class _Act:
    """One act. Raises KeyError, TypeError, ValueError if its fields cannot be read."""

    def __init__(self, exchange: Exchange, fields: _Fields) -> None:
        self._exchange = exchange
        self.number = int(fields["act"])
        self._outcome: Mapping[str, JsonValue] = {}
        self._scope = anyio.CancelScope()
        self._is_admitted = False
        self._ended = anyio.Event()
        self._held = anyio.Event()
        self._body: _Body | ToolcellError | None = None
        self._unplaced: tuple[Unplaced, str] | None = None
        if "unplaced" in fields:
            reason, message = fields["unplaced"]
            if reason not in get_args(Unplaced):
                raise ValueError("there is no such reason")
            self._unplaced = reason, str(message)
        if fields["name"] not in get_args(ActName):
            raise ValueError("there is no such act")
        self._act = NetworkAct(
            name=fields["name"],
            arguments=dict(fields["arguments"]),
            stop=lambda: self._tell(stop=True),
            outcome=lambda: self._outcome,
            hold_body=self._hold_body if fields["has_body"] else None,
        )

    def go_on(self, fields: _Fields) -> None:
        """Take note of what the node says of it."""
        if "ended" in fields:
            self._outcome = dict(fields["outcome"])
            self._ended.set()
            if not self._is_admitted:
                # The program that asked for it went away.
                self._scope.cancel()
            return
        if "error" in fields:
            self._body = read_refusal(fields["error"])
        else:
            told: _Fields = fields["facts"]
            facts: dict[str, JsonValue] = {
                "content_length": int(told["content_length"]),
                "body_sha256": str(told["body_sha256"]),
            }
            self._body = _Body(facts=facts, shown=str(fields["shown"]))
        self._held.set()

    def _tell(self, **fields: Any) -> None:
        self._exchange.send_soon({"number": self.number, **fields})

    async def _hold_body(self) -> _Body:
        self._tell(hold=True)
        await self._held.wait()
        if isinstance(self._body, ToolcellError):
            raise self._body
        assert self._body is not None
        return self._body

    async def answer(self, gate: RequestGate) -> None:
        """Have it judged, and settled once it has ended."""
        RemoteClock(self._exchange, self.number)
        with self._scope:
            await self._judged(gate)

    def settle(self, refusal: ToolcellError | None) -> None:
        """Say the last word about it."""
        refused = {} if refusal is None else {"refused": pack_refusal(refusal)}
        self._tell(settled=True, **refused)

    async def _judged(self, gate: RequestGate) -> None:
        if self._unplaced is not None:
            await gate.unplaced(self._act, *self._unplaced)
            return
        async with gate.admit(self._act):
            self._is_admitted = True
            self._tell(admitted=True)
            await self._ended.wait()
