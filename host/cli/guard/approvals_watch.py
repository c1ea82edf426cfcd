"""`toolcell approvals watch`: shows requests as they come, and takes answers."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import anyio
from pydantic import JsonValue

from toolcell.core import InvalidInputError, ToolcellError
from toolcell.core.models import FrozenModel
from toolcell.core.text.printable import escaped_line
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    Approve,
    Reject,
    ShownRequest,
)

from ...terminal.output import print_json
from .approval_answer import answer_line, send_answer

_LOOK_SECONDS = 0.5
_QUESTION = "approve? [y]es, [n]o, anything else leaves it waiting: "
_QUESTION_OF_HIDDEN = "[o]pen the hidden parts, [n]o, anything else leaves it waiting: "
_CHUNK = 65_536
MAX_LINE_BYTES = 1_048_576
"""Length of a line in bytes. When it is reached the part so far counts as a line."""


class AnswerLine(FrozenModel):
    """One answer on standard input."""

    refusal_hint = '{"request": "ID", "answer": "deny"}'

    request: str
    answer: Literal["approve", "deny", "reveal"]
    reason: str = ""
    """The reason that the model reads, for `deny`."""

    arguments: dict[str, JsonValue] | None = None
    """Other arguments to run the call with, for `approve`."""

    seen: str | None = None
    """`digest` of the request as it was printed, for `approve` without arguments."""

    def reply(self, by: str) -> Approve | Reject:
        """Return the reply that this line stands for."""
        if self.answer == "deny":
            return Reject(approver=by, reason=self.reason)
        return Approve(approver=by, arguments=self.arguments, seen=self.seen)


async def watch_lines(approvals: Approvals, by: str) -> None:
    """Print each request as one line of JSON; read answers, an `AnswerLine` each.

    Raises:
        ToolcellError: The requests cannot be read.
        OSError: The lines cannot be written.
    """
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_print_new, approvals)
            await _take_answers(approvals, by)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # A command ends with one error; of two the first is reported.
        raise group.exceptions[0] from None


async def _take_answers(approvals: Approvals, by: str) -> None:
    async with aclosing(stdin_lines()) as lines:
        async for line in lines:
            if line.strip():
                print_json(await _answered(approvals, by, line))


async def watch_terminal(approvals: Approvals, by: str) -> None:
    """Show each request, ask, and go on until the input ends.

    Raises:
        InvalidInputError: Standard input is no terminal.
    """
    if not sys.stdin.isatty():
        raise InvalidInputError(
            "standard input is no terminal", hint="--json takes answers as lines"
        )
    async with aclosing(_new(approvals)) as requests:
        async for request in requests:
            shown = ShownRequest(request, approvals.redactor)
            letter = await _ask(shown)
            if letter == "o" and await _opened(approvals, request, by):
                shown = ShownRequest(request, approvals.redactor, opened=True)
                letter = await _ask(shown)
            if letter is None:
                print()
                return
            await _reply(approvals, shown, by, letter)


async def _ask(shown: ShownRequest) -> str | None:
    """Show a request; return the first letter of the answer, None at the end."""
    # Keys that were pressed before the request was shown do not answer it.
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    question = _QUESTION_OF_HIDDEN if shown.hidden else _QUESTION
    print(f"\n{shown.to_text()}\n{question}", end="", flush=True)
    async with aclosing(stdin_lines()) as lines:
        answer = await anext(lines, None)
    return None if answer is None else answer.strip().lower()[:1]


async def _opened(approvals: Approvals, request: ApprovalRequest, by: str) -> bool:
    try:
        await approvals.reveal(request.id, by=by)
    except InvalidInputError as error:
        print(f"toolcell: {escaped_line(str(error))}", file=sys.stderr)
        return False
    return True


async def _reply(
    approvals: Approvals, shown: ShownRequest, by: str, letter: str
) -> None:
    replies: dict[str, Approve | Reject] = {
        "y": Approve(approver=by, seen=shown.digest),
        "n": Reject(approver=by),
    }
    reply = replies.get(letter)
    if reply is None:
        print("left waiting")
        return
    try:
        sent = await send_answer(approvals, shown.request.id, reply)
    except InvalidInputError as error:
        print(f"toolcell: {escaped_line(str(error))}", file=sys.stderr)
    else:
        print(answer_line(sent))


async def _new(approvals: Approvals) -> AsyncGenerator[ApprovalRequest, None]:
    """Yield each request once."""
    seen: set[str] = set()
    while True:
        waiting = await approvals.pending()
        for request in waiting:
            if request.id not in seen:
                yield request
        seen = {request.id for request in waiting}
        await anyio.sleep(_LOOK_SECONDS)


async def _print_new(approvals: Approvals) -> None:
    async with aclosing(_new(approvals)) as requests:
        async for request in requests:
            print_json(ShownRequest(request, approvals.redactor).to_json())


async def _answered(approvals: Approvals, by: str, line: str) -> dict[str, Any]:
    try:
        answer = AnswerLine.model_validate_json(line)
        if answer.answer == "reveal":
            request = await approvals.reveal(answer.request, by=by)
            return ShownRequest(request, approvals.redactor, opened=True).to_json()
        sent = await send_answer(approvals, answer.request, answer.reply(by))
    except ToolcellError as error:
        return {"error": error.kind, "message": str(error)}
    return sent | {"answer": answer.answer}


async def stdin_lines(descriptor: int = 0) -> AsyncGenerator[str, None]:
    """Yield lines as they come, without line ends, until the input ends."""
    rest = b""
    while data := await _read(descriptor):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")


async def _read(descriptor: int) -> bytes:
    try:
        await anyio.wait_readable(descriptor)
    except PermissionError:
        # A plain file is always ready.
        await anyio.lowlevel.checkpoint()
    return os.read(descriptor, _CHUNK)
