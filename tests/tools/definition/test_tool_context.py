"""The context of a call: injected by type, and what it knows and does."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Any, Optional

import anyio.to_thread
import pytest

from toolcell.core import (
    ConfigError,
    ImagePart,
    InvalidInputError,
    Message,
    Part,
    TextPart,
    ToolExecutionError,
    ToolTimeoutError,
)
from toolcell.tools import ToolContext, ToolRegistry, tool
from toolcell.tools.definition.context import MAX_PART_CHARACTERS, MAX_PARTS
from toolcell.tools.spi import Progress

pytestmark = pytest.mark.anyio


def context(**values: Any) -> ToolContext:
    return ToolContext(call_id="c1", tool_name="t", **values)


class Wider(ToolContext):
    """A host's own."""


@pytest.mark.promise("LT-09", "LT-49", "RL-09")
@pytest.mark.parametrize(
    "annotation",
    [
        ToolContext,
        "ToolContext",
        ToolContext | None,
        Optional[ToolContext],  # noqa: UP045
        Annotated[ToolContext, "the call"],
        Wider,
    ],
    ids=str,
)
async def test_a_context_is_injected_by_its_type(annotation: Any) -> None:
    """LT-09, LT-49, RL-09: under any name, never by name."""

    def f(a, anything=None):  # type: ignore[no-untyped-def]
        return a, anything

    f.__annotations__ = {"a": int, "anything": annotation}
    made = tool(f)
    given = context()

    assert made.takes_context
    assert list(made.parameters["properties"]) == ["a"]
    assert await made.invoke(made.validate({"a": 1}), given) == (1, given)


@pytest.mark.promise("LT-49")
async def test_a_parameter_called_context_is_a_parameter() -> None:
    def f(context: str, ctx: int) -> str:
        return context * ctx

    made = tool(f)
    arguments = made.validate({"context": "a", "ctx": 2})

    assert not made.takes_context
    assert await made.invoke(arguments, context()) == "aa"


async def test_methods_and_positional_parameters_get_it_too() -> None:
    class Shop:
        @tool
        async def sell(self, call: ToolContext, /, count: int) -> str:
            return f"{call.call_id} {count}"

    made = Shop().sell
    assert await made.invoke(made.validate({"count": 2}), context()) == "c1 2"


@pytest.mark.promise("LT-16", "LT-17", "LT-18", "LT-19", "LT-20")
def test_what_a_host_does_not_say_is_empty() -> None:
    """LT-17, LT-18, LT-19, LT-20."""
    bare = context()

    assert (bare.agent_id, bare.parent_id, bare.attempt) == (None, None, 1)
    assert (bare.messages, bare.confidence) == ((), 0.0)
    assert bare.get_metadata("user") is None
    assert bare.get_metadata("user", "nobody") == "nobody"
    assert bare.get_config("limit", 3) == 3
    assert (bare.deadline, bare.remaining(), bare.cancelled) == (None, None, False)
    bare.report_progress(1)


@pytest.mark.promise("LT-17", "LT-18", "LT-19", "LT-20", "RL-04", "RL-05")
def test_what_a_host_says_is_there() -> None:
    """LT-17, LT-18, LT-19, LT-20, RL-04, RL-05."""
    registry = ToolRegistry(config={"t": {"limit": 5}})
    said = context(
        messages=(Message.user("hi"),),
        confidence=0.5,
        metadata={"user": "ada"},
        config=registry.snapshot().config_of("t"),
        idempotency_key="k",
    )

    assert said.messages[0].content == "hi"
    assert (said.confidence, said.idempotency_key) == (0.5, "k")
    assert said.get_metadata("user") == "ada"
    assert said.get_config("limit") == 5


def test_two_contexts_share_nothing() -> None:
    first = context()
    first.cancel()

    assert not context().cancelled


def test_the_clock_is_the_host_s() -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)

    assert context(clock=lambda: noon).now() == noon
    assert context().now().tzinfo is not None
    with pytest.raises(ConfigError, match="without a zone"):
        context(clock=lambda: noon.replace(tzinfo=None)).now()


def test_the_deadline_counts_down() -> None:
    over = context(deadline=time.monotonic() - 1)
    open_ = context(deadline=time.monotonic() + 1000)

    assert over.remaining() == 0
    assert 900 < (open_.remaining() or 0) <= 1000
    open_.check_cancelled()
    with pytest.raises(ToolTimeoutError):
        over.check_cancelled()


async def test_a_thread_sees_that_its_call_was_given_up() -> None:
    given = context()
    started, ended = anyio.Event(), []

    def work(call: ToolContext) -> None:
        anyio.from_thread.run_sync(started.set)
        try:
            while True:
                call.check_cancelled()
        except ToolExecutionError as error:
            ended.append(error.message)

    made = tool(work)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.invoke, made.validate({}), given)
            await started.wait()
            given.cancel()

    assert ended == ["the call was cancelled"]


def test_progress_grows_and_reaches_the_host() -> None:
    reports: list[Progress] = []
    given = context(on_progress=reports.append)
    given.report_progress(0.5, total=2, message="half")
    given.report_progress(2)

    assert [(report.progress, report.total, report.message) for report in reports] == [
        (0.5, 2, "half"),
        (2, None, None),
    ]
    assert reports[0].call_id == "c1"
    for back in (2, 1, float("nan")):
        with pytest.raises(InvalidInputError, match="has to grow"):
            given.report_progress(back)


def test_artifacts_go_to_the_sink() -> None:
    kept: dict[str, tuple[bytes, str]] = {}

    class Sink:
        def save(self, name: str, data: bytes, media_type: str) -> str:
            kept[name] = (data, media_type)
            return f"artifact:{name}"

    given = context(artifacts=Sink())

    assert given.save_artifact("a.png", b"png", "image/png") == "artifact:a.png"
    assert given.save_artifact("b", b"") == "artifact:b"
    assert kept == {
        "a.png": (b"png", "image/png"),
        "b": (b"", "application/octet-stream"),
    }
    with pytest.raises(ConfigError, match="no place for artifacts"):
        context().save_artifact("a", b"")


def test_what_a_tool_shows_is_limited() -> None:
    parts: list[Part] = []
    shown, unseen = context(parts=parts), context()
    large = TextPart(text="x" * MAX_PART_CHARACTERS)

    assert not unseen.show(TextPart(text="x"))
    assert shown.show(large)
    assert not shown.show(ImagePart(mime="image/png", data="AAAA"))
    parts.clear()
    assert [shown.show(TextPart(text="x")) for _ in range(MAX_PARTS + 1)] == [
        *[True] * MAX_PARTS,
        False,
    ]
    assert len(parts) == MAX_PARTS
