"""One connection of a program, from its first byte to its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import anyio
from pydantic import JsonValue

from ..cell.wire.contract import WINDOW_BYTES
from ..results.result import Connection
from .stream import CellStream
from .types import PlainAnswer

_MAX_HOST = 300
_MAX_REASON = 300

Verdict = Literal["allowed", "refused", "failed"]


@dataclass(slots=True, eq=False)
class Attempt:
    """One connection of a program, from its first byte to its record."""

    stream: CellStream
    host: str = ""
    port: int = 0
    verdict: Verdict = "refused"
    reason: str = ""
    address: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    asked: bool = False
    is_guarded: bool = False
    """True if a gate judges it."""

    response: PlainAnswer | None = None
    """The maker of the response, once the program's request is one of plain HTTP."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    cleanup_scope: anyio.CancelScope = field(
        default_factory=lambda: anyio.CancelScope(shield=True)
    )
    over: anyio.Event = field(default_factory=anyio.Event)

    @property
    def place(self) -> tuple[str, int]:
        """The host and the port that it asks for."""
        return self.host, self.port

    def judge(self, verdict: Verdict, why: object = "") -> None:
        """Note what becomes of it, and the reason."""
        self.verdict, self.reason = verdict, str(why)[:_MAX_REASON]

    def stop(self, why: object = "") -> None:
        """Cancel the connection; `why` is its reason unless it has one."""
        self.reason = self.reason or str(why)[:_MAX_REASON]
        self.scope.cancel()

    def withdraw(self) -> None:
        """Stop it, as its program went away before it was admitted, or sent too much.

        So much unread that its end would not be noticed is not held.
        """
        why = "the program went away"
        if self.stream.is_full:
            why = f"the program sent {WINDOW_BYTES // 1024} KiB more than was read"
        self.stop(f"{why} before it was admitted")

    def outcome(self) -> dict[str, JsonValue]:
        """Return what became of it, for the gate that admitted it."""
        facts: dict[str, JsonValue] = {"verdict": self.verdict}
        if self.reason:
            facts["reason"] = self.reason
        if self.response is not None:
            facts["status"] = self.response.status
        return facts | {"bytes_in": self.bytes_in, "bytes_out": self.bytes_out}

    def record(self) -> Connection:
        """Return its record."""
        return Connection(
            host=self.host[:_MAX_HOST],
            port=self.port,
            verdict=self.verdict,
            reason=self.reason,
            address=self.address,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
        )
