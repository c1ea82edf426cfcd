"""Sandboxes that pause at the end of their time, and wake up when a request comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from .served_sandboxes import Sandbox, Service, policies_without, served

pytestmark = pytest.mark.anyio

WAKES: Any = {"autoPause": True, "autoResume": {"enabled": True}}


async def shown(service: Service, sandbox: Sandbox) -> Any:
    answer = await service.http.get(f"/sandboxes/{sandbox.id}", headers=service.key())
    return answer.json() if answer.status_code == 200 else None


async def end_now(service: Service, sandbox: Sandbox, state: str | None) -> None:
    """Move the end of a sandbox to now; wait until it is in a state, or gone."""
    await service.http.post(
        f"/sandboxes/{sandbox.id}/timeout", json={"timeout": 0}, headers=service.key()
    )
    with anyio.fail_after(60):
        while True:
            found = await shown(service, sandbox)
            if (found and found["state"]) == state:
                return
            await anyio.sleep(0.02)


async def test_a_sandbox_pauses_at_the_end_of_its_time(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=600, autoPause=True)
        await sandbox.code(code="x = 41")
        await end_now(service, sandbox, "paused")
        health = await service.http.get("/health", headers=sandbox.headers)
        read = await sandbox.read("/etc/hostname")
        await service.http.post(
            f"/v2/sandboxes/{sandbox.id}/connect",
            json={"timeout": 600},
            headers=service.key(),
        )
        value = await sandbox.code(code="x + 1")
        found = await shown(service, sandbox)

    # Nobody asked for it to wake up by itself.
    assert (health.status_code, read.status_code) == (502, 502)
    assert {"type": "result", "text": "42", "is_main_result": True} in value
    assert found["lifecycle"] == {"autoResume": False, "onTimeout": "pause"}


async def test_without_a_pause_the_end_of_its_time_is_its_end(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=600)
        await end_now(service, sandbox, None)


async def test_a_request_wakes_a_sandbox_up(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=600, **WAKES)
        await sandbox.write("a.txt", b"hello")
        await end_now(service, sandbox, "paused")
        health = await service.http.get("/health", headers=sandbox.headers)
        asleep = await shown(service, sandbox)
        answers: list[bytes] = []

        async def read() -> None:
            answers.append((await sandbox.read("a.txt")).content)

        async with anyio.create_task_group() as several_at_once:
            for _ in range(4):
                several_at_once.start_soon(read)
        awake = await shown(service, sandbox)

    # A look at its health is no use of it.
    assert (health.status_code, asleep["state"]) == (502, "paused")
    assert answers == [b"hello"] * 4
    assert (awake["state"], asleep["endAt"] > awake["endAt"]) == ("running", True)


async def test_waking_up_is_a_call_that_can_be_refused(tmp_path: Path) -> None:
    policies = policies_without("sandbox.pause", "resume")
    async with served(tmp_path, policies=policies) as service:
        sandbox = await service.create(timeout=600, **WAKES)
        await end_now(service, sandbox, "paused")
        read = await sandbox.read("/etc/hostname")
        state = (await shown(service, sandbox))["state"]

    assert (read.status_code, state) == (403, "paused")


async def test_a_killed_sandbox_does_not_come_back_by_a_pause(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=600, **WAKES)
        one = f"/sandboxes/{sandbox.id}"
        async with anyio.create_task_group() as at_once:
            at_once.start_soon(
                lambda: service.http.post(f"{one}/pause", headers=service.key())
            )
            at_once.start_soon(lambda: service.http.delete(one, headers=service.key()))
        read = await sandbox.read("/etc/hostname")
        listed = await service.http.get("/v2/sandboxes", headers=service.key())

    assert (read.status_code, listed.json()) == (502, [])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v2/sandboxes", {"autoPause": True, "autoPauseMemory": False}),
        ("/sandboxes/{id}/pause", {"memory": False}),
        ("/sandboxes/{id}/snapshots", {"memory": True}),
    ],
)
async def test_what_would_keep_something_else_is_refused(
    tmp_path: Path, path: str, message: dict[str, Any]
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(timeout=600)
        answer = await service.http.post(
            path.format(id=sandbox.id), json=message, headers=service.key()
        )

    assert answer.status_code == 501
    assert "memory" in answer.json()["message"]
