"""Turns of an agent: asked once, called once, over pauses and crashes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import (
    ImagePart,
    InvalidInputError,
    Message,
    ModelAuthError,
    ModelChunk,
    ModelResponse,
    ModelThrottledError,
    TextPart,
    ToolCall,
)
from toolcell.flow import (
    START,
    Emitted,
    Flow,
    FlowLimits,
    Graph,
    NodeContext,
    SQLiteCheckpointer,
    add_messages,
    agent_turn,
    interrupt,
)
from toolcell.flow.spi import resume_with
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    Approvals,
    ApprovalStore,
    Approve,
)
from toolcell.tools import (
    ConcurrentExecutor,
    RetryPolicy,
    ToolContext,
    ToolRegistry,
    tool,
)
from toolcell.tools.spi import check_model

from ..support.flow.graphs import Log, flow, said
from ..support.sample_tools import add, crash, echo, executor

pytestmark = pytest.mark.anyio


class Talk(BaseModel):
    messages: Annotated[tuple[Message, ...], add_messages] = ()


class Scripted:
    """Says what it was told to say, and keeps what it was asked."""

    def __init__(self, *turns: Message | Exception) -> None:
        self.turns = list(turns)
        self.heard: list[tuple[list[Message], list[str]]] = []

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> ModelResponse:
        names = [each["function"]["name"] for each in tools or ()]
        self.heard.append((list(messages), names))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, Exception):
            raise turn
        return ModelResponse(message=turn, usage={"tokens": 7, "usd": "0.1"})

    async def stream(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> AsyncIterator[ModelChunk]:
        response = await self.complete(messages, tools)
        yield ModelChunk(text=response.message.content, response=response)


def asks(*calls: tuple[str, dict[str, Any]]) -> Message:
    made = [
        ToolCall(id=f"c{n}", name=name, arguments=arguments)
        for n, (name, arguments) in enumerate(calls)
    ]
    return Message.assistant("", made)


def talk(model: Any, retry: RetryPolicy | None = None, **options: Any) -> Graph[Talk]:
    graph = Graph(Talk, name="talk")
    graph.node(agent_turn(model, **options), name="agent", retry=retry)
    graph.edge(START, "agent")
    return graph


def question(text: str) -> dict[str, Any]:
    return {"messages": [Message.user(text)]}


async def test_the_scripted_model_keeps_the_contract() -> None:
    await check_model(Scripted(Message.assistant("hi")))


@pytest.mark.promise("flow-45")
async def test_a_model_and_its_tools_take_turns() -> None:
    model = Scripted(
        asks(("add", {"a": 1, "b": 2}), ("echo", {"number": 5}), ("nothing", {})),
        Message.assistant("3"),
    )
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["add"])])
    made = ConcurrentExecutor(ToolRegistry([add, echo]), guard=guard)
    flow = Flow(talk(model, system="Be brief."), executor=made, agent_id="a")
    state = (await flow.run(question("1 + 2?"), "t")).unwrap()

    assert [message.role.value for message in state.messages] == [
        *("user", "assistant", "tool", "tool", "tool", "assistant")
    ]
    results = state.messages[2:5]
    assert [(result.call_id, result.failed) for result in results] == [
        ("c0", False),
        ("c1", True),
        ("c2", True),
    ]
    assert results[0].content == "3"
    # It is shown what it may call, and its instructions are no part of the state.
    assert [names for _, names in model.heard] == [["add"], ["add"]]
    assert [heard[0].content for heard, _ in model.heard] == ["Be brief."] * 2
    assert [each.step for each in await flow.history("t")] == [2, 1, 0]


@pytest.mark.promise("T19")
async def test_a_model_learns_of_a_malformed_call() -> None:
    """The others of its turn are made, and the thread goes on."""
    texts: list[Any] = ['{"a": 1, "b": 2', '{"a": 1, "b": 2}']
    calls = [
        ToolCall(id=f"c{number}", name="add", arguments=text)
        for number, text in enumerate(texts)
    ]
    model = Scripted(Message.assistant("", calls), Message.assistant("3"))
    guard = ActionGuard([AgentPolicy(agent_id="a", allow=["add"])])
    made = ConcurrentExecutor(ToolRegistry([add, echo]), guard=guard)
    flow = Flow(talk(model), executor=made, agent_id="a")
    state = (await flow.run(question("1 + 2?"), "t")).unwrap()

    _, asked, *results, last = state.messages
    assert (last.content, asked.tool_calls[0].malformed) == ("3", '{"a": 1, "b": 2')
    assert [(result.call_id, result.failed) for result in results] == [
        ("c0", True),
        ("c1", False),
    ]
    assert "one JSON object" in results[0].content
    assert "at character 15" in results[0].content


async def test_the_text_of_a_turn_may_be_emitted_as_it_comes() -> None:
    model = Scripted(Message.assistant("hi"))
    for stream, heard in ((False, []), (True, ["hi"])):
        flow = Flow(talk(model, stream=stream))
        async with flow.stream(question("?")) as events:
            emitted = [
                event.data async for event in events if isinstance(event, Emitted)
            ]
        assert emitted == heard


async def test_only_named_tools_are_offered() -> None:
    model = Scripted(Message.assistant("hi"))
    graph = talk(model, tools=["echo"])
    await Flow(graph, executor=executor(add, echo)).run(question("hi"))

    assert model.heard[0][1] == ["echo"]


async def test_an_endless_talk_is_ended() -> None:
    model = Scripted(asks(("add", {"a": 1, "b": 2})))
    flow = Flow(talk(model, max_turns=3), executor=executor(add))
    result = await flow.run(question("?"), "t")

    assert result.error is not None
    assert result.error.details == {"limit": "max_turns", "value": 3}
    assert len(model.heard) == 3


@pytest.mark.promise("flow-45")
async def test_a_model_is_asked_once_though_its_calls_were_cut_off() -> None:
    """Killed between the model's answer and the end of the calls."""
    begun = anyio.Event()

    @tool(idempotent=True)
    async def waits() -> str:
        first = not begun.is_set()
        begun.set()
        if first:
            await anyio.sleep_forever()
        return "done"

    model = Scripted(asks(("waits", {})), Message.assistant("it is done"))
    flow = Flow(talk(model), executor=executor(waits))
    async with anyio.create_task_group() as group:
        group.start_soon(flow.run, question("?"), "t")
        await begun.wait()
        group.cancel_scope.cancel()
    state = (await flow.resume("t")).unwrap()

    assert state.messages[-1].content == "it is done"
    assert len(model.heard) == 2


