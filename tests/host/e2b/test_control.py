"""The control plane: sandboxes are made, shown, prolonged and ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.core import SandboxUnavailableError

from .served_sandboxes import Sandbox, served

pytestmark = pytest.mark.anyio


async def test_a_sandbox_is_made_shown_prolonged_and_ended(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=60, metadata={"k": "v"})
        one = f"/sandboxes/{sandbox.id}"
        shown = (await service.http.get(one, headers=service.key())).json()
        longer = await service.http.post(
            f"{one}/timeout", json={"timeout": 600}, headers=service.key()
        )
        later = (await service.http.get(one, headers=service.key())).json()
        ended = await service.http.delete(one, headers=service.key())
        gone = await service.http.get(one, headers=service.key())
        health = await service.http.get("/health", headers=sandbox.headers)

    assert (shown["state"], shown["metadata"]) == ("running", {"k": "v"})
    assert longer.status_code == ended.status_code == 204
    assert later["endAt"] > shown["endAt"]
    assert gone.status_code == 404
    assert (health.status_code, health.json()["message"]) == (
        502,
        "The sandbox was not found",
    )


@asynccontextmanager
async def endless(sandbox: Sandbox) -> AsyncIterator[list[httpx2.Response]]:
    """Run a command until its sandbox ends; the list has what health says then."""
    ended: list[httpx2.Response] = []

    async def run() -> None:
        config = {"cmd": "sleep", "args": ["600"]}
        with pytest.raises(httpx2.ReadError):
            await sandbox.events("process.Process/Start", process=config)
        ended.append(await sandbox.http.get("/health", headers=sandbox.headers))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(60):
            while not (await sandbox.unary("process.Process/List")).json()["processes"]:
                await anyio.sleep(0.01)
        yield ended


async def test_a_sandbox_ends_at_its_time_limit(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=60)
        async with endless(sandbox) as ended:
            limit = f"/sandboxes/{sandbox.id}/timeout"
            await service.http.post(limit, json={"timeout": 1}, headers=service.key())

    assert [each.status_code for each in ended] == [502]


@pytest.mark.promise("S10")
async def test_lists_are_filtered_and_have_pages(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        first = await service.create(metadata={"k": "1"})
        second = await service.create(metadata={"k": "2"})

        async def ids(**query: Any) -> tuple[list[str], str | None]:
            answer = await service.http.get(
                "/v2/sandboxes", params=query, headers=service.key()
            )
            found = [each["sandboxID"] for each in answer.json()]
            return found, answer.headers.get("x-next-token")

        async def started(sandbox: Sandbox) -> str:
            url = f"/sandboxes/{sandbox.id}"
            shown = await service.http.get(url, headers=service.key())
            return str(shown.json()["startedAt"])

        assert await ids() == ([second.id, first.id], None)
        assert await ids(order="asc") == ([first.id, second.id], None)
        assert await ids(metadata="k=1") == ([first.id], None)
        assert await ids(state="paused") == ([], None)
        assert await ids(startedAfter=await started(second)) == ([second.id], None)
        assert await ids(limit=1) == ([second.id], "1")
        assert await ids(limit=1, nextToken="1") == ([first.id], None)


@pytest.mark.promise("S11")
@pytest.mark.parametrize(
    ("message", "status", "named"),
    [
        ({"templateID": "unknown"}, 404, "template"),
        ({"timeout": 10**6}, 400, "timeout"),
        ({"timeout": "soon"}, 400, "timeout"),
        ({"mcp": {"x": {}}}, 501, "mcp"),
        ({"volumeMounts": [{}]}, 501, "volumeMounts"),
        ({"iam": {"enabled": True}}, 501, "iam"),
        ({"secrets": {"A": "b"}}, 501, "secrets"),
        ({"network": {"allowOut": ["example.org"]}}, 400, "example.org"),
        ({"network": {"denyOut": ["10.0.0.0/8"]}}, 501, "denyOut"),
        ({"network": {"rules": {"example.org": [{}]}}}, 501, "rules"),
        ({"network": {"maskRequestHost": "example.org"}}, 501, "maskRequestHost"),
        ({"network": {"allowPublicTraffic": True, "allowOut": ["a"]}}, 400, "a:443"),
        (
            {"network": {"egressProxy": {"address": "example.org:1080"}}},
            501,
            "egressProxy",
        ),
        ({"autoResume": {"later": True}}, 501, "later"),
        ({"anything": "else"}, 501, "anything"),
    ],
)
async def test_what_cannot_be_made_is_refused(
    tmp_path: Path, message: dict[str, Any], status: int, named: str
) -> None:
    async with served(tmp_path) as service:
        answer = await service.http.post(
            "/v2/sandboxes", json=message, headers=service.key()
        )

    assert answer.status_code == status, answer.text
    assert named in answer.json()["message"]


async def test_a_token_leaves_places_to_others(tmp_path: Path) -> None:
    async with served(tmp_path, "max_sandboxes = 3") as service:
        await service.create()
        await service.create()
        refused = await service.http.post("/sandboxes", json={}, headers=service.key())
        other = await service.create("b")

    assert refused.status_code == 429
    assert refused.json()["reason"] == "too_many_sandboxes"
    assert other.id


async def test_unknown_routes_are_answered_in_words(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        answers = [
            await service.http.get("/templates", headers=service.key()),
            await service.http.post(
                f"/sandboxes/{sandbox.id}/logs", headers=service.key()
            ),
            await sandbox.unary("filesystem.Filesystem/Chmod", path="."),
        ]

    for answer in answers:
        assert answer.status_code == 501
        assert "not supported" in answer.json()["message"]


@pytest.mark.promise("S9")
async def test_nothing_is_left_of_ended_sandboxes(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        async with endless(sandbox) as ended:
            await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())

        assert [each.status_code for each in ended] == [502]
        assert (
            await service.http.get("/sandboxes", headers=service.key())
        ).json() == []


async def test_metrics_measure_a_sandbox_now(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        one = f"/sandboxes/{sandbox.id}"

        async def metrics(**query: Any) -> Any:
            answer = await service.http.get(
                f"{one}/metrics", params=query, headers=service.key()
            )
            return answer.json()

        await sandbox.write("a", bytes(3_000_000))
        script = "end=$((SECONDS+1)); while ((SECONDS<end)); do :; done"
        config = {"cmd": "bash", "args": ["-c", script]}
        await sandbox.events("process.Process/Start", process=config)
        [busy] = await metrics()
        with anyio.fail_after(60):
            while (await metrics())[0]["cpuUsedPct"] >= 50:
                await anyio.sleep(0.1)
        shown = (await service.http.get(one, headers=service.key())).json()
        assert await metrics(end=1) == []
        assert len(await metrics(start=1)) == 1
        assert (await metrics(start="x"))["code"] == 400
        other = await service.http.get(f"{one}/metrics", headers=service.key("b"))
        await service.http.post(f"{one}/pause", headers=service.key())
        assert await metrics() == []

    assert other.status_code == 404
    assert 0 < busy["cpuUsedPct"] <= 100
    assert busy["diskUsed"] >= 3_000_000
    assert 0 < busy["memUsed"] < busy["memTotal"] == shown["memoryMB"] << 20
    assert busy["diskTotal"] == shown["diskSizeMB"] << 20
    assert busy["cpuCount"] == shown["cpuCount"]


async def test_cells_without_a_home_of_their_own_are_no_sandboxes(
    tmp_path: Path,
) -> None:
    with pytest.raises(SandboxUnavailableError, match="'namespaces' was asked for"):
        async with served(tmp_path, strongest_isolation="confined"):
            pass
