"""The first step of a thread, and the thread itself."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from toolcell.core import FlowLimitError, InvalidInputError

from ..state.state import State
from ..stores.base import Lease
from ..stores.records import Checkpoint, ThreadHead
from ..values.json_values import jsonable
from .components import FlowComponents
from .next_step import Plan, first_tasks
from .thread import ThreadView


def begin(parts: FlowComponents, state: State) -> Plan:
    """Return the tasks that a state begins with.

    Raises:
        FlowLimitError: They are too many.
        NodeFailedError: A route raised.
        GraphError: A route chose what it may not.
    """
    plan = first_tasks(parts.graph, state.view)
    most = parts.limits.max_tasks
    if len(plan.tasks) > most:
        raise FlowLimitError(
            f"the thread would begin with {len(plan.tasks)} tasks",
            hint="raise max_tasks",
            details={"limit": "max_tasks", "value": most},
        )
    return plan


async def create_thread(
    parts: FlowComponents,
    thread_id: str,
    agent: str | None,
    state: State,
    plan: Plan,
    metadata: Mapping[str, JsonValue],
) -> tuple[Lease, ThreadView]:
    """Make a thread, owned by the caller, that begins with a state and tasks.

    Raises:
        InvalidInputError: The metadata is no JSON.
        ThreadBusyError: There is a thread of this id.
    """
    try:
        facts = jsonable(dict(metadata))
    except ValueError as error:
        raise InvalidInputError(
            f"the metadata of a thread has no JSON form: {error}",
            hint="use texts, numbers, lists and dicts",
        ) from None
    graph, now = parts.graph, parts.clock()
    checkpoint = Checkpoint(
        id="0",
        step=0,
        at=now,
        next=plan.tasks,
        joins=plan.joins,
        batches=plan.batches,
    )
    head = ThreadHead(
        thread_id=thread_id,
        graph=graph.name,
        version=graph.version,
        shape=parts.shape,
        agent=agent,
        status="running" if plan.tasks else "done",
        checkpoint="0",
        metadata=facts,
        created=now,
        updated=now,
    )
    text = checkpoint.with_fields(state.texts())
    lease = await parts.checkpointer.create(head, text)
    view = ThreadView(
        head=head,
        checkpoint=checkpoint,
        state=state,
        journals={},
        answers={},
        whole_bytes=len(text),
    )
    return lease, view
