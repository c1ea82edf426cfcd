"""Approvals over REST: what is approved is what was shown, and once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.guard import AgentPolicy, Approve
from toolcell.guard.spi import Rule

from .served_rest import served, take

pytestmark = pytest.mark.anyio
SECRET = "sk-proj-" + "a1B2" * 8


async def test_a_person_approves_what_was_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked()
        path = f"/v1/approvals/{asked['id']}"
        shown = (await service.get(path)).json()
        without = await service.post(f"{path}/approve", {"digest": shown["digest"]})
        stale = await service.post(f"{path}/approve", {"digest": "0" * 64}, "person")
        waits = await service.get(f"/v1/calls/{asked['call']}", wait=0)
        done = await service.post(
            f"{path}/approve", {"digest": shown["digest"]}, "person"
        )
        late = await service.post(f"{path}/deny", {}, "person")
        call = await service.get(f"/v1/calls/{asked['call']}", wait=60)

    assert shown["arguments"] == {"to": "x", "key": ""}
    assert (shown["tool"], shown["hidden"]) == ("pay", [])
    assert without.json()["error"]["details"]["reason"] == "no_person"
    assert stale.json()["error"]["details"]["reason"] == "not_as_shown"
    assert [without.status_code, stale.status_code, waits.status_code] == [
        403,
        409,
        202,
    ]
    assert (done.status_code, done.json()["answer"]) == (200, "approved")
    assert (late.status_code, "its state is" in late.text) == (404, True)
    assert call.json()["result"]["content"] == "paid x"


async def test_a_request_that_was_ended_says_why_to_its_agent(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked()
        ended = await service.host.approvals.end(asked["id"], reason="the desk closed")
        late = await service.get(f"/v1/approvals/{asked['id']}")

    assert ended
    assert (late.status_code, "ended: the desk closed" in late.text) == (404, True)


@pytest.mark.promise("R40")
async def test_no_letter_of_an_agent_is_hidden(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked(to="\u202eevil\u200b")
        path = f"/v1/approvals/{asked['id']}"
        shown = (await service.get(path)).json()
        done = await service.post(
            f"{path}/approve", {"digest": shown["digest"]}, "person"
        )
        call = await service.get(f"/v1/calls/{asked['call']}", wait=60)

    assert shown["arguments"]["to"] == r"\u{202e}evil\u{200b}"
    assert done.status_code == 200
    assert call.json()["result"]["content"] == "paid \u202eevil\u200b"


async def test_a_refusal_and_its_reason_reach_the_model(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked()
        path = f"/v1/approvals/{asked['id']}"
        done = await service.post(f"{path}/deny", {"reason": "too dear"}, "person")
        call = await service.get(f"/v1/calls/{asked['call']}", wait=60)

    assert done.json()["answer"] == "rejected"
    assert call.json()["result"]["status"] == "denied"
    assert "too dear" in call.text


async def test_hidden_parts_are_not_shown_and_not_approved(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked(key=SECRET)
        path = f"/v1/approvals/{asked['id']}"
        shown = await service.get(path)
        refused = await service.post(
            f"{path}/approve", {"digest": shown.json()["digest"]}, "person"
        )
        edited = await service.post(
            f"{path}/approve",
            {"digest": shown.json()["digest"], "arguments": {"to": "y"}},
            "person",
        )
        call = await service.get(f"/v1/calls/{asked['call']}", wait=60)

    assert SECRET not in shown.text
    assert [each["path"] for each in shown.json()["hidden"]] == ["key[0:40]"]
    assert refused.status_code == 409
    assert refused.json()["error"]["details"]["reason"] == "hidden_parts"
    assert edited.status_code == 200
    assert call.json()["result"]["content"] == "paid y"


async def test_of_two_answers_at_once_one_counts(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked()
        path = f"/v1/approvals/{asked['id']}"
        told: list[int] = []

        async def answer(word: str) -> None:
            body = {"digest": asked["digest"]} if word == "approve" else {}
            done = await service.post(f"{path}/{word}", body, "person")
            told.append(done.status_code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, "approve")
            tasks.start_soon(answer, "deny")

    assert sorted(told) in ([200, 404], [200, 409])


async def until(stream: AsyncIterator[dict[str, Any]], kind: str) -> list[str]:
    """Read events until one of a kind; return the kinds of all."""
    kinds: list[str] = []
    while kind not in kinds:
        [event] = await take(stream, 1)
        kinds.append(event["event_event"])
    return kinds


async def test_the_agents_own_person_is_none_of_several(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        policy = AgentPolicy(agent_id="a", ask=[Rule(tools=["pay"], approvers=2)])
        service.host.guard.replace_policies([policy])
        async with service.events() as events:
            await take(events, 1)
            asked = await service.asked()
            path = f"/v1/approvals/{asked['id']}"
            body = {"digest": asked["digest"]}
            own = await service.post(f"{path}/approve", body, "person")
            kinds = await until(events, "approval.asked")
            reply = Approve(approver="anna")
            await service.host.approvals.answer(asked["id"], reply)
            kinds += await until(events, "approval.voted")
        shown = (await service.get(path)).json()
        denied = await service.post(f"{path}/deny", {}, "person")

    assert own.json()["error"]["details"]["reason"] == "several_people"
    assert (asked["approvers"], asked["approved_by"]) == (2, [])
    assert "approval.ended" not in kinds
    assert (shown["approved_by"], shown["digest"]) == (["anna"], asked["digest"])
    assert denied.status_code == 200
