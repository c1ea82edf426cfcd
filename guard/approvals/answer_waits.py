"""Calls that wait for the answers to their requests.

They look at the store again and again, at growing intervals of at most a second: an
answer may come from any process that has the store. The calls of one event loop look
together, so that a thousand take no more threads than one.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from toolcell.core import InvalidInputError, StoreUnavailableError, ToolCall
from toolcell.core.event_loop import unwrapped_single_error

from .records import UNANSWERED, ApprovalRecord, no_answer, outcome_of
from .types import (
    ApprovalHandler,
    ApprovalOutcome,
    ApprovalReply,
    ApprovalRequest,
    AutoApprove,
)
from .workflow import ApprovalWorkflow

_P = ParamSpec("_P")
_T = TypeVar("_T")

THREADS = 8
"""Lookups at once, and so threads. When it is reached further ones wait."""

HANDLER_THREADS = 40
"""Handlers that are plain functions, at once. When it is reached further ones wait."""

LAST_PAUSE_SECONDS = 1.0
"""The longest pause between two lookups."""

EndedRequests = Mapping[str, ApprovalRecord | None]
"""Records of requests that no longer wait, by id; None for one that is forgotten."""


class _SharedLookup:
    """One lookup for all calls that want one when it begins."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.found: EndedRequests | StoreUnavailableError | None = None


