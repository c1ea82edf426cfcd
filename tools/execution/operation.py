"""Acts that are no calls of tools, through the stages of a call."""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
from pydantic import JsonValue

from toolcell.core import GuardDeniedError, ToolCall, ToolcellError, ToolStatus
from toolcell.core.event_loop import give_way, is_large
from toolcell.guard import CallFacts, Permit
from toolcell.guard.spi import Reason
from toolcell.sandbox import ExecutionResult
from toolcell.sandbox.spi import NetworkAct, ShownBody

from ..hooks.watcher import NO_WATCH
from .attempt import Attempt, kind_of, pause_deadlines
from .call_errors import failure_status
from .components import ExecutorComponents, RunContext
from .spans import end_span, start_span

NO_COST: Mapping[str, int] = {"cpu_ms": 0, "wall_ms": 0, "bytes": 0}
"""The cost of an act that uses nothing that is counted."""

_BY_TIME = ("wall_ms", "cpu_ms")
_HOLD_SECONDS = 3_600.0
_MAX_HOLD_SECONDS = 604_800.0
_NO_RUN = RunContext()
HoldBody = Callable[[], Awaitable[ShownBody]]
_log = logging.getLogger(__name__)


class Operations:
    """Leads acts that are no calls of tools through the stages of a call.

    An act is seen while it waits and runs, the guard admits it, its cost is settled, a
    record is written.

    ```
    async with executor.operation("sandbox.port", wanted, agent_id="a") as operation:
        ...  # does what `operation.arguments` say
    ```

    Args:
        components: The guard and stores of the executor.
    """

    def __init__(self, components: ExecutorComponents) -> None:
        self._components = components

    @asynccontextmanager
    async def __call__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        agent_id: str | None,
        cost: Mapping[str, int] = NO_COST,
        run: RunContext = _NO_RUN,
        parent_id: str | None = None,
        tags: Collection[str] = (),
        names_only: Collection[str] = (),
        hold_body: HoldBody | None = None,
    ) -> AsyncIterator[Operation]:
        """Admit an act, and settle it when the body ends.

        Args:
            name: The name that rules know.
            arguments: JSON values.
            agent_id: The agent that acts.
            cost: The most that it may use, by unit. Default: nothing that is counted.
            run: The agent's run.
            parent_id: The call that it is part of.
            tags: Tags that rules know.
            names_only: Arguments, such as variables, whose values are written nowhere.
            hold_body: Reads the body that is sent with it, if people are to be asked.

        Raises:
            GuardDeniedError: On entering: it is refused.
            CallCancelledError: On entering: a person cancelled it while it waited.
        """
        call = ToolCall(
            id=uuid.uuid4().hex,
            name=name,
            arguments=dict(arguments),
            agent_id=agent_id,
            parent_id=parent_id,
        )
        if is_large(call.arguments):
            await give_way()
        operation = Operation(self._components, call, run, cost, names_only)
        operation.hold_body = hold_body
        try:
            async with AsyncExitStack() as stack:
                await operation.enter(tags, stack)
                try:
                    yield operation
                except BaseException as error:
                    operation.fail(error)
                    with anyio.CancelScope(shield=True):
                        await operation.settle()
                    raise
                await operation.settle()
        except BaseException as error:
            operation.fail(error)
            raise
        finally:
            operation.close()


