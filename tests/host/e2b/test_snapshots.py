"""Snapshots and forks of sandboxes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError
from toolcell.host import HostConfig
from toolcell.host.e2b.state.snapshots import open_snapshots

from .served_sandboxes import Sandbox, Service, policies_without, served

pytestmark = pytest.mark.anyio


async def take(service: Service, sandbox: Sandbox, **message: Any) -> Any:
    answer = await service.http.post(
        f"/sandboxes/{sandbox.id}/snapshots", json=message, headers=service.key()
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


async def listed(service: Service, agent: str = "a", **query: str) -> list[str]:
    answer = await service.http.get(
        "/snapshots", params=query, headers=service.key(agent)
    )
    return [each["snapshotID"] for each in answer.json()]


async def test_sandboxes_begin_with_the_files_of_a_snapshot(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(envVars={"OWN": "1"})
        await sandbox.write("app/a.txt", b"before")
        made = await take(service, sandbox, name="first")
        await sandbox.write("app/a.txt", b"after")
        one = await service.create(templateID=made["snapshotID"])
        other = await service.create(templateID="first")
        await one.write("app/a.txt", b"changed")
        files = [(await each.read("app/a.txt")).content for each in (one, other)]
        variable, _ = await one.command("echo $OWN")

    assert made["names"] == ["first"]
    assert files == [b"changed", b"before"]
    assert variable == b"1\n"


async def test_snapshots_outlive_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("a.txt", b"kept")
        snapshot = (await take(service, sandbox))["snapshotID"]
        keys = service.keys
    # What a server left that died while it took one.
    torn = tmp_path / "state" / "snapshots" / "storn.tar"
    torn.write_bytes(b"half")
    async with served(tmp_path) as service:
        service.keys.update(keys)
        found = await service.create(templateID=snapshot)
        data = (await found.read("a.txt")).content
        names = await listed(service)

    assert (data, names) == (b"kept", [snapshot])
    assert not torn.exists()


async def test_snapshots_are_listed_and_deleted(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox, other = await service.create(), await service.create()
        one = (await take(service, sandbox, name="x"))["snapshotID"]
        two = (await take(service, other))["snapshotID"]
        every = await listed(service)
        of_one = await listed(service, sandboxID=sandbox.id)
        by_name = await listed(service, name="x")
        none = await listed(service, name="y")
        page = await service.http.get(
            "/snapshots", params={"limit": "1"}, headers=service.key()
        )
        path = f"/templates/{one}"
        deleted = await service.http.delete(path, headers=service.key())
        again = await service.http.delete(path, headers=service.key())
        files = sorted((tmp_path / "state" / "snapshots").iterdir())

    assert (every, of_one, by_name, none) == ([two, one], [one], [one], [])
    assert page.headers["x-next-token"] == "1"
    assert (deleted.status_code, again.status_code) == (204, 404)
    assert [path.name for path in files] == [f"{two}.json", f"{two}.tar"]


async def test_a_snapshot_is_its_tokens_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        snapshot = (await take(service, sandbox, name="x"))["snapshotID"]
        answers = [
            await service.http.post(
                "/v2/sandboxes", json={"templateID": name}, headers=service.key("b")
            )
            for name in (snapshot, "x")
        ]
        deleted = await service.http.delete(
            f"/templates/{snapshot}", headers=service.key("b")
        )
        taken = await service.http.post(
            f"/sandboxes/{sandbox.id}/snapshots", headers=service.key("b")
        )
        names = await listed(service, "b")

    assert [answer.status_code for answer in answers] == [404, 404]
    assert (deleted.status_code, taken.status_code, names) == (404, 404, [])


async def test_forks_begin_with_the_files_and_go_their_own_way(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, "max_sandboxes = 6") as service:
        sandbox = await service.create(metadata={"k": "v"}, envVars={"OWN": "1"})
        await sandbox.write("a.txt", b"before")
        answer = await service.http.post(
            f"/sandboxes/{sandbox.id}/fork", json={"count": 3}, headers=service.key()
        )
        *made, refused = answer.json()
        forks = [
            Sandbox(service.http, each["sandboxID"], each["envdAccessToken"])
            for each in (one["sandbox"] for one in made)
        ]
        await forks[0].write("a.txt", b"in a fork")
        files = [(await each.read("a.txt")).content for each in (sandbox, *forks)]
        variable, _ = await forks[1].command("echo $OWN")
        left = await listed(service)

    assert files == [b"before", b"in a fork", b"before"]
    assert made[0]["sandbox"]["metadata"] == {"k": "v"}
    assert (variable, left) == (b"1\n", [])
    # One token has at most as many sandboxes as it leaves to others.
    assert refused["error"]["code"] == 429


async def test_the_guard_judges_snapshots(tmp_path: Path) -> None:
    policies = policies_without("sandbox.snapshot", "fork")
    async with served(tmp_path, policies=policies) as service:
        sandbox = await service.create()
        await take(service, sandbox)
        fork = await service.http.post(
            f"/sandboxes/{sandbox.id}/fork", headers=service.key()
        )

    assert fork.status_code == 403


async def test_snapshots_have_limits(tmp_path: Path) -> None:
    limits = "max_snapshots = 1\nmax_snapshot_bytes = 1024"
    async with served(tmp_path, limits) as service:
        sandbox = await service.create()
        path = f"/sandboxes/{sandbox.id}/snapshots"
        await sandbox.write("a.txt", b"a" * 2000)
        large = await service.http.post(path, headers=service.key())
        await sandbox.write("a.txt", b"a")
        await take(service, sandbox)
        many = await service.http.post(path, headers=service.key())
        files = list((tmp_path / "state" / "snapshots").iterdir())

    assert (large.status_code, many.status_code) == (413, 429)
    assert len(files) == 2


async def test_names_cannot_lead_anywhere(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        path = f"/sandboxes/{sandbox.id}/snapshots"
        answers = [
            await service.http.post(path, json={"name": name}, headers=service.key())
            for name in ("../x", "a/b", "", "x" * 129, "a\0b")
        ]

    assert [answer.status_code for answer in answers] == [400] * 5


async def test_old_snapshots_are_deleted_and_foreign_ones_refused(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        snapshot = (await take(service, sandbox))["snapshotID"]
    config = HostConfig.from_file(tmp_path / "toolcell.toml")
    path = tmp_path / "state" / "snapshots" / f"{snapshot}.json"
    text = path.read_text()

    path.write_text(text.replace('"version":1', '"version":2'))
    with pytest.raises(ConfigError, match="is no snapshot of this version"):
        open_snapshots(config)

    path.write_text(re.sub(r'"made_at":[0-9.]+', '"made_at":1.0', text))
    open_snapshots(config)
    assert not list(path.parent.iterdir())
