"""Handlers answer questions in the process that asks."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError
from toolcell.flow import (
    START,
    AutoApproveHandler,
    Flow,
    Graph,
    InterruptHandler,
    interrupt,
)
from toolcell.flow.spi import InterruptValue

from ...support.flow.graphs import Log, flow, only, said

pytestmark = pytest.mark.anyio


class Answers(InterruptHandler):
    """Answers with what it was made with, if it likes the question."""

    def __init__(self, answer: Any, likes: str = "") -> None:
        self.answer = answer
        self.likes = likes
        self.asked: list[InterruptValue] = []

    async def can_handle(self, interrupt: InterruptValue) -> bool:
        return self.likes in str(interrupt.payload)

    async def handle(self, interrupt: InterruptValue) -> Any:
        self.asked.append(interrupt)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.promise("LC-34", "flow-31")
async def test_a_handler_answers_without_leaving_run() -> None:
    def ask(state: Log) -> dict[str, Any]:
        return said(interrupt("a?"), interrupt("b?"))

    handler = Answers("x")
    asks = flow(ask, handler=handler)
    done = await asks.run({}, "t")

    assert done.unwrap().log == ("x", "x")
    assert [each.payload for each in handler.asked] == ["a?", "b?"]
    answers = (await asks.history("t", 1))[0].answers
    assert {answer.how for answer in answers} == {"handler:Answers"}


@pytest.mark.promise("LC-30", "flow-23")
async def test_a_swallowed_question_is_answered_in_the_same_run() -> None:
    """The output that the node made without the answer is not taken."""

    def swallows(state: Log) -> dict[str, Any]:
        try:
            return said(interrupt("a?"))
        except BaseException:
            return said("swallowed")

    done = await flow(swallows, handler=Answers("x")).run({})
    assert done.unwrap().log == ("x",)


@pytest.mark.promise("LC-34", "flow-31")
@pytest.mark.parametrize(
    "handler", [Answers("x", likes="never"), Answers(ValueError("no")), Answers(5)]
)
async def test_silence_leaves_the_thread_paused(handler: Answers) -> None:
    def ask(state: Log) -> dict[str, Any]:
        return said(interrupt("a?", answer=str))

    assert only(await flow(ask, handler=handler).run({})).payload == "a?"


@pytest.mark.promise("LC-34", "flow-31")
async def test_several_questions_are_handed_over_at_once() -> None:
    both = anyio.Event()

    class Meets(Answers):
        async def handle(self, interrupt: InterruptValue) -> Any:
            self.asked.append(interrupt)
            if len(self.asked) == 2:
                both.set()
            await both.wait()
            return "x"

    graph = Graph(Log, name="g")
    for name in ("a", "b"):
        graph.node(lambda: said(interrupt("x?")), name=name)
        graph.edge(START, name)

    with anyio.fail_after(60):
        done = await Flow(graph, handler=Meets("x")).run({})
    assert done.unwrap().log == ("x", "x")


@pytest.mark.promise("LC-34")
async def test_the_first_answer_counts_also_before_the_handler_s() -> None:
    class Late(Answers):
        async def handle(self, interrupt: InterruptValue) -> Any:
            await asks.answer("t", interrupt.interrupt_id, "first", by="anna")
            return "late"

    def ask(state: Log) -> dict[str, Any]:
        return said(interrupt("a?"))

    asks = flow(ask, handler=Late("x"))
    assert (await asks.run({}, "t")).unwrap().log == ("first",)


@pytest.mark.promise("LC-34")
async def test_a_slow_handler_is_stopped() -> None:
    class Slow(InterruptHandler):
        async def handle(self, interrupt: InterruptValue) -> Any:
            await anyio.sleep_forever()

    def ask(state: Log) -> None:
        interrupt("a?")

    only(await flow(ask, handler=Slow(), handler_seconds=0.01).run({}))


@pytest.mark.promise("LC-35", "A-18", "flow-31")
async def test_auto_approval_is_for_development_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ask(state: Log) -> dict[str, Any]:
        return said(interrupt("a?"))

    handler = AutoApproveHandler(by="ci")
    with pytest.raises(ConfigError, match="answers for no person"):
        flow(ask, handler=handler)
    asks = flow(ask, handler=handler, profile="development")
    with caplog.at_level(logging.WARNING):
        done = await asks.run({}, "t")

    assert done.unwrap().log == ("approved",)
    assert "answered without a person" in caplog.text
    assert (await asks.history("t", 1))[0].answers[0].how == "auto:ci"


@pytest.mark.promise("LC-34")
async def test_a_handler_without_an_answer_is_no_handler() -> None:
    question = only(await flow(_asks).run({}))

    with pytest.raises(NotImplementedError):
        await InterruptHandler().handle(question)
    assert await InterruptHandler().can_handle(question)


def _asks(state: Log) -> None:
    interrupt("a?")
