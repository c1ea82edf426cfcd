"""Clients that attack: others' sandboxes, paths, headers, bodies, slow readers."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.host.http.tokens import open_tokens

from .served_sandboxes import envelope, resident_kb, served

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("key", ["", "e2b_00", "e2b_" + "0" * 80, "tcl_a_b", "\x7f"])
async def test_wrong_tokens_are_refused(tmp_path: Path, key: str) -> None:
    async with served(tmp_path) as service:
        answer = await service.http.get("/sandboxes", headers={"x-api-key": key})
        none = await service.http.get("/sandboxes")

    assert answer.status_code == none.status_code == 401


@pytest.mark.promise("R6")
async def test_anothers_sandbox_is_not_there(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        one = f"/sandboxes/{sandbox.id}"
        key = service.key("b")
        answers = [
            await service.http.get(one, headers=key),
            await service.http.delete(one, headers=key),
            await service.http.post(f"{one}/connect", json={}, headers=key),
            await service.http.post(f"{one}/timeout", json={"timeout": 0}, headers=key),
        ]
        listed = await service.http.get("/v2/sandboxes", headers=key)
        alive = await service.http.get("/health", headers=sandbox.headers)

    assert {answer.status_code for answer in answers} == {404}
    assert listed.json() == []
    assert alive.status_code == 204


@pytest.mark.promise("R6")
async def test_no_header_opens_a_sandbox_without_its_token(tmp_path: Path) -> None:
    async with served(tmp_path, 'domain = "box.test"') as service:
        mine, other = await service.create(), await service.create("b")
        host = {"host": f"49983-{other.id}.box.test:80"}
        by_host = await service.http.get(
            "/health", headers={**host, "x-access-token": mine.access}
        )
        with_key = await service.http.get("/health", headers={**host, **service.key()})
        unknown = await service.http.get(
            "/health",
            headers={"e2b-sandbox-id": "i0", "x-access-token": mine.access},
        )
        both = await service.http.get("/health", headers={**host, **mine.headers})
        by_path = await service.http.get(
            f"/sandboxes/{other.id}/ports/49983/health",
            headers={"x-access-token": mine.access},
        )
        two = await service.http.get(
            "/health",
            headers={
                **other.headers,
                "x-access-token": other.access,
                "e2b-traffic-access-token": mine.access,
            },
        )
        right = await service.http.get(
            "/health", headers={**host, "x-access-token": other.access}
        )

    refused = [by_host, with_key, unknown, by_path, two]
    assert [each.status_code for each in refused] == [401] * 5
    assert len({each.text for each in refused}) == 1
    assert both.status_code == 400
    assert right.status_code == 204


async def test_an_access_token_names_its_sandbox_and_no_other(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        mine, other = await service.create(), await service.create("b")
        proof = mine.access.partition(".")[2]
        tokens = [mine.access, f"{other.id}.{proof}", proof, f"{mine.id}.", "", "."]
        statuses = []
        for token in tokens:
            answer = await service.http.get(
                "/health", headers={"x-access-token": token}
            )
            statuses.append(answer.status_code)
        await service.http.delete(f"/sandboxes/{mine.id}", headers=service.key())
        gone = await service.http.get(
            "/health", headers={"x-access-token": mine.access}
        )

    assert statuses == [204, *[401] * 5]
    assert gone.status_code == 502


async def test_old_clients_name_the_sandbox_to_the_control_plane(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        url = f"/sandboxes/{sandbox.id}/connect"
        name = {"e2b-sandbox-id": sandbox.id, "e2b-sandbox-port": "49983"}
        statuses = []
        for agent in ("a", "b"):
            answer = await service.http.post(
                url, json={}, headers={**name, **service.key(agent)}
            )
            statuses.append(answer.status_code)
        health = await service.http.get("/health", headers={**name, **service.key()})

    assert statuses == [200, 404]
    assert health.status_code == 501


async def test_a_revoked_token_reaches_none_of_its_sandboxes(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        with open_tokens(service.host.config) as tokens:
            tokens.revoke(service.keys["a"][4:20])
        answer = await service.http.get("/health", headers=sandbox.headers)
        control = await service.http.get("/sandboxes", headers=service.key())

    assert answer.status_code == control.status_code == 401


@pytest.mark.promise("R67")
async def test_open_streams_end_with_their_token(tmp_path: Path) -> None:
    ended: list[str] = []
    async with served(tmp_path) as service:
        sandbox = await service.create()
        reading = anyio.Event()

        async def read() -> None:
            process = {"cmd": "/bin/cat", "args": []}
            content = envelope({"process": process, "tag": "shell", "stdin": True})
            with pytest.raises(httpx2.TransportError):
                async with service.http.stream(
                    "POST",
                    "/process.Process/Start",
                    content=content,
                    headers=sandbox.headers,
                ) as answer:
                    async for _ in answer.aiter_bytes():
                        reading.set()
            ended.append("Start")

        async def typed() -> AsyncIterator[bytes]:
            yield envelope({"start": {"process": {"tag": "shell"}}})
            while True:
                await anyio.sleep(0.05)
                yield envelope({"keepalive": {}})

        async def write() -> None:
            with pytest.raises(httpx2.TransportError):
                await service.http.post(
                    "/process.Process/StreamInput",
                    content=typed(),
                    headers=sandbox.headers,
                )
            ended.append("StreamInput")

        with anyio.fail_after(60), open_tokens(service.host.config) as tokens:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await reading.wait()
                tasks.start_soon(write)
                tokens.revoke(service.keys["a"][4:20])

    assert sorted(ended) == ["Start", "StreamInput"]


@pytest.mark.parametrize("path", ["a\0b", "../../../etc/passwd", "/..", "x" * 5000])
async def test_paths_that_lead_out_are_refused(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        answers = [
            await sandbox.read(path),
            await sandbox.write(path, b""),
            await sandbox.unary("filesystem.Filesystem/Stat", path=path),
            await sandbox.unary("filesystem.Filesystem/Remove", path=path),
            await sandbox.unary(
                "filesystem.Filesystem/Move", source="a", destination=path
            ),
        ]

    assert {answer.status_code for answer in answers} == {400}


async def test_paths_are_never_options_or_scripts(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        for name in ("-rf", "$(touch pwned)", "a'b\"c\n", "--help", "-delete"):
            assert (await sandbox.write(name, name.encode())).status_code == 200
            assert (await sandbox.read(name)).content == name.encode()
            stat = await sandbox.unary("filesystem.Filesystem/Stat", path=name)
            assert stat.json()["entry"]["name"] == name
        pwned = await sandbox.read("pwned")

    assert pwned.status_code == 404


async def test_bodies_over_their_limit_are_refused(tmp_path: Path) -> None:
    limits = "max_body_bytes = 1024\nmax_file_bytes = 65536"
    async with served(tmp_path, limits) as service:
        sandbox = await service.create()
        large = {"metadata": {"k": "v" * 2000}}
        packed = gzip.compress(bytes(10_000_000))

        async def endless() -> Any:
            for _ in range(1000):
                yield bytes(1024)

        answers = [
            await service.http.post("/sandboxes", json=large, headers=service.key()),
            await sandbox.write("x", bytes(65537)),
            await service.http.post(
                "/files?path=x", content=endless(), headers=sandbox.headers
            ),
            await service.http.post(
                "/files?path=x",
                content=packed,
                headers={**sandbox.headers, "content-encoding": "gzip"},
            ),
            await sandbox.unary("filesystem.Filesystem/Stat", path="x" * 2000),
        ]
        claimed = envelope({"start": {}})[:1] + b"\xff\xff\xff\xff" + b"x"
        stream = await service.http.post(
            "/process.Process/StreamInput", content=claimed, headers=sandbox.headers
        )

    assert [answer.status_code for answer in answers] == [413] * 5
    assert b"resource_exhausted" in stream.content


async def test_a_client_that_never_reads_holds_up_its_command_alone(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        config = {"cmd": "bash", "args": ["-c", "cat /dev/zero & wait"]}
        async with service.http.stream(
            "POST",
            "/process.Process/Start",
            content=envelope({"process": config}),
            headers=sandbox.headers,
        ):
            before = resident_kb()
            # Beside it everything goes on, and its output stays where it is made.
            for _ in range(5):
                output, _ = await sandbox.command("echo fine")
                assert output == b"fine\n"
                await anyio.sleep(0.1)
            grown = resident_kb() - before

    assert grown < 64 * 1024


async def test_broken_messages_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        bodies = [b"", b"{", b"[]", b"\xff", b'{"path": 1}', b'{"path": "\\ud800"}']
        for content in bodies:
            answer = await service.http.post(
                "/filesystem.Filesystem/Stat", content=content, headers=sandbox.headers
            )
            assert answer.status_code in (200, 400), content
            answer = await service.http.post(
                "/process.Process/Start",
                content=content and envelope({})[:5] + content,
                headers=sandbox.headers,
            )
            assert b'"error"' in answer.content
        head = b'Content-Disposition: form-data; filename="a"\r\n\r\n'
        forms = [b"", b"--x", b"--x\r\n\r\n", b"--x\r\n" + head + b"x"]
        for content in forms:
            answer = await service.http.post(
                "/files",
                content=content,
                headers={
                    **sandbox.headers,
                    "content-type": "multipart/form-data; boundary=x",
                },
            )
            assert answer.status_code == 400, content