class ApprovalLookups:
    """The lookups of one event loop.

    Args:
        ended: Returns those of some requests that no longer wait.
    """

    def __init__(self, ended: Callable[[Iterable[str]], EndedRequests]) -> None:
        self._ended = ended
        self._threads = anyio.CapacityLimiter(THREADS)
        self._handlers = anyio.CapacityLimiter(HANDLER_THREADS)
        self._turn = anyio.Lock()
        self._next = _SharedLookup()
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    def turn(self, request_id: str) -> anyio.Lock:
        """Return the lock of those who are about to use one approval."""
        return self._turns.setdefault(request_id, anyio.Lock())

    async def in_thread(
        self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Run a function that may wait for a disk or a lock, in one of its threads."""
        work = partial(function, *args, **kwargs)
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def asking(
        self, handler: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Ask a person by a plain function; who gives up leaves its thread behind."""
        work = partial(handler, *args, **kwargs)
        return await anyio.to_thread.run_sync(
            work, abandon_on_cancel=True, limiter=self._handlers
        )

    async def ended(self, request_id: str) -> EndedRequests:
        """Return the record of a request, and maybe of others; empty while it waits.

        All calls that ask meanwhile are answered by one lookup.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        look = self._next
        look.ids.add(request_id)
        async with self._turn:
            if look.found is None:
                # From here on callers may know of an answer that this lookup misses.
                self._next = _SharedLookup()
                try:
                    look.found = await self.in_thread(self._ended, look.ids)
                except StoreUnavailableError as error:
                    look.found = error
        if isinstance(look.found, StoreUnavailableError):
            raise look.found
        assert look.found is not None
        return look.found


def until_next_look(pause: float) -> float:
    """Return a pause in seconds; calls that have waited for long look together."""
    if pause < LAST_PAUSE_SECONDS:
        return pause
    return LAST_PAUSE_SECONDS - anyio.current_time() % LAST_PAUSE_SECONDS


_FIRST_PAUSE_SECONDS = 0.02
_log = logging.getLogger(__name__)


class AnswerWaits:
    """Waits for answers, and asks the handler once for all calls that share a request.

    Args:
        workflow: Knows the requests, and takes the handler's replies.
        handler: Asks a person; None: replies come from elsewhere alone.
        answered_elsewhere: True if replies may also come from elsewhere.
    """

    def __init__(
        self,
        workflow: ApprovalWorkflow,
        handler: ApprovalHandler | None,
        *,
        answered_elsewhere: bool,
    ) -> None:
        self._workflow = workflow
        self._handler = handler
        self._answered_elsewhere = answered_elsewhere
        self._questions: dict[str, SharedQuestion] = {}
        self._counting = threading.Lock()

    async def outcome(
        self,
        call: ToolCall,
        request: ApprovalRequest,
        seconds: float,
        lookups: ApprovalLookups,
        *,
        parked: bool,
    ) -> ApprovalOutcome:
        """Wait for the answer about a call, and return what it makes of it.

        Args:
            call: The call.
            request: Its request, which is stored.
            seconds: Seconds to wait. When it is reached the call is unanswered.
            lookups: The lookups of this event loop.
            parked: True if the call comes again for an answer that comes later.

        Raises:
            StoreUnavailableError: The store did not answer.
        """
        with self._question(request.id) as question, unwrapped_single_error():
            try:
                async with anyio.create_task_group() as tasks:
                    outcome = await self._look(
                        call, request, seconds, question, lookups, tasks
                    )
                    tasks.cancel_scope.cancel()
            except anyio.get_cancelled_exc_class():
                if question.waiting == 1 and not parked:
                    await self._leave(request, lookups)
                raise
        return outcome

    async def _leave(self, request: ApprovalRequest, lookups: ApprovalLookups) -> None:
        """Let people know that the last call which waited was cancelled."""
        with anyio.CancelScope(shield=True), suppress(StoreUnavailableError):
            await lookups.in_thread(self._workflow.leave, request)

    @contextmanager
    def _question(self, request_id: str) -> Iterator[SharedQuestion]:
        """Join the question that all calls waiting for this answer share."""
        with self._counting:
            question = self._questions.setdefault(request_id, SharedQuestion())
            question.waiting += 1
        try:
            yield question
        finally:
            with self._counting:
                question.waiting -= 1
                if not question.waiting:
                    # A later call asks anew.
                    del self._questions[request_id]

    async def _look(
        self,
        call: ToolCall,
        request: ApprovalRequest,
        seconds: float,
        question: SharedQuestion,
        lookups: ApprovalLookups,
        tasks: TaskGroup,
    ) -> ApprovalOutcome:
        """Look at the store until there is an answer, or nobody can give one."""
        gone = anyio.Event()
        pause = _FIRST_PAUSE_SECONDS
        with anyio.move_on_after(seconds):
            while True:
                # An answer that came before this was stored before the look.
                was_over = question.is_over
                ended = await lookups.ended(request.id)
                if request.id in ended:
                    record = ended[request.id]
                    if record is None:
                        return no_answer(call, "its request is forgotten")
                    if record.status != "pending":
                        return outcome_of(call, record)
                    if record.request.expires_at < request.expires_at:
                        # It was ended, and no request stays open.
                        return no_answer(call, record.why_unanswered)
                if self._workflow.clock() >= request.expires_at:
                    break
                handler = self._handler
                # A call that was cancelled during the look asks no one.
                await anyio.lowlevel.checkpoint_if_cancelled()
                if handler is not None and question.take():
                    tasks.start_soon(
                        self._handle, handler, request, question, lookups, gone
                    )
                elif was_over and not self._answered_elsewhere:
                    break
                with anyio.move_on_after(until_next_look(pause)):
                    await (anyio.sleep_forever() if gone.is_set() else gone.wait())
                pause = min(pause * 1.5, LAST_PAUSE_SECONDS)
        return no_answer(call, UNANSWERED, request)

    async def _handle(
        self,
        handler: ApprovalHandler,
        request: ApprovalRequest,
        question: SharedQuestion,
        lookups: ApprovalLookups,
        gone: anyio.Event,
    ) -> None:
        automatic = isinstance(handler, AutoApprove)
        try:
            reply = await _reply_of(handler, request, lookups)
            if reply is not None:
                await lookups.in_thread(
                    self._hand_in, request, reply, automatic=automatic
                )
        except Exception as error:  # noqa: BLE001 - whatever it raises, nobody approved
            # The error's text may hold arguments of the call.
            _log.error("a handler of approvals failed: %s", type(error).__name__)
        except BaseException:
            question.drop()
            raise
        question.is_over = True
        gone.set()

    def _hand_in(
        self, request: ApprovalRequest, reply: ApprovalReply, *, automatic: bool
    ) -> None:
        try:
            self._workflow.answer(request.id, reply, automatic=automatic)
        except InvalidInputError as error:
            _log.error("an answer does not count: %s", error)


async def _reply_of(
    handler: ApprovalHandler, request: ApprovalRequest, lookups: ApprovalLookups
) -> ApprovalReply | None:
    """Return a handler's reply; None if the handler was cancelled, and no call was."""
    try:
        if _is_async(handler):
            reply = handler(request)
        else:
            reply = await lookups.asking(handler, request)
        return await reply if inspect.isawaitable(reply) else reply
    except anyio.get_cancelled_exc_class():
        await anyio.lowlevel.checkpoint_if_cancelled()
        _log.error("a handler of approvals cancelled itself")
        return None


def _is_async(handler: ApprovalHandler) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004 - of its class
    return any(map(inspect.iscoroutinefunction, (handler, call)))


class SharedQuestion:
    """A request that the handler is asked once, for all calls that wait for it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.waiting = 0
        """The number of calls that wait for the answer."""

        self.is_over = False
        """True once the handler was asked, and has replied or failed."""

    def take(self) -> bool:
        """Return True if this caller must ask: nobody asks, or has asked to the end."""
        return self._turn.acquire(blocking=False)

    def drop(self) -> None:
        """Let another waiting call ask the handler again."""
        self._turn.release()
