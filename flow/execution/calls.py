"""Tool calls as operations: each is made at most once, or a person is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from pydantic import JsonValue

from toolcell.core import (
    ErrorInfo,
    InvalidInputError,
    TextPart,
    ToolCall,
    ToolcellError,
    ToolExecutionError,
    ToolResult,
)
from toolcell.guard import Redactor
from toolcell.tools import RunContext, ToolExecutor

from ..stores.records import AnswerRecord, Begin, Finish, QuestionRecord, Redo
from ..values.events import CallEnded, Interrupted
from ..values.interrupt import current, inside_tool
from ..values.json_values import digest, json_bytes, jsonable
from .components import RunComponents
from .journal import TaskJournal
from .questions import DOUBT_SCHEMA, Questions, is_parked

_SHOWN_CHARACTERS = 8_000


class Calls:
    """The calls of one task.

    Args:
        parts: The parts that the tasks of the thread share.
        journal: The recorded operations of the task.
        node: The node's name.
    """

    def __init__(self, parts: RunComponents, journal: TaskJournal, node: str) -> None:
        self._parts = parts
        self._journal = journal
        self.node = node
        self._in_flight: dict[str, anyio.Event] = {}
        self.questions = Questions(parts, journal, node)
        """The questions of the attempt that runs."""

    async def make(
        self, op: str, name: str, arguments: Mapping[str, Any], call_id: str | None
    ) -> ToolResult | None:
        """Return the result of a call; None: nobody knows it, and a person is asked.

        Raises:
            InvalidInputError: There is no executor, or the arguments are no JSON.
            ReplayError: Another operation was recorded in this place.
        """
        executor = self._executor()
        try:
            values: dict[str, JsonValue] = jsonable(dict(arguments))
        except ValueError as error:
            raise InvalidInputError(
                f"the arguments of {name!r} have no JSON form: {error}",
                hint="use texts, numbers, lists and dicts",
            ) from None
        body = digest([name, values])
        self._journal.check(op, "call", name, body)
        if op in self._in_flight:
            # An earlier attempt began it, and ended before it.
            await self._in_flight[op].wait()
        replayed = op in self._journal.finished
        if not replayed and op in self._journal.begun:
            if not await self._settle(executor, op, name, values):
                return None
        if op not in self._journal.finished:
            if self.questions.waits_for_approval(op):
                return None
            await self._begin(executor, op, name, values, body)
        if op not in self._journal.finished and self.questions.waits_for_approval(op):
            return None
        result = ToolResult.model_validate(self._journal.finished[op].value)
        own_id = self._call_id(op)
        await self._parts.announce(
            CallEnded(self._journal.task_id, name, own_id, result.status, replayed)
        )
        return result.model_copy(update={"call_id": call_id or own_id})

    async def refuse_malformed(self, op: str, call: ToolCall) -> ToolResult:
        """Return the result of a call without arguments, which no tool ever gets."""
        own = ToolCall(
            id=self._call_id(op),
            name=call.name,
            malformed=call.malformed,
            agent_id=self._parts.agent,
        )
        run = self._run(None)
        result = await self._executor().call(own, run=run, raise_on_error=False)
        return result.model_copy(update={"call_id": call.id})

    def _executor(self) -> ToolExecutor:
        executor = self._parts.flow.executor
        if executor is None:
            raise InvalidInputError(
                "this flow cannot call tools", hint="Flow(graph, executor=...)"
            )
        return executor

    async def _begin(
        self,
        executor: ToolExecutor,
        op: str,
        name: str,
        arguments: dict[str, JsonValue],
        body: str,
    ) -> None:
        """Make a call, in the run's own task group: it ends even if its node does.

        It is recorded once its turn at the executor has come: one that waits when the
        process dies was not made, and is in no doubt.
        """
        call = ToolCall(
            id=self._call_id(op),
            name=name,
            arguments=arguments,
            agent_id=self._parts.agent,
        )
        assert self._parts.group is not None
        ended = self._in_flight[op] = anyio.Event()
        self._parts.calls_in_flight.add(ended)
        self._parts.group.start_soon(self._run_call, executor, op, call, body, ended)
        await ended.wait()

    async def _run_call(
        self,
        executor: ToolExecutor,
        op: str,
        call: ToolCall,
        body: str,
        ended: anyio.Event,
    ) -> None:
        current.set(None)
        inside_tool.set(True)
        failures: list[ToolcellError] = []

        async def record() -> None:
            # The executor makes results of errors; this one ends the run.
            try:
                await self._record(op, call, body)
            except ToolcellError as error:
                failures.append(error)
                raise

        try:
            run = self._run(record)
            result = await executor.call(call, run=run, raise_on_error=False)
            if failures:
                raise failures[0]
            if is_parked(result):
                await self._park(call, op, result)
            else:
                await self._finish(op, body, result, lasting=True)
        finally:
            del self._in_flight[op]
            self._parts.calls_in_flight.discard(ended)
        # An error ends the run, and with it those that wait: none is woken to look for
        # a result.
        ended.set()

    async def _record(self, op: str, call: ToolCall, body: str) -> None:
        """Record that a call begins, unless an earlier process did so."""
        if op in self._journal.begun:
            return
        now = self._parts.flow.clock()
        begin = Begin.of(self._journal.task_id, op, call, body, now)
        await self._parts.write(self._journal, begin, lasting=True)

    async def _park(self, call: ToolCall, op: str, result: ToolResult) -> None:
        """Record that a call was not made, since a person has to approve it."""
        asked = self.questions.of_approval(op, call, result)
        record = QuestionRecord(task=self._journal.task_id, op=op, interrupt=asked)
        await self._parts.write(self._journal, record)
        await self._parts.announce(Interrupted(asked))

    async def _finish(
        self,
        op: str,
        body: str,
        result: ToolResult,
        *,
        lasting: bool = False,
    ) -> None:
        finish = Finish.of(self._journal.task_id, op, body, self._cut(result))
        await self._parts.write(self._journal, finish, lasting=lasting)

    def _cut(self, result: ToolResult) -> ToolResult:
        """Return a result as it is stored: a large one is cut, but never refused.

        Pictures are named.
        """
        most = self._parts.flow.limits.record_bytes
        if result.parts:
            parts = tuple(part.as_text() for part in result.parts)
            size = sum(len(part.text.encode()) for part in parts)
            if size > most:
                parts = (TextPart(text=f"[{size} bytes of texts: not kept]"),)
            result = result.model_copy(update={"parts": parts})
        text = json_bytes(result.content)
        if len(text) <= most:
            return result
        shown = text.decode()[:_SHOWN_CHARACTERS]
        cut: JsonValue = {"cut": True, "bytes": len(text), "begins": shown}
        return result.model_copy(update={"content": cut})

    async def _settle(
        self,
        executor: ToolExecutor,
        op: str,
        name: str,
        arguments: dict[str, JsonValue],
    ) -> bool:
        """Find out what became of a call that was begun; False: a person is asked."""
        tool = executor.registry.snapshot().get(name)
        if tool is not None and tool.idempotent:
            return True
        begun = self._journal.begun[op]
        if self._parts.flow.in_doubt == "tell":
            await self._finish(op, begun.digest, self._unknown(name, op))
            return True
        payload: JsonValue = {
            "question": "did this call take effect?",
            "tool": name,
            "arguments": jsonable(Redactor()(arguments)),
            "since": begun.at.isoformat(),
        }
        doubt = self.questions.value(op, payload, kind="doubt", schema=DOUBT_SCHEMA)
        answer = self.questions.answer(op, doubt)
        if answer is None:
            return False
        result = self._as_reported(answer, name, op)
        if result is None:
            redo = Redo(task=self._journal.task_id, ops=[op])
            await self._parts.write(self._journal, redo)
        else:
            await self._finish(op, begun.digest, result)
        return True

    def _unknown(self, name: str, op: str) -> ToolResult:
        """Return the result of a call of which nobody knows whether it took effect."""
        error = ToolExecutionError(
            f"nobody knows whether this call of {name} took effect",
            hint="find out what became of it before another one is made",
            details={"outcome": "unknown"},
        )
        return self._failed(name, op, error)

    def _failed(self, name: str, op: str, error: ToolExecutionError) -> ToolResult:
        info = ErrorInfo.of(error)
        call_id = self._call_id(op)
        return ToolResult(call_id=call_id, name=name, status="error", error=info)

    def _as_reported(
        self, answer: AnswerRecord, name: str, op: str
    ) -> ToolResult | None:
        """Return the result that a person reported; None: make the call again."""
        report = answer.value if isinstance(answer.value, dict) else {}
        outcome = "failed" if answer.denied is not None else report.get("outcome")
        if outcome == "again":
            return None
        if outcome == "done":
            content = report.get("content")
            return ToolResult(call_id=self._call_id(op), name=name, content=content)
        error = ToolExecutionError(
            str(report.get("message") or "a person said that this call failed"),
            hint="do without it, or make another call",
            details={"outcome": "told", "by": answer.by},
        )
        return self._failed(name, op, error)

    def _call_id(self, op: str) -> str:
        """Return the id towards the executor: a call made again is another one."""
        repeats = self._journal.repeats.get(op, 0)
        plain = f"{self._parts.lease.thread_id}/{self._journal.task_id}/{op}"
        return f"{plain}~{repeats + 1}" if repeats else plain

    def _run(self, on_start: Callable[[], Awaitable[None]] | None) -> RunContext:
        flow, thread = self._parts.flow, self._parts.lease.thread_id
        session = flow.session
        return RunContext(
            run_id=self._parts.run_id,
            turn=self._journal.task_id,
            approval_seconds=flow.approval_seconds,
            park_approvals=True,
            on_start=on_start,
            session=None if session is None else session.replace("{thread}", thread),
            metadata={"flow": flow.graph.name, "node": self.node},
        )
