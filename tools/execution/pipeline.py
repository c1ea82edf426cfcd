"""One call through its stages: look up, validate, admit, run, settle, record."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import anyio
from pydantic import JsonValue

from toolcell.core import (
    InvalidInputError,
    ToolCall,
    ToolcellError,
    ToolResult,
    ToolStatus,
)
from toolcell.core.event_loop import beside_loop, give_way, is_large
from toolcell.guard import ActionGuard

from ..definition.json_schema_tool import JSONSchemaTool
from ..definition.previews import preview_of
from ..definition.tool import Tool
from ..definition.validation import Arguments, no_arguments
from ..hooks.hook import Invocation, Proceed, chained
from ..hooks.watcher import NO_WATCH, CallWatch, CallWatcher
from ..registry.snapshot import Snapshot
from ..stores.idempotency import CallKey, call_keys, end_key
from .attempt import Attempt, FailureStatus, pause_deadlines
from .call_errors import (
    cancelled,
    cancelled_itself,
    failure_status,
    fault,
    is_in_doubt,
    is_worth_retrying,
    masked,
    not_json,
    record_lost,
)
from .components import ExecutorComponents, RunContext
from .failure_policies import CircuitOutcome, RetryPolicy
from .operation import RequestGuard
from .runner import as_json
from .slots import Slot
from .spans import in_span, start_span
from .stepping import CALLERS_TASK, TaskCancels
from .user_questions import UserQuestions

_log = logging.getLogger(__name__)
_RunOutcome = tuple[ToolResult, ToolcellError | None]


class Pipeline:
    """One call, from the request to the result.

    The stages are: take a slot, look the tool up, validate the arguments, claim the
    idempotency keys, be admitted by the guard, run inside the hooks, settle with the
    guard, write the record. `execute` goes through all of them. A failure at any stage
    ends the call there, as one `ToolResult`; a retry repeats the stages from admission
    on. Each attempt leaves one record. Only a cancellation from outside is raised,
    after its record is written.

    A pipeline serves one call and is used once.

    Args:
        components: The guard, runner and stores of the executor.
        snapshot: The tools of the whole batch.
        call: The request.
        run: The agent's run.
        slot: The slot that the call waits for and holds while it runs.
        cancels: Tells cancellations from outside from those that a tool made up.
        problem: The reason why the call cannot be made at all.
    """

    _tool: Tool
    _arguments: Arguments
    _validated_call_cache: ToolCall | None
    _on_output: Sequence[Callable[[str, bytes], None]] = ()
    _watch: CallWatch = NO_WATCH

    def __init__(
        self,
        components: ExecutorComponents,
        snapshot: Snapshot,
        call: ToolCall,
        run: RunContext,
        *,
        slot: Slot | None = None,
        cancels: TaskCancels = CALLERS_TASK,
        problem: ToolcellError | None = None,
    ) -> None:
        self._components = components
        self._snapshot = snapshot
        self._call = call
        self._run = run
        self._slot = slot
        self._cancels = cancels
        self._attempt = Attempt(call, components.now())
        self._keys: list[str] = []
        """The idempotency keys that were claimed for it."""
        self.error = problem
        """The error that ended the call, if it failed."""

    def execute(self) -> Coroutine[Any, Any, ToolResult]:
        """Return the one result of the call; only cancellation is raised."""
        span, watcher = start_span(self._call), self._components.watcher
        work = self._execute() if watcher is None else self._execute_watched(watcher)
        return in_span(span, work) if span.is_recording() else work

    async def _execute_watched(self, watcher: CallWatcher) -> ToolResult:
        call, run = self._call, self._run
        status: ToolStatus = "cancelled"
        with anyio.CancelScope() as scope:
            watch = watcher.begin(call, run.run_id, run.session, scope.cancel)
            self._watch = watch
            try:
                result = await self._execute()
                status = result.status
                return result
            finally:
                watch.end(status)
        # Its record is written: the pipeline was cancelled.
        self.error = watch.cancelled_as or cancelled(begun=True)
        return self._attempt.failed(self.error, "cancelled")

    def refuse(self, error: ToolcellError) -> ToolResult:
        """Return the result of a call that is not made at all."""
        return self._close_failed(error)

    def stop(self) -> None:
        """Write the record of a call that was cancelled before it began."""
        self._close_failed(cancelled(begun=False), "cancelled")

    async def _execute(self) -> ToolResult:
        slot = self._slot
        try:
            if self.error is not None:
                raise self.error
            if slot is None:
                return await self._begin()
            try:
                if not slot.enter():
                    self._watch.enter("queued")
                    await slot.wait()
                self._attempt.state.held = slot.held
                return await self._begin()
            finally:
                slot.release()
        except ToolcellError as error:
            return self._close_failed(error)
        except Exception as error:  # noqa: BLE001 - one call's fault, not the batch's
            _log.exception("the call %r ended by a fault", self._call.id)
            return self._close_failed(fault(error), cause=error)
        except BaseException as error:
            is_cancel = isinstance(error, anyio.get_cancelled_exc_class())
            if is_cancel and not self._cancels.are_from_outside():
                # A tool cancelled the task it ran in, and ended before it was stopped.
                made_up = cancelled_itself(self._call.name)
                return self._close_failed(made_up, cause=error)
            # Nobody takes the result, but the record is written.
            shown = self._watch.cancelled_as or cancelled(begun=True)
            self._close_failed(shown, "cancelled", cause=error)
            raise

    async def _begin(self) -> ToolResult:
        """Look the tool up, check the arguments, and go through the other stages."""
        self._watch.enter("running")
        call, run = self._call, self._run
        if run.on_start is not None:
            await run.on_start()
        try:
            tool = self._snapshot.for_agent(call.agent_id).get_or_raise(call.name)
        except ToolcellError as error:
            return await self._components.refuse_unknown(call, error)
        self._tool = self._attempt.tool = tool
        if isinstance(tool, JSONSchemaTool) and is_large(call.arguments):
            # A schema of others may take a second.
            await beside_loop(call.agent_id or "", self._validate)
        else:
            self._validate()
        keys = call_keys(call, tool, self._arguments, run.run_id)
        return await self._run_once_per_key(*keys)

    def _validate(self) -> None:
        if self._call.malformed is not None:
            raise no_arguments(self._tool.name, self._call.why_malformed)
        try:
            self._arguments = self._tool.validate(self._call.arguments)
        except ToolcellError:
            raise
        except Exception as error:
            raise masked(self._tool.name, error) from error
        self._validated_call_cache = None

    @property
    def _validated_call(self) -> ToolCall:
        """The call as the guard judges it: with the arguments the tool will get."""
        if self._validated_call_cache is None:
            name, arguments = self._tool.name, self._arguments.json
            self._validated_call_cache = self._call.validated(name, arguments)
        return self._validated_call_cache

    async def _run_once_per_key(self, first: CallKey, *rest: CallKey) -> ToolResult:
        """Run under the keys, or return the earlier result that one of them has."""
        key, body = first
        large = is_large(body.arguments)
        if large:
            await give_way()
        idempotency, repeatable = self._components.idempotency, self._tool.idempotent
        if not idempotency.take(key, body, repeatable=repeatable):
            earlier = await idempotency.claim(key, body, repeatable=repeatable)
            if earlier is not None:
                return await self._replay(earlier)
        result: ToolResult | None = None
        self._keys.append(key)
        try:
            if large:
                await give_way()
            result = await (self._run_once_per_key(*rest) if rest else self._attempts())
            return result
        finally:
            end_key(idempotency, key, result, self._attempt.in_doubt, repeatable)

    async def _replay(self, earlier: ToolResult) -> ToolResult:
        """Return an earlier result, if the agent may still make the call."""
        attempt = self._attempt
        attempt.replayed = True
        attempt.verdict = "unguarded"
        if self._components.guard is not None:
            attempt.verdict = "denied"
            facts = self._components.facts_of(self._tool, self._run)
            decision = await self._components.guard.decide(self._validated_call, facts)
            if decision.verdict == "deny":
                raise decision.to_error()
            attempt.verdict = "allowed"
        names = {"call_id": self._call.id, "name": self._call.name}
        return self._close_attempt(earlier.model_copy(update=names))

    # One attempt, or several.

    def _attempts(self) -> Coroutine[Any, Any, ToolResult]:
        retries = self._components.retries
        if not (retries and self._tool.idempotent and self._tool.name in retries):
            return self._one_attempt(final=True)
        return self._run_with_retries(retries[self._tool.name])

    async def _run_with_retries(self, policy: RetryPolicy) -> ToolResult:
        for number in range(1, policy.max_attempts):
            result = await self._one_attempt(final=False)
            if not self._attempt.retry:
                return result
            self._attempt = self._attempt.next(self._components.now())
            await anyio.sleep(policy.pause(number))
            # The tool may have changed the values that it got.
            self._validate()
        return await self._one_attempt(final=True)

    async def _one_attempt(self, *, final: bool) -> ToolResult:
        self._components.records.flush()
        attempt, guard = self._attempt, self._components.guard
        breaker = self._components.circuit_breaker
        circuit = None if breaker is None else breaker.enter(self._tool.name)
        outcome: CircuitOutcome = "none"
        try:
            if guard is None:
                attempt.verdict = "unguarded"
                result, error = await self._run_with_hooks()
            else:
                # The guard's own errors end the call, and say nothing of the tool.
                result, error = await self._run_admitted(guard)
            outcome = "failed" if error else "ok"
        finally:
            if circuit is not None:
                circuit.end(outcome)
        attempt.retry = not final and error is not None and is_worth_retrying(error)
        return self._close_attempt(result, error)

    async def _run_admitted(self, guard: ActionGuard) -> _RunOutcome:
        attempt = self._attempt
        attempt.verdict = "denied"
        request = self._validated_call
        facts = self._components.facts_of(self._tool, self._run)
        preview = self._tool.preview and partial(preview_of, self._tool, request)
        async with guard.admit(
            request, facts, while_waiting=self._while_waiting, preview=preview
        ) as permit:
            attempt.verdict = "allowed"
            try:
                if permit.call is not request:
                    self._take_edits(request, permit.call)
                result, error = await self._run_with_hooks()
                large = is_large(result.content)
                if large:
                    await give_way()
                size = len(result.to_text())
                if large:
                    await give_way()
            except BaseException as stopped:
                fault = isinstance(stopped, Exception)
                status: ToolStatus = "error" if fault else "cancelled"
                with anyio.CancelScope(shield=True):
                    await permit.settle(attempt.state.usage, status=status)
                raise
            await permit.settle(
                {"bytes": size, **attempt.state.usage},
                status=result.status,
                error_kind=error.kind if error else None,
                result=result.content,
            )
        if self._components.tell_remaining:
            update = {"remaining": dict(permit.remaining)}
            result = result.model_copy(update=update)
        return result, error

    def _take_edits(self, requested: ToolCall, admitted: ToolCall) -> None:
        """Take over the arguments that the person who approved the call changed."""
        if admitted.arguments != requested.arguments:
            self._attempt.edited = admitted.arguments
            self._arguments = self._tool.validate(admitted.arguments)
            self._validated_call_cache = admitted

    @asynccontextmanager
    async def _while_waiting(self) -> AsyncIterator[None]:
        """Stop the clock and lend the slot while the call waits for a person."""
        slot, idempotency = self._slot, self._components.idempotency
        self._watch.enter("parked")
        idempotency.park(self._keys)
        async with pause_deadlines(self._components.approval_seconds(self._run)):
            async with nullcontext() if slot is None else slot.lent():
                yield
        idempotency.unpark(self._keys)
        self._watch.enter("running")

    async def _run_with_hooks(self) -> _RunOutcome:
        """Run the tool inside its hooks; whatever they raise is a result."""
        watch = self._watch
        if watch is not NO_WATCH:
            seconds = self._components.seconds_of(self._tool)
            watch.admit(self._validated_call, seconds)
            self._on_output = watch.on_output
        try:
            proceed = self._hook_chain() if self._components.hooks else self._run_tool
            content = await proceed()
            if is_large(content):
                await give_way()
            state = self._attempt.state
            try:
                done = ToolResult.returned(
                    self._call, content, state.usage, state.parts
                )
            except InvalidInputError as error:
                raise not_json(self._tool.name) from error
            if done.parts and watch.on_shown is not None:
                watch.on_shown(done.parts)
            return done, None
        except ToolcellError as error:
            return self._attempt.failed(error, failure_status(error)), error
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its own
            hidden = masked(self._tool.name, error)
            return self._attempt.failed(hidden, "error"), hidden

    def _hook_chain(self) -> Proceed:
        invocation = Invocation(
            call=self._validated_call,
            tool=self._tool,
            arguments=self._arguments,
            attempt=self._attempt.number,
            seconds=self._components.seconds_of(self._tool),
            run_id=self._run.run_id,
            session=self._run.session,
            on_output=[*self._on_output],
        )
        self._on_output = invocation.on_output
        return chained(self._components.hooks, invocation, self._run_tool)

    async def _run_tool(self) -> JsonValue:
        tool, attempt, components = self._tool, self._attempt, self._components
        context = None
        if tool.sandboxed:
            attempt.state.gate = self._gate
        if tool.takes_context:
            config = self._snapshot.config_of(tool.name)
            context = components.tool_context(
                self._call, tool, self._run, config, attempt
            )
            context.on_output = self._on_output
            context.gate = self._gate
            context.ask_user = UserQuestions(components, self._call, tool, self._run)
        attempt.in_doubt = True
        try:
            value = await components.runner.run(
                tool,
                self._arguments,
                context,
                attempt.state,
                components.seconds_of(tool),
                cancels=self._cancels,
            )
        except Exception as error:
            attempt.in_doubt = is_in_doubt(error)
            raise
        return as_json(tool.name, value)

    @property
    def _gate(self) -> RequestGuard:
        call = self._call
        return RequestGuard(self._components, call.agent_id, call.id, self._run)

    # The end of an attempt.

    def _close_failed(
        self,
        error: ToolcellError,
        status: FailureStatus | None = None,
        *,
        cause: BaseException | None = None,
    ) -> ToolResult:
        """Close an attempt that an error ended outside the tool."""
        if status is None:
            status = "denied" if self._attempt.verdict == "denied" else "error"
        error.__cause__ = cause or error.__cause__
        return self._close_attempt(self._attempt.failed(error, status), error)

    def _close_attempt(
        self, result: ToolResult, error: ToolcellError | None = None
    ) -> ToolResult:
        """Write the record of an attempt and return its result."""
        self.error = error
        redactor = self._components.redactor
        try:
            ended = result.status, result.content, error
            self._components.records.add(self._attempt.record(*ended, redactor))
        except Exception as error_of_record:  # noqa: BLE001 - not the batch's fault
            _log.exception("the record of call %r is lost", self._call.id)
            self.error = record_lost(error_of_record)
            return ToolResult.failed(
                result.call_id, result.name, self.error, content=result.content
            )
        return result