class Operation:
    """One act, while its body runs.

    The body has its arguments from here alone: a person who approved the act may have
    changed them, and the audit log has these.

    Args:
        components: The guard and stores of the executor.
        call: The act, as it was asked for.
        run: The agent's run.
        cost: The amounts that are held for it, by unit.
        names_only: Arguments whose values are written nowhere.
    """

    def __init__(
        self,
        components: ExecutorComponents,
        call: ToolCall,
        run: RunContext,
        cost: Mapping[str, int],
        names_only: Collection[str],
    ) -> None:
        self._components = components
        self._call = call
        self._run = run
        self._cost = cost
        self._names_only = names_only
        self._shown = shown = self._as_shown(call)
        self._attempt = Attempt(shown, components.now())
        self._attempt.version = ""
        self._span = start_span(call)
        watcher = components.watcher
        self._watch = (
            NO_WATCH
            if watcher is None
            else watcher.begin(shown, run.run_id, run.session, None)
        )
        self._permit: Permit | None = None
        self._status: ToolStatus = "ok"
        self._error: BaseException | None = None
        self._content: JsonValue = None
        self._asked_for = call.arguments
        self._body: ShownBody | None = None
        self.hold_body: HoldBody | None = None
        """Reads the body that is sent with it, if people are to be asked."""

        self.is_settled = False
        """True once it was charged."""

        self._began = time.perf_counter()

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that were admitted."""
        return self._call.arguments

    @property
    def gate(self) -> RequestGuard:
        """Judges the requests of a program that its body starts: `run(gate=...)`."""
        call = self._call
        return RequestGuard(self._components, call.agent_id, call.id, self._run)

    def note(self, content: JsonValue) -> None:
        """Note what its record says of what became of it."""
        self._content = content

    def stop_with(self, stop: Callable[[], object]) -> None:
        """Name the function by which a person can end it, soon after it returns."""
        self._watch.stop = stop

    async def enter(self, tags: Collection[str], stack: AsyncExitStack) -> None:
        """Have it admitted; until then it can be cancelled. `Operations` calls it.

        Raises:
            GuardDeniedError: It is refused.
            CallCancelledError: A person cancelled it while it waited.
        """
        watch, attempt, guard = self._watch, self._attempt, self._components.guard
        watch.enter("running")
        self._components.records.flush()
        if guard is None:
            attempt.verdict = "unguarded"
        else:
            attempt.verdict = "denied"
            facts = self._facts(tags)
            permit = guard.admit(
                *(self._call, facts),
                while_waiting=self._while_waiting,
                preview=self._preview if self.hold_body else None,
                complete=self._with_body if self.hold_body else None,
            )
            with anyio.CancelScope() as scope:
                watch.stop = scope.cancel
                await stack.enter_async_context(permit)
            watch.stop = None
            if watch.cancelled_as is not None:
                raise watch.cancelled_as
            attempt.verdict = "allowed"
            self._take_edits(permit.call)
            self._permit = permit
        wall = self._cost.get("wall_ms")
        watch.admit(self._shown, wall / 1000 if wall else None)
        self._began = time.perf_counter()

    @asynccontextmanager
    async def _while_waiting(self) -> AsyncIterator[None]:
        self._watch.enter("parked")
        async with pause_deadlines(self._components.approval_seconds(self._run)):
            yield
        self._watch.enter("running")

    async def _with_body(self, call: ToolCall) -> ToolCall:
        """Return the act with the arguments that say which body is sent with it.

        People approve that one, and an approval for it is for no other.
        """
        assert self.hold_body is not None
        self._body = await self.hold_body()
        self._asked_for = {**call.arguments, **self._body.facts}
        self._call = call.validated(call.name, self._asked_for)
        self._shown = self._attempt.call = self._as_shown(self._call)
        return self._call

    async def _preview(self) -> str:
        return "" if self._body is None else self._body.shown

    def _facts(self, tags: Collection[str]) -> CallFacts:
        run, seconds = self._run, self._cost.get("wall_ms", 0) / 1000
        return CallFacts(
            cost=self._cost,
            tags=frozenset(tags),
            via=run.via,
            run_id=run.run_id,
            turn=run.turn,
            approval_seconds=run.approval_seconds,
            park=run.park_approvals,
            hold_seconds=min(max(seconds + 60.0, _HOLD_SECONDS), _MAX_HOLD_SECONDS),
        )

    def _take_edits(self, admitted: ToolCall) -> None:
        """Take over the arguments that the person who approved it changed."""
        if admitted.arguments != self._call.arguments:
            self._shown = self._as_shown(admitted)
            self._attempt.edited = self._shown.arguments
        self._call = admitted

    def refuse_edits(self) -> None:
        """Refuse it if a person changed it: it can be done as it was asked for only.

        Its record has what was asked for, and names what was changed.

        Raises:
            GuardDeniedError: A person changed it.
        """
        asked = self._asked_for
        names = asked.keys() | self.arguments.keys()
        edited: list[JsonValue] = [
            name
            for name in sorted(names)
            if asked.get(name, ...) != self.arguments.get(name, ...)
        ]
        if edited:
            self._attempt.verdict, self._attempt.edited = "denied", None
            self.note({"edited": edited})
            raise GuardDeniedError(
                f"a person approved it with another {', '.join(map(str, edited))}",
                hint="a request of a program is approved as it is, or denied",
                details={"reason": "edited", "edited": edited},
            )

    def _as_shown(self, call: ToolCall) -> ToolCall:
        arguments: dict[str, Any] = dict(call.arguments)
        for name in self._names_only:
            if isinstance(value := arguments.get(name), dict):
                arguments[name] = sorted(value)
        return call.validated(call.name, arguments)

    async def settle(
        self,
        result: ExecutionResult | None = None,
        *,
        usage: Mapping[str, int] | None = None,
    ) -> None:
        """Charge what a program used, and note how it ended; only the first time.

        A body that ends without it, by an error too, is charged the `wall_ms` and
        `cpu_ms` that were held in proportion of the time that has passed.

        Args:
            result: The end of the program. None: there was none, or it is not known.
            usage: What was used by unit, if it is not what the program tells.
        """
        if self.is_settled:
            return
        self.is_settled = True
        state = self._attempt.state
        if result is not None:
            state.backend = result.backend
            self._content = {"status": result.status, "exit_code": result.exit_code}
        if usage is not None:
            state.usage = {**usage}
        elif result is not None:
            state.usage = _measured(result)
        else:
            state.usage = {**self.usage_by_time()}
        if self._watch.cancelled_as is not None:
            self.fail(self._watch.cancelled_as)
        if self._permit is not None:
            await self._permit.settle(
                state.usage,
                status=self._status,
                error_kind=self._error_kind,
                result=None if result is None else result.status,
            )

    def usage_by_time(self) -> dict[str, int]:
        """Return the share of what was held that the time so far stands for."""
        took, held = (time.perf_counter() - self._began) * 1000, self._cost
        share = min(took / (held.get("wall_ms") or took), 1.0)
        by_time = {unit: math.ceil(held.get(unit, 0) * share) for unit in _BY_TIME}
        return {**NO_COST, **by_time}

    def refuse(self, error: GuardDeniedError) -> None:
        """Note that it is refused, and was not judged."""
        self._attempt.verdict = "denied"
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Note what ended it; only the first error counts."""
        if self._error is not None:
            return
        self._error = error = self._watch.cancelled_as or error
        if not isinstance(error, Exception):
            self._status = "cancelled"
        elif not isinstance(error, ToolcellError):
            self._status = "error"
        else:
            denied = self._attempt.verdict == "denied"
            status = failure_status(error)
            self._status = "denied" if denied and status == "error" else status

    @property
    def _error_kind(self) -> str | None:
        return None if self._error is None else kind_of(self._error)

    def close(self) -> None:
        """Write the record; whoever asked for the act has the answer already."""
        end_span(self._span, self._status, self._error_kind)
        redactor = self._components.redactor
        ended = self._status, self._content, self._error
        try:
            self._components.records.add(self._attempt.record(*ended, redactor))
        except ToolcellError:
            _log.exception("the record of call %r is lost", self._call.id)
        finally:
            self._watch.end(self._status)


