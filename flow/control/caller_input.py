"""Ids, answers and commands from the caller, checked for their thread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from toolcell.core import InvalidInputError
from toolcell.guard.spi import is_same_name

from ..execution.answers import (
    answered,
    answered_before,
    checked,
    denied,
    store_answer,
)
from ..execution.next_step import Plan
from ..execution.outputs import check_targets
from ..execution.thread import ThreadView
from ..graph.graph import Graph
from ..state.state import State, Update
from ..stores.checkpointer import Checkpointer
from ..stores.records import AnswerRecord, ThreadHead
from ..values.command import Command
from ..values.interrupt import InterruptValue

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def find_question(view: ThreadView, interrupt_id: str) -> InterruptValue:
    """Return an open question. Raises InvalidInputError: it is not open."""
    for question in view.open_questions():
        if question.interrupt_id == interrupt_id:
            if question.request_id is not None:
                raise InvalidInputError(
                    "a call is approved where approvals are, not here",
                    hint=f"toolcell approvals approve {question.request_id}",
                    details={"interrupt": interrupt_id},
                )
            return question
    if interrupt_id in view.answers:
        raise answered_before(interrupt_id, view.answers)
    raise InvalidInputError(
        f"the thread has no open question {interrupt_id!r}",
        hint="flow.interrupts(thread_id) lists them",
        details={"interrupt": interrupt_id},
    )


def check_answerer(view: ThreadView, by: str) -> None:
    """Refuse an agent that answers its own question. Raises InvalidInputError."""
    if view.head.agent is not None and is_same_name(by, view.head.agent):
        raise InvalidInputError(
            f"{by!r} may not answer this question",
            hint="a person answers, never the agent that asks",
        )


def given_answers(
    graph: Graph[Any],
    view: ThreadView,
    answers: Mapping[str, Any] | Command | None,
    *,
    by: str,
    at: datetime,
) -> list[AnswerRecord]:
    """Return answers, each checked against its question.

    Raises:
        InvalidInputError: An answer has no open question, or does not fit it.
    """
    if answers is None:
        return []
    update: dict[str, JsonValue] = {}
    if isinstance(answers, Command):
        update = _command_update(graph, answers)
        answers = {_only(view): answers.resume}
    if not isinstance(answers, Mapping):
        raise InvalidInputError(
            "answers are a mapping from the ids of questions",
            hint="flow.interrupts(thread_id) lists them; Command(resume=...) has none",
        )
    found = []
    for interrupt_id, value in answers.items():
        question = find_question(view, interrupt_id)
        answer = checked(question, value)
        found.append(
            answered(question, answer, by=by, how="resume", at=at, update=update)
        )
    return found


def _command_update(graph: Graph[Any], command: Command) -> dict[str, JsonValue]:
    if not command.has_resume or command.has_goto or command.graph is not None:
        raise InvalidInputError(
            "this Command answers nothing, or says more than an answer",
            hint="resume_with(value, field=...); to go elsewhere, fork the thread",
        )
    pieces = graph.schema.encode_update(command.update, "resume")
    return State(graph.schema, pieces).to_json()


def _only(view: ThreadView) -> str:
    found = view.open_questions()
    if len(found) != 1:
        raise InvalidInputError(
            f"one Command answers one question, and {len(found)} are open",
            hint="answer them by their ids",
        )
    return found[0].interrupt_id


def forked(
    graph: Graph[Any], view: ThreadView, command: Command | None
) -> tuple[State, Plan]:
    """Return the state and the tasks that a fork of a thread begins with.

    Raises:
        InvalidInputError: The command cannot be used.
        GraphError: It leads to a node that there is not.
    """
    state, at = view.state, view.checkpoint
    plan = Plan(tasks=at.next, joins=dict(at.joins), batches=at.batches)
    if command is None:
        return state, plan
    if command.has_resume or command.graph is not None:
        raise InvalidInputError(
            "a fork takes an update and targets", hint="goto(target, field=...)"
        )
    pieces = graph.schema.encode_update(command.update, "fork")
    state = state.merged([Update("fork", "fork", pieces)])
    if command.has_goto:
        check_targets(graph, command.targets)
        plan = Plan()
        for target in command.targets:
            plan.go(target)
    return state, plan


def expired_answers(view: ThreadView, now: datetime) -> list[AnswerRecord]:
    """Return a refusal for each open question whose time is over."""
    return [
        denied(question, "expired", by="expiry", how="expiry", at=now)
        for question in view.expired_questions(now)
    ]


async def add_answers(
    checkpointer: Checkpointer, view: ThreadView, answers: Sequence[AnswerRecord]
) -> None:
    """Store answers, and add them to the thread.

    Raises:
        InvalidInputError: Somebody answered before.
    """
    for answer in answers:
        thread, at = view.head.thread_id, view.head.checkpoint
        await store_answer(checkpointer, thread, answer, at=at)
        view.answers[answer.id] = answer


def can_go_on(view: ThreadView, now: datetime) -> bool:
    """Return True if no question of a thread is open, but for those that expired."""
    return len(view.expired_questions(now)) == len(view.open_questions())


def checked_id(thread_id: str) -> str:
    """Return an id of a thread. Raises InvalidInputError if it is not one."""
    if _ID.fullmatch(thread_id) is None:
        raise InvalidInputError(
            "this is no id of a thread",
            hint="1 to 128 of `A-Z a-z 0-9 _ . : -`",
        )
    return thread_id


def check_ended(head: ThreadHead) -> None:
    """Check that `run` may go on with a thread. Raises InvalidInputError."""
    if head.status != "done":
        raise InvalidInputError(
            f"the thread is {head.status}, and is not begun anew",
            hint="resume it, or take another id",
            details={"thread": head.thread_id, "status": head.status},
        )
