"""Runs a graph: threads that pause, and go on in this process or another."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar

import anyio
from pydantic import BaseModel, JsonValue

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    StoreUnavailableError,
    ThreadBusyError,
)
from toolcell.tools import ToolExecutor

from .execution.answers import answered, checked, denied, store_answer
from .execution.beginning import begin, create_thread
from .execution.outputs import check_targets
from .execution.parts import FlowParts, RunParts
from .execution.result import FlowResult
from .execution.runner import Runner
from .execution.thread import ThreadView
from .execution.ways import Plan
from .graph.graph import Graph
from .state.state import State, Update
from .stores.base import Checkpointer, Lease
from .stores.records import (
    Answered,
    Head,
)
from .stores.sqlite import MemoryCheckpointer
from .threads import Threads, find_question
from .values.command import Command
from .values.handlers import AutoApproveHandler, InterruptHandler
from .values.limits import FlowLimits

S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")
_log = logging.getLogger("toolcell.flow")
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


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
        limits: FlowLimits | None = None,
        profile: Literal["production", "development"] = "production",
        clock: Callable[[], datetime] = _now,
    ) -> None:
        graph.check()
        if isinstance(handler, AutoApproveHandler) and profile == "production":
            raise ConfigError(
                "AutoApproveHandler answers for nobody",
                hint='use a handler that asks somebody, or profile="development"',
            )
        store = MemoryCheckpointer() if checkpointer is None else checkpointer
        super().__init__(graph, store, clock)
        self._agent_id = agent_id
        self._parts = FlowParts(
            graph=graph,
            shape=graph.shape,
            checkpointer=store,
            executor=executor,
            session=session,
            handler=handler,
            handler_seconds=handler_seconds,
            limits=FlowLimits() if limits is None else limits,
            clock=clock,
        )

    async def run(
        self,
        value: S | Mapping[str, Any],
        thread_id: str | None = None,
        *,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> FlowResult[S]:
        """Run a thread from START until it ends, fails or pauses.

        A new thread begins with this state. One that has ended goes on, with it as an
        update that the reducers merge: the next turn of a conversation.

        Args:
            value: The state, or its fields.
            thread_id: 1 to 128 of `A-Z a-z 0-9 _ . : -`. None: a new random one.
            metadata: Facts to find a new thread by, JSON values.

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
        thread = _checked_id(secrets.token_hex(8) if thread_id is None else thread_id)
        stored = await self._store.read(thread)
        if stored is None:
            return await self._start(value, thread, metadata or {})
        _check_ended(stored.head)
        return await self._owned(thread, partial(self._next_turn, value))

    async def _start(
        self, value: Any, thread: str, metadata: Mapping[str, JsonValue]
    ) -> FlowResult[S]:
        state = State(self._graph.schema, self._graph.schema.start(value))
        plan = begin(self._parts, state)
        lease, view = await create_thread(
            self._parts, thread, self._agent_id, state, plan, metadata
        )
        return await self._let_go_after(lease, self._drive(lease, view))

    async def _next_turn(
        self, value: Any, lease: Lease, view: ThreadView
    ) -> FlowResult[S]:
        _check_ended(view.head)
        given = (
            {name: getattr(value, name) for name in value.model_fields_set}
            if isinstance(value, BaseModel)
            else value
        )
        pieces = self._graph.schema.encode_update(given, "run")
        state = view.state.merged([Update("run", "run", pieces)])
        runner = self._runner(lease, view)
        turn = view.checkpoint.turn + 1
        view.checkpoint = view.checkpoint.model_copy(update={"turn": turn})
        await runner.commit(state, begin(self._parts, state))
        return await self._drive(lease, view)

    async def resume(
        self,
        thread_id: str,
        answers: Mapping[str, Any] | Command | None = None,
        *,
        by: str = "resume",
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
            steal: Take it from an owner that lives but hangs: the next write of that
                one is refused.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            InvalidInputError: An id is unknown or answered already, an answer does not
                fit, or one Command is for several questions. Nothing was written.
            ThreadBusyError: Another owner runs it.
            LeaseLostError: Another owner took it.
            StoreUnavailableError: The store does not answer.
            CheckpointSerializationError: The stored thread cannot be read.
        """
        given = self._given(await self._view(thread_id), answers, by)
        return await self._owned(thread_id, partial(self._resumed, given), steal=steal)

    async def _resumed(
        self, given: list[Answered], lease: Lease, view: ThreadView
    ) -> FlowResult[S]:
        thread = lease.thread_id
        for answer in given:
            # Another owner may have answered, and run it, before this claim.
            find_question(view, answer.id)
        if view.head.status in ("done", "cancelled"):
            return self._result(view)
        now = self._clock()
        given = given + [
            denied(each, "expired", by="expiry", how="expiry", at=now)
            for each in view.open_questions()
            if each.expires_at is not None and each.expires_at <= now
        ]
        for answer in given:
            await store_answer(self._store, thread, answer)
            view.answers[answer.id] = answer
        return await self._drive(lease, view)

    def _given(
        self, view: ThreadView, answers: Mapping[str, Any] | Command | None, by: str
    ) -> list[Answered]:
        """Return answers, each checked against its question."""
        if answers is None:
            return []
        update: dict[str, JsonValue] = {}
        if isinstance(answers, Command):
            update = self._command_update(answers)
            answers = {_only(view): answers.resume}
        now = self._clock()
        found = []
        for interrupt_id, value in answers.items():
            question = find_question(view, interrupt_id)
            answer = checked(question, value)
            found.append(
                answered(question, answer, by=by, how="resume", at=now, update=update)
            )
        return found

    def _command_update(self, command: Command) -> dict[str, JsonValue]:
        if not command.has_resume or command.has_goto or command.graph is not None:
            raise InvalidInputError(
                "this Command answers nothing, or says more than an answer",
                hint="resume_with(value, field=...); to go elsewhere, fork the thread",
            )
        pieces = self._graph.schema.encode_update(command.update, "resume")
        state = State(self._graph.schema, pieces)
        return state.to_json()

    async def cancel(self, thread_id: str) -> None:
        """End a thread that nobody runs. It cannot be resumed; it can be forked.

        Args:
            thread_id: The id of the thread; one that has ended stays as it is.

        Raises:
            CheckpointNotFoundError: There is no such thread.
            ThreadBusyError: Somebody runs it.
            StoreUnavailableError: The store does not answer.
        """

        async def end(lease: Lease, view: ThreadView) -> None:
            if view.head.status != "done":
                changed = {"status": "cancelled", "updated": self._clock()}
                head = view.head.model_copy(update=changed)
                await self._store.append(lease, [], head)

        await self._owned(thread_id, end)

    async def recover(self, limit: int = 100) -> list[FlowResult[S]]:
        """Go on with threads whose owner died, or whose questions were all answered.

        Args:
            limit: The largest number of threads of each kind to look at. When it is
                reached the others wait for the next time.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        results = []
        for status in ("running", "interrupted"):
            for head in await self._heads(status, limit):
                try:
                    view = await self._view(head.thread_id)
                    if self._can_go_on(view):
                        results.append(await self.resume(head.thread_id))
                except ThreadBusyError:
                    _log.debug("thread %s has an owner", head.thread_id)
        return results

    def _can_go_on(self, view: ThreadView) -> bool:
        now = self._clock()
        ends = [each.expires_at for each in view.open_questions()]
        return all(each is not None and each <= now for each in ends)

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
        new = _checked_id(new_thread_id or secrets.token_hex(8))
        view = await self._view(thread_id, checkpoint_id)
        state, at = view.state, view.checkpoint
        plan = Plan(tasks=at.next, joins=dict(at.joins), batches=at.batches)
        if command is not None:
            if command.has_resume or command.graph is not None:
                raise InvalidInputError(
                    "a fork takes an update and targets", hint="goto(target, field=...)"
                )
            pieces = self._graph.schema.encode_update(command.update, "fork")
            state = state.merged([Update("fork", "fork", pieces)])
            if command.has_goto:
                check_targets(self._graph, command.targets)
                plan = Plan()
                for target in command.targets:
                    plan.go(target)
        origin: dict[str, JsonValue] = {"thread": thread_id, "checkpoint": at.id}
        metadata = {**view.head.metadata, "forked_from": origin}
        lease, _ = await create_thread(
            self._parts, new, view.head.agent, state, plan, metadata
        )
        await self._store.release(lease)
        return new

    async def _owned(
        self,
        thread: str,
        work: Callable[[Lease, ThreadView], Awaitable[T]],
        *,
        steal: bool = False,
    ) -> T:
        """Do something as the owner of a thread, which is read after its claim."""
        lease = await self._store.claim(thread, steal=steal)

        async def done() -> T:
            return await work(lease, await self._view(thread))

        return await self._let_go_after(lease, done())

    async def _let_go_after(self, lease: Lease, work: Awaitable[T]) -> T:
        try:
            return await work
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self._store.release(lease)
                except StoreUnavailableError:
                    # It is free once this process has ended.
                    _log.warning("thread %s was not released", lease.thread_id)

    def _runner(self, lease: Lease, view: ThreadView) -> Runner:
        limits = self._parts.limits
        rooms = {
            name: anyio.CapacityLimiter(node.max_concurrency)
            for name, node in self._graph.nodes.items()
            if node.max_concurrency is not None
        }
        parts = RunParts(
            flow=self._parts,
            lease=lease,
            agent=view.head.agent,
            run_id=f"{lease.thread_id}:{view.checkpoint.turn}",
            room=anyio.CapacityLimiter(limits.max_concurrency),
            rooms=rooms,
        )
        return Runner(parts, view)

    async def _drive(self, lease: Lease, view: ThreadView) -> FlowResult[S]:
        runner = self._runner(lease, view)
        await runner.run()
        return self._result(view, runner.error)

    def _result(self, view: ThreadView, error: Any = None) -> FlowResult[S]:
        status = view.head.status
        return FlowResult(
            thread_id=view.head.thread_id,
            status="interrupted" if status == "running" else status,
            state=view.state.view(),
            checkpoint_id=view.checkpoint.id,
            waiting=view.interrupt_states(),
            error=view.head.error,
            exception=error,
        )


def _checked_id(thread_id: str) -> str:
    if _ID.fullmatch(thread_id) is None:
        raise InvalidInputError(
            "this is no id of a thread",
            hint="1 to 128 of `A-Z a-z 0-9 _ . : -`",
        )
    return thread_id


def _check_ended(head: Head) -> None:
    if head.status != "done":
        raise InvalidInputError(
            f"the thread is {head.status}, and is not begun anew",
            hint="resume it, or take another id",
            details={"thread": head.thread_id, "status": head.status},
        )


def _only(view: ThreadView) -> str:
    found = view.open_questions()
    if len(found) != 1:
        raise InvalidInputError(
            f"one Command answers one question, and {len(found)} are open",
            hint="answer them by their ids",
        )
    return found[0].interrupt_id