@pytest.mark.promise("flow-45")
async def test_a_turn_waits_for_the_approval_of_one_of_its_calls(
    tmp_path: Path,
) -> None:
    """The model is asked once; what it may have is made, and what not is refused."""
    model = Scripted(
        asks(("add", {"a": 1, "b": 2}), ("crash", {}), ("echo", {"number": 5})),
        Message.assistant("done"),
    )
    policy = AgentPolicy(agent_id="a", allow=["add"], deny=["crash"], ask=["echo"])
    with ApprovalStore(tmp_path / "approvals.db") as store:
        desk = Approvals(store, answered_elsewhere=True)
        guard = ActionGuard([policy], approvals=desk)
        made = ConcurrentExecutor(ToolRegistry([add, crash, echo]), guard=guard)
        flow = Flow(talk(model), executor=made, agent_id="a")
        paused = await flow.run(question("?"), "t")
        [request] = await desk.pending()
        assert [each.request_id for each in paused.interrupts] == [request.id]
        await desk.answer(request.id, Approve(approver="anna"))
        state = (await flow.resume("t")).unwrap()

    results = state.messages[2:5]
    assert [(result.call_id, result.failed) for result in results] == [
        ("c0", False),
        ("c1", True),
        ("c2", False),
    ]
    assert (results[0].content, results[2].content) == ("3", "5")
    assert len(model.heard) == 2


