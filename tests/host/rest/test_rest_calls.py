"""Calls over REST: made, waited for, found again, cancelled, and recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx2
import pytest

from toolcell.host import Host
from toolcell.host.http.tokens import open_tokens
from toolcell.host.operator.event_bus import open_events
from toolcell.host.rest.api import open_api
from toolcell.host.rest.bodies import NewCall
from toolcell.host.rest.calls import MAX_SHOWN

from .served_rest import PICTURE, SUM, configured, own_tools, served

pytestmark = pytest.mark.anyio


async def test_a_call_is_made_and_found_again_in_calls_and_records(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        tools = (await service.get("/v1/tools")).json()["tools"]
        made = await service.post("/v1/calls", SUM)
        call = made.json()
        again = await service.get(f"/v1/calls/{call['id']}")
        records = (await service.get("/v1/records", call_id=call["id"])).json()
        left = (await service.get("/v1/budgets")).json()

    assert {tool["name"] for tool in tools} == {"calculate", "hold", "pay"}
    assert made.status_code == again.status_code == 200
    assert (call["state"], call["result"]["content"]) == ("ended", 42)
    assert again.json() == call
    [record] = records["records"]
    assert (record["tool"], record["status"]) == ("calculate", "ok")
    assert record["arguments"] == SUM["arguments"]
    assert left["agent_id"] == "a"
    assert 999 in left["left"].values()


async def test_pictures_are_parts_of_the_latest_results(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        service.held.set()
        calls = [(await service.post("/v1/calls", {"tool": "hold"})).json()]
        for _ in range(MAX_SHOWN):
            calls.append((await service.post("/v1/calls", {"tool": "hold"})).json())
        old = (await service.get(f"/v1/calls/{calls[0]['id']}")).json()
        new = (await service.get(f"/v1/calls/{calls[1]['id']}")).json()

    assert calls[0]["result"]["parts"] == [PICTURE.model_dump()]
    assert (old["result"]["content"], old["result"]["parts"]) == ("done", [])
    assert new["result"]["parts"] == [PICTURE.model_dump()]


@pytest.mark.promise("R67")
async def test_a_call_that_waits_ends_with_its_token(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        asked = await service.asked()
        service.tokens.revoke(service.keys["a"].split("_")[1])
        path = f"/v1/calls/{asked['call']}"
        call = (await service.get(path, "person", wait=60)).json()

    assert call["result"]["status"] == "cancelled"


async def test_a_failed_and_a_refused_call_are_results(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        failed = await service.post("/v1/calls", {"tool": "no_such"})
        refused = await service.post(
            "/v1/calls", {"tool": "pay", "arguments": {"to": "x"}}, "b"
        )

    assert failed.status_code == refused.status_code == 200
    kinds = [each.json()["result"]["error"]["kind"] for each in (failed, refused)]
    assert kinds == ["tool.not_found", "tool.not_found"]


async def test_a_call_runs_on_when_its_client_stops_waiting(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        made = await service.post("/v1/calls", {"tool": "hold"}, wait=0)
        path = f"/v1/calls/{made.json()['id']}"
        running = await service.get(path, wait=0)
        service.held.set()
        ended = await service.get(path, wait=5)

    assert made.status_code == running.status_code == 202
    assert (running.json()["state"], running.json()["result"]) == ("running", None)
    assert ended.status_code == 200
    assert ended.json()["result"]["content"] == "done"


async def test_a_call_is_cancelled(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        made = await service.post("/v1/calls", {"tool": "hold"}, wait=0)
        path = f"/v1/calls/{made.json()['id']}"
        ended = await service.post(f"{path}/cancel")
        again = await service.post(f"{path}/cancel")
        other = await service.post("/v1/calls", SUM)

    assert ended.json()["result"]["status"] == "cancelled"
    assert again.json() == ended.json()
    assert other.json()["result"]["content"] == 42


async def test_a_cancel_waits_for_the_request_that_makes_its_call(
    tmp_path: Path,
) -> None:
    config = configured(tmp_path)
    with open_tokens(config) as tokens, anyio.fail_after(60):
        headers = {"Authorization": f"Bearer {tokens.create('a')[1]}"}
        async with Host(config) as host, anyio.create_task_group() as tasks:
            host.registry.register_many(own_tools(anyio.Event()))
            async with (
                open_events(host.event_bus, host.approvals) as events,
                open_api(host, events) as api,
                httpx2.AsyncClient(
                    transport=httpx2.ASGITransport(app=api),
                    base_url="http://127.0.0.1",
                    headers=headers,
                ) as http,
            ):
                bodies = [SUM, {"tool": "hold", "id": "x"}]
                for body in bodies:
                    send = partial(http.post, "/v1/calls?wait=0", json=body)
                    tasks.start_soon(send)
                await anyio.lowlevel.checkpoint()
                cancelled = await http.post("/v1/calls/x/cancel")

    assert cancelled.status_code == 200, cancelled.text
    assert cancelled.json()["result"]["status"] == "cancelled"


async def test_a_call_that_has_not_begun_is_cancelled(tmp_path: Path) -> None:
    config = configured(tmp_path)
    with open_tokens(config) as tokens, anyio.fail_after(60):
        token, _ = tokens.create("a")
        async with Host(config) as host, anyio.create_task_group() as tasks:
            host.registry.register_many(own_tools(anyio.Event()))
            async with (
                open_events(host.event_bus, host.approvals) as events,
                open_api(host, events) as api,
            ):
                asked = NewCall(tool="hold", id="x")
                tasks.start_soon(api.calls.start, token, asked)
                await anyio.lowlevel.checkpoint()
                call = api.calls.find("a", "x")
                assert call.scope is None
                await api.calls.cancel(call)

    assert call.result is not None
    assert call.result.status == "cancelled"


@pytest.mark.promise("R70")
async def test_a_call_sent_twice_under_one_id_is_made_once(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        first = await service.post("/v1/calls", {**SUM, "id": "one"})
        second = await service.post("/v1/calls", {**SUM, "id": "one"})
        another = await service.post("/v1/calls", {"tool": "hold", "id": "one"})
        of_b = await service.post("/v1/calls", {**SUM, "id": "one"}, "b")
        records = (await service.get("/v1/records", call_id="one")).json()

    assert second.json() == first.json()
    assert another.status_code == 409
    assert another.json()["error"]["details"]["reason"] == "id_is_used"
    assert of_b.json()["started_at"] > first.json()["started_at"]
    assert len(records["records"]) == 1


@pytest.mark.promise("R22")
async def test_nothing_of_another_agent_is_seen(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        made = await service.post("/v1/calls", {"tool": "hold"}, wait=0)
        path = f"/v1/calls/{made.json()['id']}"
        asked = await service.asked()
        theirs = f"/v1/approvals/{asked['id']}"
        missing = [
            await service.get(path, "b"),
            await service.post(f"{path}/cancel", name="b"),
            await service.get(theirs, "b"),
        ]
        unknown = await service.get("/v1/calls/none", "b")
        await service.post("/v1/calls", SUM)
        await service.post(f"{theirs}/deny", {}, "person")
        empty = [
            (await service.get("/v1/records", "b")).json(),
            (await service.get("/v1/approvals", "b")).json(),
        ]

    assert [each.status_code for each in missing] == [404, 404, 404]
    assert missing[0].json() == unknown.json()
    assert empty == [{"records": [], "next": None}, {"approvals": []}]


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer tcl_0123456789abcdef_x", "Basic YTpi"]
)
@pytest.mark.promise("R22")
async def test_without_a_valid_token_nothing_is_answered(
    tmp_path: Path, header: str
) -> None:
    paths = ("tools", "calls/x", "approvals", "budgets", "records", "events")
    async with served(tmp_path) as service:
        token = service.keys["a"]
        headers = {"Authorization": header} if header else {}
        told = [
            await service.http.get(f"/v1/{path}", headers=headers) for path in paths
        ]
        posted = await service.http.post("/v1/calls", json=SUM, headers=headers)
        service.tokens.revoke(token.split("_")[1])
        revoked = await service.get("/v1/tools")
        public = [
            (await service.http.get(path)).status_code
            for path in ("/v1/openapi.json", "/healthz", "/readyz")
        ]

    for answer in (*told, posted, revoked):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (
            401,
            "Bearer",
        )
    assert public == [200, 200, 200]


async def test_bodies_have_limits_and_one_meaning(tmp_path: Path) -> None:
    json_type = {"content-type": "application/json"}
    bodies = {
        b'{"tool": "' + b"x" * 20_000 + b'"}': 413,
        b'{"tool": "x", "arguments": {"a": [' + b"1," * 200 + b"1]}}": 413,
        b'{"tool": "x", "tool": "y"}': 400,
        b'{"tool": "\xff"}': 400,
        b"{": 400,
        b"": 400,
        b"[]": 422,
        b'{"tool": "x", "agent_id": "b"}': 422,
        b'{"tool": ""}': 422,
    }
    async with served(tmp_path) as service:
        headers = service.key() | json_type
        told = {
            body: (
                await service.http.post("/v1/calls", content=body, headers=headers)
            ).status_code
            for body in bodies
        }
        form = await service.http.post("/v1/calls", data=SUM, headers=service.key())
        query = await service.get("/v1/records", limit=0)
        twice = await service.http.get(
            "/v1/records?limit=1&limit=2", headers=service.key()
        )
        method = await service.http.put("/v1/calls", headers=service.key())

    assert told == bodies
    assert form.status_code == 415
    assert query.status_code == twice.status_code == 422
    assert (method.status_code, method.headers["allow"]) == (405, "POST")


async def test_a_body_of_unknown_length_has_the_same_limit(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(21):
            yield b" " * 1_000

    async with served(tmp_path) as service:
        headers = service.key() | {"content-type": "application/json"}
        told = await service.http.post("/v1/calls", content=parts(), headers=headers)

    assert told.status_code == 413


async def test_one_agent_leaves_places_to_others(tmp_path: Path) -> None:
    async with served(tmp_path, "max_requests = 4") as service:
        for _ in range(2):
            await service.post("/v1/calls", {"tool": "hold"}, wait=0)
        refused = await service.post("/v1/calls", {"tool": "hold"}, wait=0)
        other = await service.post("/v1/calls", SUM, "b")

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["details"]["reason"] == "too_many_calls"
    assert other.json()["result"]["content"] == 42


async def test_calls_that_run_are_finished_when_the_server_stops(
    tmp_path: Path,
) -> None:
    config = configured(tmp_path)
    held = anyio.Event()
    with open_tokens(config) as tokens, anyio.fail_after(60):
        token, _ = tokens.create("a")
        async with Host(config) as host, anyio.create_task_group() as tasks:
            host.registry.register_many(own_tools(held))
            async with (
                open_events(host.event_bus, host.approvals) as events,
                open_api(host, events) as api,
            ):
                call = await api.calls.start(token, NewCall(tool="hold"))

                async def end_it() -> None:
                    while not host.active_calls.draining:
                        await anyio.sleep(0.01)
                    held.set()

                tasks.start_soon(end_it)

    result = call.result
    assert result is not None
    assert (result.status, result.content) == ("ok", "done")
