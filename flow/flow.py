"""Runs a graph: threads that pause, and go on in this process or another."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, JsonValue

from toolcell.core import (
    CheckpointError,
    ConfigError,
    FlowError,
    InvalidInputError,
    ThreadBusyError,
    ToolcellError,
)
from toolcell.tools import ToolExecutor

from .control.caller_input import (
    add_answers,
    can_go_on,
    check_answerer,
    check_ended,
    checked_id,
    expired_answers,
    find_question,
    forked,
    given_answers,
)
from .control.cancelling import cancel_thread
from .control.ownership import (
    RunOptions,
    drive,
    owned,
    releasing,
    result_of,
    runner_of,
)
from .control.recovery import threads_to_look_at
from .control.stream import EventStream
from .execution.components import FlowComponents
from .execution.first_step import begin, create_thread
from .execution.result import FlowResult
from .execution.thread import ThreadView
from .execution.thread_questions import ThreadQuestions
from .graph.graph import Graph
from .state.state import State, Update
from .stores.base import Lease
from .stores.checkpointer import Checkpointer
from .stores.memory import MemoryCheckpointer
from .stores.records import AnswerRecord
from .threads import Threads
from .values.command import Command
from .values.events import Tell
from .values.handlers import AutoApproveHandler, InterruptHandler
from .values.limits import FlowLimits

S = TypeVar("S", bound=BaseModel)
_log = logging.getLogger("toolcell.flow")


def _now() -> datetime:
    return datetime.now(UTC)


class Flow(Threads[S]):
    """Runs threads of a graph. It belongs to one event loop, asyncio or trio.

    After each step of a thread its state is stored in one write, from which any
    process can go on. One owner at a time runs a thread, among all processes that
    share the checkpointer. A node that fails or asks ends in a `FlowResult`,
    not in an exception.

    Args:
        graph: It is checked here.
        checkpointer: The store of threads; it is open, and its owner closes it. None:
            they are in memory, and lost with the process.
        executor: Makes calls of tools. None: nodes cannot call any.
        agent_id: The agent of the calls of new threads; others keep their own. None:
            the calls name none.
        session: As `RunContext.session`; `{thread}` in it is the thread's id. None:
            calls have no session.
        handler: Asked in this process about each question, before the thread pauses.
        handler_seconds: Seconds that it may take; default 60. When it is reached the
            question stays open, and the thread pauses.
        approval_seconds: Seconds that a call which a person has to approve waits in
            this process; default 0. When it is reached the thread pauses, and the
            request stays open.
        in_doubt: The fate of a call of which nobody knows whether it took effect, after
            a crash in its midst. `ask`, the default: the thread pauses and asks a
            person. `tell`: the node gets a failed result that says so.
        limits: The bounds of each thread; default: `FlowLimits()`.
        profile: `production` refuses AutoApproveHandler.
        clock: Returns the time with its zone; default: the system's.

    Raises:
        GraphError: The graph cannot be run.
        ConfigError: The handler is not for this profile.
    """

    def __init__(
        self,
        graph: Graph[S],
        *,
        checkpointer: Checkpointer | None = None,
        executor: ToolExecutor | None = None,
        agent_id: str | None = None,
        session: str | None = None,
        handler: InterruptHandler | None = None,
        handler_seconds: float = 60.0,
        approval_seconds: float = 0.0,
        in_doubt: Literal["ask", "tell"] = "ask",
        limits: FlowLimits | None = None,
        profile: Literal["production", "development"] = "production",
        clock: Callable[[], datetime] = _now,
    ) -> None:
        graph.check()
        if isinstance(handler, AutoApproveHandler) and profile == "production":
            raise ConfigError(
                "AutoApproveHandler answers for no person",
                hint='use a handler that asks somebody, or profile="development"',
            )
        store = MemoryCheckpointer() if checkpointer is None else checkpointer
        self._parts = FlowComponents(
            graph=graph,
            shape=graph.shape,
            checkpointer=store,
            executor=executor,
            session=session,
            handler=handler,
            handler_seconds=handler_seconds,
            approval_seconds=approval_seconds,
            in_doubt=in_doubt,
            limits=FlowLimits() if limits is None else limits,
            clock=clock,
        )
        super().__init__(graph, store, self._parts.approvals, clock)
        self._agent_id = agent_id
        self._passed_over: dict[str, str] = {}
        """The reasons why `recover` could not go on with threads, by their ids."""

    async def run(
        self,
        value: S | Mapping[str, Any],
        thread_id: str | None = None,
        *,
        metadata: Mapping[str, JsonValue] | None = None,
        wait_seconds: float = 0.0,
    ) -> FlowResult[S]:
        """Run a thread from START until it ends, fails or pauses.

        A new thread begins with this state. One that has ended goes on, with it as an
        update that the reducers merge: the next turn of a conversation.

        Args:
            value: The state, or its fields.
            thread_id: 1 to 128 of `A-Z a-z 0-9 _ . : -`. None: a new random one.
            metadata: Facts to find a new thread by, JSON values.
            wait_seconds: Seconds to wait in this process for another owner to end, and
                for answers that others give; default 0. When it is over ThreadBusyError
                is raised, or the thread pauses.

        Raises:
            InvalidInputError: The state or the id cannot be used; or the thread is
                paused, has failed or was cancelled.
            NodeFailedError: A route from START, or a reducer of the update, raised.
            GraphError: A route from START chose a node that is not among its targets.
            FlowLimitError: The first step would have more than `max_tasks` tasks.
            ThreadBusyError: Another owner runs it.
            LeaseLostError: Another owner took it.
            StoreUnavailableError: The store does not answer.
            CheckpointSerializationError: The stored thread cannot be read.
        """
        options = RunOptions.waiting(wait_seconds)
        return await self._run(value, thread_id, metadata or {}, options)

    async def _run(
        self,
        value: Any,
        thread_id: str | None,
        metadata: Mapping[str, JsonValue],
        options: RunOptions,
    ) -> FlowResult[S]:
        thread = checked_id(secrets.token_hex(8) if thread_id is None else thread_id)
        stored = await self._store.read(thread)
        if stored is not None:
            check_ended(stored.head)
            next_turn = partial(self._next_turn, value, options)
            return await owned(self._parts, thread, next_turn, options)
        state = State(self._graph.schema, self._graph.schema.start(value))
        plan = begin(self._parts, state)
        lease, view = await create_thread(
            self._parts, thread, self._agent_id, state, plan, metadata
        )
        work = drive(self._parts, lease, view, options)
        return await releasing(self._parts, lease, work)

    async def _next_turn(
        self, value: Any, options: RunOptions, lease: Lease, view: ThreadView
    ) -> FlowResult[S]:
        check_ended(view.head)
        fields = (
            {name: getattr(value, name) for name in value.model_fields_set}
            if isinstance(value, BaseModel)
            else value
        )
        pieces = self._graph.schema.encode_update(fields, "run")
        state = view.state.merged([Update("run", "run", pieces)])
        runner = runner_of(self._parts, lease, view, options)
        turn = view.checkpoint.turn + 1
        view.checkpoint = view.checkpoint.model_copy(update={"turn": turn})
        await runner.commit(state, begin(self._parts, state))
        return await drive(self._parts, lease, view, options)

    async def resume(
        self,
        thread_id: str,
        answers: Mapping[str, Any] | Command | None = None,
        *,
        by: str = "resume",
        wait_seconds: float = 0.0,
        steal: bool = False,
    ) -> FlowResult[S]:
        """Go on with a thread: after answers, a failure, a crash or a cancellation.

        Tasks whose questions have all been answered run, and of a failed step those
        that failed. Nothing to do is no error: the result says how the thread stands.

        Args:
            thread_id: The id of the thread.
            answers: Answers by interrupt id; or a Command whose `resume` answers the
                one open question and whose `update` is merged when the step commits,
                before those of its tasks. None: only those given by `answer`.
            by: The name of whoever answers, for the history.
            wait_seconds: As in `run`.
            steal: Take it from an owner that lives but hangs: the next write of that
                one is refused.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            InvalidInputError: An id is unknown or answered already, an answer does not
                fit, one Command is for several questions, or `by` is the agent of the
                thread. Nothing was written.
            ThreadBusyError: Another owner runs it.
            LeaseLostError: Another owner took it.
            StoreUnavailableError: The store does not answer.
            CheckpointSerializationError: The stored thread cannot be read.
        """
        options = RunOptions.waiting(wait_seconds, steal=steal)
        return await self._resume(thread_id, answers, by, options)

    async def _resume(
        self,
        thread_id: str,
        answers: Mapping[str, Any] | Command | None,
        by: str,
        options: RunOptions,
    ) -> FlowResult[S]:
        view, now = await self._view(thread_id), self._clock()
        check_answerer(view, by)
        new_answers = given_answers(self._graph, view, answers, by=by, at=now)
        resumed = partial(self._resumed, new_answers, options)
        return await owned(self._parts, thread_id, resumed, options)

    async def _resumed(
        self,
        new_answers: list[AnswerRecord],
        options: RunOptions,
        lease: Lease,
        view: ThreadView,
    ) -> FlowResult[S]:
        for answer in new_answers:
            # Another owner may have answered, and run it, before this claim.
            find_question(view, answer.id)
        if view.head.status in ("done", "cancelled"):
            return result_of(view)
        await add_answers(self._store, view, new_answers)
        questions = ThreadQuestions(self._parts, view)
        await questions.take_answers()
        expired = expired_answers(view, self._clock())
        await add_answers(self._store, view, expired)
        await questions.end_answered()
        return await drive(self._parts, lease, view, options)

    def stream(
        self,
        value: S | Mapping[str, Any] | None = None,
        thread_id: str | None = None,
        *,
        answers: Mapping[str, Any] | Command | None = None,
        by: str = "resume",
        metadata: Mapping[str, JsonValue] | None = None,
        wait_seconds: float = 0.0,
    ) -> EventStream[S]:
        """Run a thread, or resume one, and hand out its events.

        `async with flow.stream(...) as events:`, and in it `async for event in events`.
        After the last event `events.result` is the result.

        Args:
            value: As in `run`. None: the thread is resumed.
            thread_id: The id of the thread; needed to resume one.
            answers: As in `resume`; without `value` alone.
            by: As in `resume`.
            metadata: As in `run`.
            wait_seconds: As in `run`.

        Raises:
            InvalidInputError: The arguments are those of neither `run` nor `resume`.
                What `run` and `resume` raise is raised in the `async for`.
        """
        if (value is None and thread_id is None) or (value is not None and answers):
            raise InvalidInputError(
                "a stream runs a value, or resumes a thread",
                hint="stream(value) or stream(thread_id=..., answers=...)",
            )

        async def work(tell: Tell) -> FlowResult[S]:
            options = RunOptions.waiting(wait_seconds, tell=tell)
            if value is None:
                return await self._resume(str(thread_id), answers, by, options)
            return await self._run(value, thread_id, metadata or {}, options)

        return EventStream(work)

    async def cancel(
        self, thread_id: str, *, by: str, wait_seconds: float = 10.0
    ) -> None:
        """End a thread wherever it runs. It cannot be resumed; it can be forked.

        An owner in any process stops it within a second: its nodes are cancelled, and
        calls that they have begun are cut off.

        Args:
            thread_id: The id of the thread; one that has ended stays as it is.
            by: The name of whoever ends it.
            wait_seconds: Seconds to wait for its owner; default 10. When it is over
                ThreadBusyError is raised; an owner that hangs ends it when it thaws.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            ThreadBusyError: Its owner did not stop in time.
            StoreUnavailableError: The store does not answer.
        """
        await cancel_thread(
            self._store,
            self._parts.approvals,
            thread_id,
            by=by,
            wait_seconds=wait_seconds,
            clock=self._clock,
        )

    async def recover(self, limit: int = 100) -> list[FlowResult[S]]:
        """Go on with threads whose owner died, or whose questions were all answered.

        A thread that cannot go on, since it is damaged or fits its graph no longer, is
        passed over, and named once in the log.

        Args:
            limit: The largest number of threads to go on with; default 100. When it is
                reached the others wait for the next time.

        Raises:
            StoreUnavailableError: The store does not answer.
            AuditError: The use of an answer cannot be recorded.
        """
        results: list[FlowResult[S]] = []
        for thread_id in await threads_to_look_at(self._parts, self._clock()):
            if len(results) == limit:
                break
            try:
                view = await self._view(thread_id)
                if view.head.status in ("done", "cancelled"):
                    # It ended since it was listed; its questions are not put anew.
                    continue
                await ThreadQuestions(self._parts, view).take_answers()
                if can_go_on(view, self._clock()):
                    results.append(await self.resume(thread_id))
            except ThreadBusyError:
                _log.debug("thread %s has an owner", thread_id)
            except (CheckpointError, FlowError) as error:
                self._pass_over(thread_id, error)
        return results

    def _pass_over(self, thread_id: str, error: ToolcellError) -> None:
        if self._passed_over.get(thread_id) != error.message:
            self._passed_over[thread_id] = error.message
            _log.warning("thread %s is passed over: %s", thread_id, error.message)

    async def fork(
        self,
        thread_id: str,
        checkpoint_id: str | None = None,
        *,
        new_thread_id: str | None = None,
        command: Command | None = None,
    ) -> str:
        """Make a new thread that begins at a checkpoint of this one; return its id.

        The old thread does not change. The new one waits for `resume`. Its calls are
        new calls: those of the old one since that checkpoint are made again.

        Args:
            thread_id: The id of the thread.
            checkpoint_id: The id of one of its checkpoints; None: the latest.
            new_thread_id: As in `run`.
            command: An update of the state, and other nodes to go to.

        Raises:
            CheckpointNotFoundError: There is no such thread or checkpoint.
            InvalidInputError: The command cannot be used.
            GraphError: It leads to a node that there is not.
            ThreadBusyError: The new id is taken.
            CheckpointSerializationError: The stored thread cannot be read.
            StoreUnavailableError: The store does not answer.
        """
        new = checked_id(new_thread_id or secrets.token_hex(8))
        view = await self._view(thread_id, checkpoint_id)
        state, plan = forked(self._graph, view, command)
        origin = {"thread": thread_id, "checkpoint": view.checkpoint.id}
        facts: dict[str, Any] = {**view.head.metadata, "forked_from": origin}
        agent = view.head.agent
        lease, _ = await create_thread(self._parts, new, agent, state, plan, facts)
        await self._store.release(lease)
        return new
