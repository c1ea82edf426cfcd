"""Requests of a program on a node to a guarded network, which the driver judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import anyio
import anyio.abc
from pydantic import JsonValue

from toolcell.core import ToolcellError
from toolcell.sandbox.spi import ActName, NetworkAct, RequestGate, Unplaced

from ..wire.codec import pack_refusal, read_refusal
from ..wire.link import Exchange
from .remote_clock import RemoteClock

_Fields = dict[str, Any]

ACT_FIELDS = ("act", "held", "ended")
"""One of them is in each message about an act."""

MAX_OPEN = 1_000
"""Acts of one run at once. When a node sends more it is given up; a run there has 128
connections at once, with one act each."""


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

    def take(self, fields: _Fields, tasks: anyio.abc.TaskGroup) -> None:
        """Begin an act, or go on with one. Raises KeyError, TypeError, ValueError."""
        if "act" in fields:
            act = _Act(self._exchange, fields)
            if act.number in self._open or len(self._open) == MAX_OPEN:
                raise ValueError("more acts than allowed")
            self._open[act.number] = act
            tasks.start_soon(self._answer, act)
        # One that was refused meanwhile is gone.
        elif known := self._open.get(fields["held" if "held" in fields else "ended"]):
            known.go_on(fields)

    async def _answer(self, act: _Act) -> None:
        try:
            await act.answer(self._gate)
        except Exception as error:  # noqa: BLE001 - raised by the run
            self._fail(error)
        finally:
            del self._open[act.number]


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
            facts, shown = dict(fields["facts"]), str(fields["shown"])
            self._body = _Body(facts=facts, shown=shown)
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
        refused: _Fields = {}
        try:
            with self._scope:
                await self._judged(gate)
        except ToolcellError as error:
            refused = {"refused": pack_refusal(error)}
        self._tell(settled=True, **refused)

    async def _judged(self, gate: RequestGate) -> None:
        if self._unplaced is not None:
            await gate.unplaced(self._act, *self._unplaced)
            return
        async with gate.admit(self._act):
            self._is_admitted = True
            self._tell(admitted=True)
            await self._ended.wait()