class RequestGuard:
    """Judges what a program sends to a guarded network, each as an act of its agent.

    It is the `RequestGate` of the sandbox. Acts pass the stages of a call, and have the
    call that started the program as their parent. Their bytes are charged with that
    call.

    Args:
        components: The guard and stores of the executor.
        agent_id: The agent whose program it is.
        parent_id: The call that started it.
        run: The agent's run.
    """

    def __init__(
        self,
        components: ExecutorComponents,
        agent_id: str | None,
        parent_id: str | None,
        run: RunContext,
    ) -> None:
        self._components = components
        self._agent_id = agent_id
        self._parent_id = parent_id
        self._run = run

    @property
    def max_pause_seconds(self) -> float:
        """Seconds for which the program's clock may stand still in all."""
        return self._components.approval_seconds(self._run)

    @asynccontextmanager
    async def admit(self, act: NetworkAct) -> AsyncIterator[None]:
        """Admit an act; see `RequestGate`.

        Raises:
            ToolcellError: On entering: it is refused, or a person cancelled it.
        """
        operations = Operations(self._components)
        async with operations(
            act.name,
            act.arguments,
            agent_id=self._agent_id,
            parent_id=self._parent_id,
            # A program cannot ask again later, so no request of it is parked.
            run=replace(self._run, park_approvals=False, via="code"),
            hold_body=act.hold_body,
        ) as operation:
            operation.refuse_edits()
            operation.stop_with(act.stop)
            try:
                yield
            finally:
                operation.note({**act.outcome()})

    async def unplaced(self, act: NetworkAct, reason: Reason, message: str) -> None:
        """Record an act that is refused for a credential; see `RequestGate`.

        Raises:
            AuditError: It cannot be recorded.
        """
        call = ToolCall(
            id=uuid.uuid4().hex,
            name=act.name,
            arguments=dict(act.arguments),
            agent_id=self._agent_id,
            parent_id=self._parent_id,
        )
        operation = Operation(self._components, call, self._run, NO_COST, ())
        refusal = GuardDeniedError(message, hint=None, details={"reason": reason})
        operation.refuse(refusal)
        operation.close()
        guard = self._components.guard
        if guard is not None:
            await guard.record_unknown(call, message, reason)


def _measured(result: ExecutionResult) -> dict[str, int | str]:
    used = result.usage
    return {
        "cpu_ms": math.ceil(used.cpu_ms),
        "wall_ms": math.ceil(used.wall_ms),
        "bytes": used.network_bytes,
    }
