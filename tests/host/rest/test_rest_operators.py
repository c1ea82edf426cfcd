"""Operators over REST: they see and end what all agents do, and nobody else does."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.guard.spi import audit_page
from toolcell.host.http.tokens import TokenStore
from toolcell.host.rest import records, views

from .served_rest import SUM, Service, served, take

pytestmark = pytest.mark.anyio
AUDIT = '[audit]\npath = "audit.jsonl"'
TWO_CALLS = """
[[policies]]
agent_id = "c"
allow = ["calculate", "pay"]
budgets = [{ unit = "calls", limit = 2 }]
"""
HOLD = {"tool": "hold", "arguments": {}}


async def held(service: Service, name: str, call_id: str) -> dict[str, Any]:
    """Begin a call that waits for the test; return it as an operator sees it."""
    await service.post("/v1/calls", HOLD | {"id": call_id}, name, wait=0)
    with anyio.fail_after(60):
        while True:
            told = await service.get("/v1/live", "operator", agent="*")
            for live in told.json()["calls"]:
                if live["call_id"] == call_id and live["deadline"]:
                    call: dict[str, Any] = live
                    return call
            await anyio.sleep(0.01)


@pytest.mark.promise("R2")
async def test_calls_that_run_are_written_beside_the_loop_with_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[threading.Thread] = []
    monkeypatch.setattr(
        views, "rest", lambda: rested.append(threading.current_thread())
    )
    async with served(tmp_path) as service:
        await held(service, "a", "one")
        await held(service, "b", "two")
        rested.clear()
        await service.get("/v1/live", "operator", agent="*")

    assert len(rested) == 2
    assert threading.current_thread() not in rested


async def test_an_operator_sees_and_ends_the_calls_of_all_agents(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, AUDIT) as service:
        first, second = await held(service, "a", "one"), await held(service, "b", "two")
        assert (first["agent_id"], first["tool"]) == ("a", "hold")
        assert (first["state"], first["status"]) == ("running", None)
        assert first["can_be_ended"] is True
        assert first["deadline"] > first["started_at"]
        all_live = (await service.get("/v1/live", "operator", agent="*")).json()
        of_a = (await service.get("/v1/live", "operator", agent="a")).json()
        own = (await service.get("/v1/live", "a")).json()
        assert [each["call_id"] for each in all_live["calls"]] == ["one", "two"]
        assert of_a == own == {"calls": [first]}

        path = f"/v1/live/{first['number']}/cancel"
        ended = await service.post(path, name="operator")
        assert ended.status_code == 200
        told = [ended.json()[name] for name in ("state", "status", "recorded")]
        assert told == ["ended", "cancelled", True]
        call = (await service.get("/v1/calls/one")).json()
        assert call["result"]["status"] == "cancelled"
        assert call["result"]["error"]["kind"] == "tool.cancelled"
        gone = [await service.post(path, name="operator")]
        gone.append(await service.post("/v1/live/x/cancel", name="operator"))
        assert [each.status_code for each in gone] == [404, 404]
        left = (await service.get("/v1/live", "operator", agent="*")).json()
        assert [each["number"] for each in left["calls"]] == [second["number"]]
        token = service.keys["operator"].split("_")[1]
    acts = [
        dict(each.record)
        for each in audit_page(tmp_path / "audit.jsonl")
        if each.record["event"] == "call_cancelled"
    ]
    assert [(act["by"], act["call_id"]) for act in acts] == [(f"token {token}", "one")]


async def test_an_operator_reads_budgets_and_records_of_all(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        for name in ("a", "b", "a"):
            await service.post("/v1/calls", SUM, name)
        agents = (await service.get("/v1/agents", "operator")).json()["agents"]
        of_a = (await service.get("/v1/budgets", "operator", agent="a")).json()
        first = (
            await service.get("/v1/records", "operator", agent="*", limit=2)
        ).json()
        second = await service.get(
            "/v1/records", "operator", agent="*", limit=2, before=first["next"]
        )
        own = (await service.get("/v1/records", "operator")).json()
        [last] = second.json()["records"]
        times = {
            name: await service.get(
                "/v1/records", "operator", agent="*", **{name: last["started_at"]}
            )
            for name in ("since", "until")
        }

    assert [agent["agent_id"] for agent in agents] == ["a", "b"]
    assert agents[0] == of_a
    [limit] = of_a["limits"]
    assert (limit["maximum"], limit["used"], limit["left"]) == (1000, 2, 998)
    assert [record["agent_id"] for record in first["records"]] == ["b", "a"]
    assert [record["agent_id"] for record in second.json()["records"]] == ["a"]
    assert second.json()["next"] is None
    assert [record["agent_id"] for record in own["records"]] == ["b"]
    assert [len(times[name].json()["records"]) for name in times] == [3, 0]


async def test_records_are_found_by_what_was_called_and_how_it_ended(
    tmp_path: Path,
) -> None:
    calls = {
        "sum": SUM,
        "words": {"tool": "calculate", "arguments": {"expression": "twelve"}},
        "paid": {"tool": "pay", "arguments": {"to": "twelve"}},
    }
    expected: list[tuple[dict[str, str], list[str]]] = [
        ({"tool": "calculate"}, ["sum", "words"]),
        ({"status": "ok"}, ["sum"]),
        ({"status": "failed"}, ["words"]),
        ({"status": "denied"}, ["paid"]),
        ({"reason": "budget_exceeded"}, ["paid"]),
        ({"text": "twelve"}, ["words", "paid"]),
        ({"text": "twelve", "tool": "pay"}, ["paid"]),
        ({"text": "twelve", "status": "ok"}, []),
    ]
    async with served(tmp_path, TWO_CALLS) as service:
        service.keys["c"] = service.tokens.create("c")[1]
        for call_id, call in calls.items():
            await service.post("/v1/calls", {"id": call_id, **call}, "c")
        told = [
            (query, (await service.get("/v1/records", "c", **query)).json())
            for query, _ in expected
        ]

    found = [
        (query, [record["call_id"] for record in page["records"]])
        for query, page in told
    ]
    assert found == expected


async def test_an_operator_follows_the_events_of_all(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        async with service.events("operator", agent="*") as stream:
            await take(stream, 1)
            # Made by no client of this server.
            await service.host.call(**call_of(SUM), agent_id="a")
            asked = await service.asked()
            told = await take(stream, 5)
        assert {each["agent"] for each in told} == {"a"}
        kinds = [each["event_event"] for each in told]
        assert kinds[:3] == ["call.started", "call.ended", "call.started"]
        assert sorted(kinds[3:]) == ["approval.asked", "call.parked"]
        facts = {each["event_event"]: each for each in told}
        assert facts["call.ended"]["status"] == "ok"
        assert facts["call.parked"]["id"] == asked["call"]
        assert facts["approval.asked"]["id"] == asked["id"]


def call_of(body: dict[str, Any]) -> dict[str, Any]:
    return {"name": body["tool"], "arguments": body["arguments"]}


@pytest.mark.parametrize("name", ["a", "person"])
async def test_others_are_refused(tmp_path: Path, name: str) -> None:
    async with served(tmp_path) as service:
        live = await held(service, "b", "two")
        refused = [
            await service.get(path, name, agent=agent)
            for path in ("/v1/live", "/v1/records", "/v1/budgets", "/v1/events")
            for agent in ("*", "b", "nobody")
        ]
        refused.append(await service.get("/v1/agents", name))
        refused.append(
            await service.post(f"/v1/live/{live['number']}/cancel", name=name)
        )
        own = await service.get("/v1/records", name, agent="a")
        assert own.status_code == 200
        # Nothing was ended.
        assert (await service.get("/v1/live", "b")).json()["calls"] == [live]

    assert {each.status_code for each in refused} == {403}
    reasons = {each.json()["error"]["details"]["reason"] for each in refused}
    assert reasons == {"no_operator"}


def test_a_file_of_tokens_from_before_operators_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    with closing(sqlite3.connect(path)) as old:
        old.execute(
            "CREATE TABLE tokens (id TEXT PRIMARY KEY, hash BLOB NOT NULL,"
            " agent_id TEXT NOT NULL, asks_person INTEGER NOT NULL,"
            " created_at REAL NOT NULL,"
            " expires_at REAL NOT NULL, revoked_at REAL)"
        )
        old.execute("INSERT INTO tokens VALUES ('1', X'00', 'a', 0, 0, 9e9, NULL)")
        old.commit()
    for _ in range(2):
        with TokenStore(path) as store:
            made, text = store.create("b", operator=True)
            assert store.find(text) == made
            assert store.all()[0].operator is False


@pytest.mark.promise("R2")
@pytest.mark.parametrize(
    ("size", "at_once", "lengths"), [(1, 50, [1, 1, 1]), (10**6, 2, [3])]
)
async def test_a_page_of_records_has_a_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    at_once: int,
    lengths: list[int],
) -> None:
    monkeypatch.setattr(records, "PAGE_BYTES", size)
    monkeypatch.setattr(records, "_AT_ONCE", at_once)
    pages: list[list[int]] = []
    query: dict[str, Any] = {}
    async with served(tmp_path) as service:
        for _ in range(3):
            await service.post("/v1/calls", SUM, "a")
        while True:
            page = (await service.get("/v1/records", **query)).json()
            if page["records"]:
                pages.append([each["number"] for each in page["records"]])
            if page["next"] is None:
                break
            query["before"] = page["next"]

    numbers = [number for page in reversed(pages) for number in page]
    assert [len(page) for page in pages] == lengths
    assert len(numbers) == 3
    assert numbers == sorted(numbers)
