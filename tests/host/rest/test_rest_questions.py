"""Questions of threads are read and answered over REST, as requests of their agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.flow import Flow, SQLiteCheckpointer

from ...support.flow.graphs import Log, ask, chain
from .served_rest import Service, served, take

pytestmark = pytest.mark.anyio


def flow_of(service: Service, store: SQLiteCheckpointer) -> Flow[Log]:
    """Return a flow of the host, as a process that was just started has it."""
    executor = service.host.executor
    return Flow(chain(ask), checkpointer=store, executor=executor, agent_id="a")


@pytest.mark.promise("LC-29", "flow-29")
@pytest.mark.parametrize(
    ("verb", "body", "log"),
    [
        ("approve", {"arguments": {"answer": 41}}, "41"),
        ("approve", {}, "True"),
        ("deny", {"reason": "none"}, "denied: a person refused this call: none"),
    ],
    ids=["answered", "approved", "denied"],
)
async def test_a_person_answers_a_question(
    verb: str, body: dict[str, Any], log: str, tmp_path: Path
) -> None:
    """The token of the agent alone does not; nobody has to run for the answer."""
    file = tmp_path / "flows.db"
    async with served(tmp_path) as service, service.events() as events:
        async with SQLiteCheckpointer(file) as store:
            paused = await flow_of(service, store).run({}, "t")
        [_, told] = await take(events, 2)
        [shown] = (await service.get("/v1/approvals")).json()["approvals"]
        others = (await service.get("/v1/approvals", "b")).json()["approvals"]
        path = f"/v1/approvals/{shown['id']}/{verb}"
        body = {**body, "digest": shown["digest"]} if verb == "approve" else body
        alone = await service.post(path, body)
        answered = await service.post(path, body, "person")
        late = await service.post(path, body, "person")
        async with SQLiteCheckpointer(file) as store:
            [done] = await flow_of(service, store).recover()
            [newest, _] = await flow_of(service, store).history("t")

    assert (told["tool"], told["event_event"]) == ("interrupt", "approval.asked")
    [question] = paused.interrupts
    assert shown["arguments"] == {
        "question": {"question": "how many?"},
        "node": "ask",
        "thread": "t",
        "interrupt_id": question.interrupt_id,
        "answer_schema": question.answer_schema,
    }
    assert others == []
    assert alone.json()["error"]["details"]["reason"] == "no_person"
    assert (answered.status_code, late.status_code) == (200, 404)
    assert done.unwrap().log == (log,)
    [given] = newest.answers
    assert given.by == answered.json()["approver"]


@pytest.mark.promise("LC-29")
async def test_an_answer_that_does_not_fit_is_asked_for_again(tmp_path: Path) -> None:
    async with served(tmp_path) as service, SQLiteCheckpointer(tmp_path / "f") as store:
        flow = flow_of(service, store)
        await flow.run({}, "t")
        for answer in ("many", 7):
            [shown] = (await service.get("/v1/approvals")).json()["approvals"]
            body = {"digest": shown["digest"], "arguments": {"answer": answer}}
            path = f"/v1/approvals/{shown['id']}/approve"
            done = await service.post(path, body, "person")
            assert done.status_code == 200
            result = await flow.resume("t")
        assert result.unwrap().log == ("7",)