@pytest.mark.parametrize("pauses", [False, True])
async def test_pictures_of_tools_are_named_and_those_of_people_kept(
    tmp_path: Path, pauses: bool
) -> None:
    """A thread that pauses, and goes on elsewhere, tells the model the same."""
    picture = ImagePart(mime="image/png", data="iVBORw0KGgo=")
    note = TextPart(text="a note")

    @tool
    def draw(context: ToolContext) -> str:
        """Draw, and say something about it."""
        assert context.show(picture)
        assert context.show(note)
        return "drawn"

    model = Scripted(
        asks(("draw", {}), ("echo", {"number": 5})), Message.assistant("seen")
    )
    allowed = ["draw", *([] if pauses else ["echo"])]
    policy = AgentPolicy(agent_id="a", allow=allowed, ask=["echo"] if pauses else [])
    person = {"messages": [Message.user("like this", [picture])]}
    with ApprovalStore(tmp_path / "approvals.db") as store:
        desk = Approvals(store, answered_elsewhere=True)
        guard = ActionGuard([policy], approvals=desk)
        made = ConcurrentExecutor(ToolRegistry([draw, echo]), guard=guard)

        async with SQLiteCheckpointer(tmp_path / "flow.db") as file:
            flow = Flow(talk(model), executor=made, agent_id="a", checkpointer=file)
            result = await flow.run(person, "t")
        if pauses:
            [request] = await desk.pending()
            await desk.answer(request.id, Approve(approver="anna"))
            async with SQLiteCheckpointer(tmp_path / "flow.db") as file:
                flow = Flow(talk(model), executor=made, agent_id="a", checkpointer=file)
                result = await flow.resume("t")

    asked, _, drawn, *_ = result.unwrap().messages
    assert asked.parts == (picture,)
    assert drawn.parts == (TextPart(text="[image/png: not sent]"), note)
    heard, _ = model.heard[-1]
    assert (heard[0], heard[2]) == (asked, drawn)


async def test_texts_that_a_tool_shows_are_bounded() -> None:
    @tool
    def tell(context: ToolContext) -> str:
        """Say much."""
        return str(context.show(TextPart(text="é" * 600)))

    model = Scripted(asks(("tell", {})), Message.assistant("heard"))
    limits = FlowLimits(record_bytes=1_000)
    flow = Flow(talk(model), executor=executor(tell), limits=limits)
    told = (await flow.run(question("?"))).unwrap().messages[2]

    assert (told.content, told.parts) == (
        "True",
        (TextPart(text="[1200 bytes of texts: not kept]"),),
    )


@pytest.mark.promise("flow-34", "flow-35")
async def test_an_answer_is_replayed_with_its_usage() -> None:
    model = Scripted(Message.assistant("hi"))
    seen: list[ModelResponse] = []

    async def node(state: Log, ctx: NodeContext) -> dict[str, Any]:
        seen.append(await ctx.ask(model, [Message.user(str(len(seen)))]))
        return said(interrupt("a?"))

    asking = flow(node)
    await asking.run({}, "t")
    (await asking.resume("t", resume_with("A"))).unwrap()

    assert seen[0] == seen[1]
    assert seen[1].usage == {"tokens": 7, "usd": "0.1"}
    assert len(model.heard) == 1


@pytest.mark.promise("LC-16")
async def test_a_model_that_asks_to_wait_is_tried_again() -> None:
    soon = RetryPolicy(max_attempts=3, first_seconds=0)
    slow = Scripted(ModelThrottledError("slow down"), Message.assistant("hi"))
    done = await Flow(talk(slow, soon)).run(question("?"))
    refused = Scripted(ModelAuthError("no such key", hint="look at the key"))
    failed = await Flow(talk(refused, soon)).run(question("?"))

    assert done.unwrap().messages[-1].content == "hi"
    assert (len(slow.heard), len(refused.heard)) == (2, 1)
    assert failed.error is not None
    assert failed.error.details["exception"] == "ModelAuthError"


@pytest.mark.promise("LC-16")
async def test_what_is_no_answer_is_refused() -> None:
    class Odd(Scripted):
        async def complete(self, *_: Any, **__: Any) -> Any:
            return "hi"

    result = await Flow(talk(Odd(Message.assistant("hi")))).run(question("?"))

    assert result.error is not None
    assert result.error.details["exception"] == "ModelResponseError"


async def test_a_state_without_messages_is_refused() -> None:
    graph = Graph(Log, name="g")
    graph.node(agent_turn(Scripted(Message.assistant("hi"))), name="agent")
    graph.edge(START, "agent")
    result = await Flow(graph).run({})

    assert isinstance(result.exception, InvalidInputError)
    assert "has no messages" in result.exception.message
