"""Answers to questions: checked where they are given, once each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import JsonValue

from toolcell.core import InvalidInputError

from ..stores.checkpointer import Checkpointer
from ..stores.reading import read_answer
from ..stores.records import AnswerRecord
from ..values.interrupt import InterruptValue
from ..values.json_values import jsonable

CANCEL = "cancel"
"""The key, among the answers, of the request to end the thread."""


def checked(question: InterruptValue, value: Any) -> JsonValue:
    """Return an answer as JSON, if it is one to this question.

    Raises:
        InvalidInputError: It does not fit what was asked for.
    """
    try:
        answer: JsonValue = jsonable(value)
    except ValueError as error:
        raise _misfit(question, f"it has no JSON form: {error}") from None
    if question.answer_schema is None:
        return answer
    # Slow to import, and of use to few.
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(question.answer_schema)
    problem = next(validator.iter_errors(answer), None)
    if problem is not None:
        raise _misfit(question, f"it is not {problem.validator} {problem.schema}")
    return answer


def _misfit(question: InterruptValue, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"this cannot answer {question.interrupt_id}: {why}",
        hint="the question's answer_schema says what fits",
        details={"interrupt": question.interrupt_id},
    )


def answered(
    question: InterruptValue,
    value: JsonValue,
    *,
    by: str,
    how: str,
    at: datetime,
    update: Mapping[str, JsonValue] | None = None,
) -> AnswerRecord:
    """Return the record of an answer."""
    return AnswerRecord(
        id=question.interrupt_id,
        value=value,
        by=by,
        how=how,
        at=at,
        update=dict(update or {}),
    )


def denied(
    question: InterruptValue,
    why: Literal["denied", "expired"],
    *,
    by: str,
    how: str,
    at: datetime,
    reason: str = "",
) -> AnswerRecord:
    """Return the record of a question that gets no answer."""
    return AnswerRecord(
        id=question.interrupt_id, denied=why, reason=reason, by=by, how=how, at=at
    )


async def store_answer(
    checkpointer: Checkpointer, thread_id: str, answer: AnswerRecord, *, at: str
) -> None:
    """Store an answer; the first one to a question counts.

    Args:
        checkpointer: The store of the thread.
        thread_id: The id of the thread.
        answer: The answer.
        at: The checkpoint at which the question is open.

    Raises:
        InvalidInputError: Somebody answered before; `details` say who, and when, unless
            the thread has gone on with that answer meanwhile.
    """
    if await checkpointer.put_once(thread_id, answer.id, answer.to_bytes(), at=at):
        return
    stored = map(read_answer, await checkpointer.answers(thread_id))
    raise answered_before(answer.id, {each.id: each for each in stored})


def answered_before(
    interrupt_id: str, answers: Mapping[str, AnswerRecord]
) -> InvalidInputError:
    """Return the refusal of a second answer; it says who gave the first, and when."""
    first = answers.get(interrupt_id)
    details = {} if first is None else {"by": first.by, "at": first.at.isoformat()}
    return InvalidInputError(
        f"the question {interrupt_id} was answered before",
        hint="resume the thread to go on with that answer",
        details={"interrupt": interrupt_id, **details},
    )
