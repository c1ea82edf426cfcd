"""The way of one call: look up, validate, admit, run, settle, record.

Whatever ends a call ends it here, as one `ToolResult` and one record for each
attempt. Only a cancellation that was sent from outside goes on, after its record
is written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

import anyio
from opentelemetry import trace
from pydantic import JsonValue

from toolcell.core import (
    StoreUnavailableError,
    ToolCall,
    ToolcellError,
    ToolExecutionError,
    ToolResult,
    ToolStatus,
    ToolTimeoutError,
)
from toolcell.guard import ActionGuard, CallFacts

from ..definition.context import ToolContext
from ..definition.tool import Tool
from ..definition.validation import Arguments
from ..hooks.hook import Invocation, Proceed
from ..registry.snapshot import Snapshot
from ..stores.idempotency import CallBody
from .attempt import Attempt, ExecutorComponents, RunContext
from .circuit_breaker import CircuitOutcome
from .retries import RetryPolicy
from .runner import as_json, is_cancelled, pause_deadlines
from .sandboxed import TRY_OTHERS
from .slots import Slot
from .spans import close_span, start_span

_log = logging.getLogger(__name__)
_MAX_FACTS = 4_096
_RunOutcome = tuple[ToolResult, ToolcellError | None]
_ClaimKey = tuple[str, CallBody]
_FailureStatus = Literal["error", "denied", "timeout", "cancelled"]


class Pipeline:
    """One call on its way.

    Args:
        components: What it goes through.
        snapshot: The tools that there are, for the whole batch.
        call: What was asked for.
        run: What is known of the agent's run.
        slot: What the call waits for and holds while it runs.
        own_task: Whether nobody but the executor cancels the task it is made in.
        problem: Why the call cannot be made at all.
    """

    _tool: Tool
    _arguments: Arguments

    def __init__(
        self,
        components: ExecutorComponents,
        snapshot: Snapshot,
        call: ToolCall,
        run: RunContext,
        *,
        slot: Slot | None = None,
        own_task: bool = False,
        problem: ToolcellError | None = None,
    ) -> None:
        self._components = components
        self._snapshot = snapshot
        self._call = call
        self._run = run
        self._slot = slot
        self._own_task = own_task
        self._attempt = Attempt(_now(components))
        self._in_doubt = False
        self._validated_call_cache: ToolCall | None = None
        self.error = problem
        """What ended the call, if it failed."""

    def execute(self) -> Coroutine[Any, Any, ToolResult]:
        """Return the one result of the call; only cancellation is raised."""
        span = start_span(self._call)
        return self._execute_traced(span) if span.is_recording() else self._execute()

    async def _execute_traced(self, span: trace.Span) -> ToolResult:
        with trace.use_span(span, end_on_exit=True):
            result = await self._execute()
            close_span(span, result)
            return result

    def refuse(self, error: ToolcellError) -> ToolResult:
        """Return the result of a call that is not made at all."""
        return self._close_failed(error)

    def stop(self) -> None:
        """Keep a record of a call that was given up before it began."""
        self._close_failed(
            ToolExecutionError(
                "the call was cancelled",
                hint="if its result is still wanted, call it again",
            ),
            "cancelled",
        )

    async def _execute(self) -> ToolResult:
        slot = self._slot
        try:
            if self.error is not None:
                raise self.error
            if slot is None:
                return await self._look_up_and_validate()
            try:
                if not slot.enter():
                    await slot.wait()
                self._attempt.state.held = slot.held
                return await self._look_up_and_validate()
            finally:
                slot.leave()
        except ToolcellError as error:
            return self._close_failed(error)
        except Exception as error:  # noqa: BLE001 - one call's fault, not the batch's
            _log.exception("the call %r ended by a fault", self._call.id)
            fault = ToolExecutionError(
                f"the call could not be made ({_type_name(error)})", hint=TRY_OTHERS
            )
            return self._close_failed(fault, cause=error)
        except BaseException as error:
            cancelled = isinstance(error, anyio.get_cancelled_exc_class())
            if cancelled and self._own_task and not is_cancelled(own_task=True):
                # A tool cancelled the task that it ran in, and ended before it felt it.
                made_up = ToolExecutionError(
                    f"{self._call.name} cancelled itself",
                    hint="try again, or use another tool",
                )
                return self._close_failed(made_up, cause=error)
            # Nobody takes a result, the record stays.
            stopped = ToolExecutionError(
                "the call was cancelled",
                hint="look whether it took effect before you call it again",
            )
            self._close_failed(stopped, "cancelled", cause=error)
            raise

    def _look_up_and_validate(self) -> Coroutine[Any, Any, ToolResult]:
        """Find the tool and check the arguments; the rest is to be awaited."""
        call = self._call
        tool = self._snapshot.for_agent(call.agent_id).get_or_raise(call.name)
        self._tool = self._attempt.tool = tool
        self._validate()
        return self._run_once_per_key(*self._keys())

    def _validate(self) -> None:
        try:
            self._arguments = self._tool.validate(self._call.arguments)
        except ToolcellError:
            raise
        except Exception as error:
            raise self._mask_error(error) from error
        self._validated_call_cache = None

    @property
    def _validated_call(self) -> ToolCall:
        """The call as the guard judges it: with what the tool will get."""
        if self._validated_call_cache is None:
            name, arguments = self._tool.name, self._arguments.json
            self._validated_call_cache = self._call.validated(name, arguments)
        return self._validated_call_cache

    def _mask_error(self, error: BaseException) -> ToolExecutionError:
        """Return what a model may know of an error that nobody meant for it."""
        masked = ToolExecutionError(
            f"{self._tool.name} failed ({_type_name(error)})", hint=TRY_OTHERS
        )
        masked.__cause__ = error
        return masked

    # What happens once, however often it is asked for.

    def _keys(self) -> list[_ClaimKey]:
        """Return what must happen once, each with what is asked for under it."""
        tool, call = self._tool, self._call
        agent, made = _length_prefixed(call.agent_id), f"{tool.name}/{tool.version}"
        keys = [(f"call/{agent}/{call.id}", CallBody(made, call.arguments))]
        if tool.idempotent:
            # Defaults are filled in here: sent or left out, they are the same.
            body = CallBody(made, self._arguments.json)
            run = _length_prefixed(self._run.run_id)
            keys.append((f"arguments/{agent}/{run}/{body.text}", body))
        return keys

    async def _run_once_per_key(self, first: _ClaimKey, *rest: _ClaimKey) -> ToolResult:
        """Run under the keys; hand out an earlier result if one of them has it."""
        key, body = first
        idempotency, repeatable = self._components.idempotency, self._tool.idempotent
        if not idempotency.take(key, body, repeatable=repeatable):
            earlier = await idempotency.claim(key, body, repeatable=repeatable)
            if earlier is not None:
                return await self._replay(earlier)
        result: ToolResult | None = None
        try:
            result = await (self._run_once_per_key(*rest) if rest else self._attempts())
            return result
        finally:
            self._end_key(key, result)

    def _end_key(self, key: str, result: ToolResult | None) -> None:
        idempotency = self._components.idempotency
        try:
            if result is not None and result.ok:
                idempotency.finish(key, result)
            elif self._in_doubt and not self._tool.idempotent:
                idempotency.doubt(key)
            else:
                idempotency.forget(key)
        except StoreUnavailableError as error:
            # The key stays as claimed, and a later call finds its outcome unknown.
            _log.warning("an idempotency key was not ended: %s", error)

    async def _replay(self, earlier: ToolResult) -> ToolResult:
        """Hand out an earlier result, if the agent may still make the call."""
        attempt = self._attempt
        attempt.replayed = True
        attempt.verdict = "unguarded"
        if self._components.guard is not None:
            attempt.verdict = "denied"
            decision = await self._components.guard.decide(
                self._validated_call, self._facts()
            )
            if decision.verdict == "deny":
                return self._close_failed(decision.to_error(), "denied")
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
            failed, self._attempt = (
                self._attempt,
                Attempt(_now(self._components), number + 1),
            )
            self._attempt.tool = self._tool
            self._attempt.state.held = failed.state.held
            await anyio.sleep(policy.pause(number))
            # The tool may have changed the values that it got.
            self._validate()
        return await self._one_attempt(final=True)

    async def _one_attempt(self, *, final: bool) -> ToolResult:
        attempt, guard = self._attempt, self._components.guard
        breaker = self._components.circuit_breaker
        circuit = None if breaker is None else breaker.enter(self._tool.name)
        outcome: CircuitOutcome = "none"
        try:
            if guard is None:
                attempt.verdict = "unguarded"
                result, error = await self._run_with_hooks()
            else:
                # What it raises is its own.
                result, error = await self._run_admitted(guard)
            outcome = "failed" if error else "ok"
        finally:
            if circuit is not None:
                circuit.end(outcome)
        attempt.retry = not final and error is not None and _is_worth_retrying(error)
        return self._close_attempt(result, error)

    async def _run_admitted(self, guard: ActionGuard) -> _RunOutcome:
        attempt = self._attempt
        attempt.verdict = "denied"
        request = self._validated_call
        async with guard.admit(
            request, self._facts(), parked=self._while_waiting
        ) as permit:
            attempt.verdict = "allowed"
            try:
                asked, judged = request.arguments, permit.call.arguments
                if judged is not asked and judged != asked:
                    # Who approved it changed it.
                    attempt.edited = permit.call.arguments
                    self._arguments = self._tool.validate(permit.call.arguments)
                    self._validated_call_cache = permit.call
                result, error = await self._run_with_hooks()
            except BaseException as stopped:
                fault = isinstance(stopped, Exception)
                status: ToolStatus = "error" if fault else "cancelled"
                with anyio.CancelScope(shield=True):
                    await permit.settle(attempt.state.usage, status=status)
                raise
            await permit.settle(
                {"bytes": len(result.to_text()), **attempt.state.usage},
                status=result.status,
                error_kind=error.kind if error else None,
                result=result.content,
            )
        if self._components.tell_remaining:
            update = {"remaining": dict(permit.remaining)}
            result = result.model_copy(update=update)
        return result, error

    def _while_waiting(self) -> AbstractAsyncContextManager[None]:
        """Return what holds while the call waits for a person."""
        return pause_deadlines(self._components.approval_seconds(self._run))

    def _facts(self) -> CallFacts:
        """Return the same for each call of a tool in a run: the guard goes by it."""
        tool, run, known = self._tool, self._run, self._components.facts
        found = known.get(id(tool))
        if found is not None and found[0] is tool and found[1] is run:
            return found[2]
        if len(known) >= _MAX_FACTS:
            known.clear()
        facts = self._new_facts()
        known[id(tool)] = (tool, run, facts)
        return facts

    def _new_facts(self) -> CallFacts:
        tool, run = self._tool, self._run
        return CallFacts(
            version=tool.version,
            tags=frozenset(tool.tags),
            definition_hash=tool.definition_hash,
            cost=self._components.runner.max_cost(tool, self._seconds),
            run_id=run.run_id,
            turn=run.turn,
            requires_approval=tool.requires_approval,
            approval_seconds=run.approval_seconds,
        )

    @property
    def _seconds(self) -> float:
        timeout = self._tool.timeout
        return self._components.timeout_seconds if timeout is None else timeout

    async def _run_with_hooks(self) -> _RunOutcome:
        """Run the tool inside its hooks; whatever they raise is a result."""
        try:
            proceed = self._hook_chain() if self._components.hooks else self._run_tool
            content = await proceed()
            usage = self._attempt.state.usage
            return ToolResult.returned(self._call, content, usage), None
        except ToolTimeoutError as error:
            return self._failed_result(error, "timeout"), error
        except ToolcellError as error:
            return self._failed_result(error, "error"), error
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its own
            masked = self._mask_error(error)
            return self._failed_result(masked, "error"), masked

    def _failed_result(
        self, error: ToolcellError, status: _FailureStatus
    ) -> ToolResult:
        result = ToolResult.failed(self._call.id, self._call.name, error, status=status)
        return result.model_copy(update={"usage": self._attempt.state.usage})

    def _hook_chain(self) -> Proceed:
        proceed: Proceed = self._run_tool
        invocation = Invocation(
            call=self._validated_call,
            tool=self._tool,
            arguments=self._arguments,
            attempt=self._attempt.number,
        )
        for hook in reversed(self._components.hooks):
            proceed = partial(hook.around, invocation, proceed)
        return proceed

    async def _run_tool(self) -> JsonValue:
        state, seconds = self._attempt.state, self._seconds
        context = self._context(seconds) if self._tool.takes_context else None
        self._in_doubt = True
        try:
            value = await self._components.runner.run(
                self._tool,
                self._arguments,
                context,
                state,
                seconds,
                own_task=self._own_task,
            )
        except ToolTimeoutError:
            raise
        except Exception as error:
            self._in_doubt = _is_in_doubt(error)
            raise
        return as_json(self._tool.name, value)

    def _context(self, seconds: float) -> ToolContext:
        call, run = self._call, self._run
        clock = self._components.clock
        context = ToolContext(
            call_id=call.id,
            tool_name=self._tool.name,
            agent_id=call.agent_id,
            parent_id=call.parent_id,
            run_id=run.run_id,
            turn=run.turn,
            session=run.session,
            approval_seconds=run.approval_seconds,
            idempotency_key=f"{_length_prefixed(call.agent_id)}/{call.id}",
            attempt=self._attempt.number,
            deadline=time.monotonic() + seconds,
            messages=run.messages,
            confidence=run.confidence,
            metadata=run.metadata,
            config=self._snapshot.config_of(self._tool.name),
            on_progress=run.on_progress,
            on_cost=self._attempt.state.spend,
            artifacts=run.artifacts,
        )
        if clock is not None:
            context.clock = clock
        return context

    # The end of an attempt.

    def _close_failed(
        self,
        error: ToolcellError,
        status: _FailureStatus | None = None,
        *,
        cause: BaseException | None = None,
    ) -> ToolResult:
        """Close an attempt that an error ended outside the tool."""
        if status is None:
            denied = self._attempt.verdict == "denied"
            status = "denied" if denied else "error"
        error.__cause__ = cause or error.__cause__
        return self._close_attempt(self._failed_result(error, status), error)

    def _close_attempt(
        self, result: ToolResult, error: ToolcellError | None = None
    ) -> ToolResult:
        """Write the record of an attempt and return its result."""
        self.error = error
        redactor = self._components.redactor
        try:
            record = self._attempt.record(self._call, result, error, redactor)
            self._components.records.add(record)
        except Exception as fault:  # noqa: BLE001 - one call's fault, not the batch's
            _log.exception("the record of call %r is lost", self._call.id)
            self.error = ToolExecutionError(
                "the record of the call is lost",
                hint="look whether the call took effect before it is made again",
            )
            self.error.__cause__ = fault
            return ToolResult.failed(
                result.call_id, result.name, self.error, content=result.content
            )
        return result


def _now(components: ExecutorComponents) -> datetime:
    return datetime.now(UTC) if components.clock is None else components.clock()


def _type_name(error: BaseException) -> str:
    return type(error).__name__


def _length_prefixed(name: str | None) -> str:
    """Return a name that cannot run into what follows it in a key."""
    return f"{len(name or '')}:{name or ''}"


def _is_in_doubt(error: Exception) -> bool:
    """Tell whether the tool itself does not know what came of the call."""
    details = error.details if isinstance(error, ToolExecutionError) else {}
    return details.get("outcome") == "unknown"


def _is_worth_retrying(error: ToolcellError) -> bool:
    """Tell whether the next attempt may go better."""
    return error.retryable or isinstance(error, ToolExecutionError | ToolTimeoutError)
