"""Questions to a cell between its runs, each with one answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import anyio

from toolcell.core import CellLostError, SandboxUnavailableError

from ..cell.wire.frames import Frame, encode_header, frame_prefix
from .channel import Channel
from .handshake import Handshake

INTERRUPT_SECONDS = 5.0
"""Seconds in which a run, or a question, whose caller was cancelled is to end. The
supervisor kills an interrupted program after half a second. When it is reached the cell
is killed."""

_ANSWER_SECONDS = 60.0
_ANSWERS = {"file": "file", "fork": "forked", "pause": "paused", "resume": "resumed"}
OnAnswer = Callable[[dict[str, Any]], object]


class Questions:
    """Asks a cell that runs no program, one question at a time.

    Args:
        channel: Leads to the cell.
        handshake: Has greeted the cell, or does with the first question.
    """

    def __init__(self, channel: Channel, handshake: Handshake) -> None:
        self._channel = channel
        self._handshake = handshake
        self.is_open = False
        """True while a question has no answer, so that nothing else may follow."""

    async def ask(
        self,
        header: dict[str, Any],
        payload: bytes | memoryview,
        on_answer: OnAnswer | None,
        *,
        lasting: bool,
    ) -> Frame:
        """Send a frame and return its answer.

        Args:
            header: The frame's.
            payload: The frame's.
            on_answer: Called with the answer's header, also if the caller was cancelled
                meanwhile: the cell has done then what it was asked.
            lasting: True if a cancelled caller waits for the answer, for at most
                `INTERRUPT_SECONDS`, so that others can ask the cell.

        Raises:
            CellLostError: The cell is gone, or of no use any more.
            SandboxUnavailableError: The cell did not start.
        """
        head = frame_prefix(encode_header(header), len(payload))
        self.is_open = True
        try:
            await self._handshake.send(self._handshake.hello() + head, payload)
            answer = await self._answer_to(header["type"], _ANSWER_SECONDS)
        except anyio.get_cancelled_exc_class():
            if lasting:
                lost = contextlib.suppress(CellLostError, SandboxUnavailableError)
                with anyio.CancelScope(shield=True), lost:
                    # What is left of the question.
                    await self._handshake.send()
                    answer = await self._answer_to(header["type"], INTERRUPT_SECONDS)
                    if on_answer is not None:
                        on_answer(answer.header)
            raise
        if on_answer is not None:
            on_answer(answer.header)
        return answer

    async def _answer_to(self, question: str, seconds: float) -> Frame:
        try:
            with anyio.fail_after(seconds):
                await self._handshake.complete()
                answer = await self._channel.receive()
        except TimeoutError:
            raise CellLostError("the cell did not answer in time") from None
        if answer.header["type"] != _ANSWERS[question]:
            raise CellLostError("the cell answered something else")
        self.is_open = False
        return answer
