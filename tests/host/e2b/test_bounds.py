"""What a stranger sends is counted before it is read, and costs its agent alone."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import httpx2
import pytest

from toolcell.host.e2b.operations.commands import (
    MAX_WORD_BYTES,
    MAX_WORDS_BYTES,
    spelled,
)
from toolcell.host.e2b.operations.creation import check_template
from toolcell.host.e2b.protocol.errors import APIError

from .served_sandboxes import POLICIES, Sandbox, Service, envelope, served

pytestmark = pytest.mark.anyio

MANY = {str(number): "" for number in range(20_000)}


@pytest.mark.promise("R53")
async def test_messages_of_many_values_are_refused_unparsed(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        process = {"cmd": "true", "args": [*MANY]}
        create = await service.http.post(
            "/sandboxes", json={"metadata": MANY}, headers=service.key()
        )
        start = await sandbox.events("process.Process/Start", process=process)
        stat = await sandbox.unary("filesystem.Filesystem/Stat", path="/", more=MANY)
        deep = b"[" * 5_000 + b"]" * 5_000
        texts = {"values": envelope({"data": MANY}), "deep": framed(deep)}
        told = {
            name: await service.http.post(
                "/process.Process/StreamInput", content=text, headers=sandbox.headers
            )
            for name, text in texts.items()
        }

    assert create.status_code == 413
    assert start[-1]["error"]["code"] == "resource_exhausted"
    assert stat.status_code == 413
    assert b"resource_exhausted" in told["values"].content
    assert b"invalid_argument" in told["deep"].content


async def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    twice = b'{"path": "/", "path": "/etc"}'
    async with served(tmp_path) as service:
        sandbox = await service.create()
        json = {"content-type": "application/json"}
        stat = await service.http.post(
            "/filesystem.Filesystem/Stat",
            content=twice,
            headers={**sandbox.headers, **json},
        )
        create = await service.http.post(
            "/sandboxes",
            content=b'{"metadata": {"a": "1", "a": "2"}}',
            headers={**service.key(), **json},
        )

    assert (stat.status_code, create.status_code) == (400, 400)
    assert "a key is given twice" in stat.text
    assert "a key is given twice" in create.text


def framed(text: bytes) -> bytes:
    return b"\0" + len(text).to_bytes(4, "big") + text


def form(*parts: bytes, boundary: str = "b") -> bytes:
    mark = f"--{boundary}".encode()
    return b"".join(mark + b"\r\n" + part for part in parts) + mark + b"--\r\n"


@pytest.mark.promise("R29", "R5")
@pytest.mark.parametrize(
    ("boundary", "content", "status"),
    [
        pytest.param("b", form(*[b"\r\n\r\n"] * 50_000), 413, id="parts"),
        pytest.param("b", form(b"a: b\r\n" * 5_000 + b"\r\n\r\n"), 400, id="headers"),
        pytest.param("b", form(b"a: " + b"b" * 50_000 + b"\r\n\r\n"), 400, id="header"),
        pytest.param("b" * 300, form(b"\r\n\r\n", boundary="b" * 300), 400, id="long"),
    ],
)
@pytest.mark.promise("R28")
async def test_forms_are_counted(
    tmp_path: Path, boundary: str, content: bytes, status: int
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
        began = time.process_time()
        answer = await service.http.post(
            "/files", content=content, headers={**sandbox.headers, **kind}
        )
        took = time.process_time() - began

    assert answer.status_code == status
    assert took < 0.5


@pytest.mark.promise("R54")
async def test_streams_of_an_agent_leave_places_for_others(tmp_path: Path) -> None:
    server = "[server]\nmax_connections = 8\n"
    async with served(tmp_path, policies=POLICIES + server) as service:
        sandbox = await service.create()
        async with httpx2.AsyncClient(base_url=service.url, timeout=60) as http:
            own = Sandbox(http, sandbox.id, sandbox.access)
            async with AsyncExitStack() as streams:
                for _ in range(4):
                    await streams.enter_async_context(own.started("sleep", "600"))
                statuses = [await listed(service, each) for each in ("a", "b")]
                refused = await service.http.get("/sandboxes", headers=service.key())

    assert statuses == [429, 200]
    busy = {"code": 429, "reason": "busy", "retry_after": 1.0}
    assert refused.json().items() >= busy.items()
    assert refused.headers["retry-after"] == "1"


async def listed(service: Service, agent: str) -> int:
    answer = await service.http.get("/sandboxes", headers=service.key(agent))
    return int(answer.status_code)


HOSTILE = """
import socket
HEAD = b"HTTP/1.1 200 OK\\r\\nContent-Length: "
with socket.create_server(("127.0.0.1", 8000)) as server:
    while True:
        client, _ = server.accept()
        kind = client.recv(65536).split()[1]
        try:
            if kind == b"/continue":
                while True:
                    client.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n" * 100)
            if kind == b"/cut":
                client.sendall(HEAD + b"9\\r\\n\\r\\nabc")
                raise OSError
            more = b"Connection: close, x-own\\r\\nX-Own: 1\\r\\nSet-Cookie: a=b"
            client.sendall(HEAD + b"0\\r\\n" + more + b"\\r\\n\\r\\n")
        except OSError:
            pass
        client.close()
"""


@pytest.mark.promise("R34", "R35")
async def test_hostile_servers_cost_a_bounded_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("server.py", HOSTILE.encode())
        await sandbox.start("python3", "server.py")
        url = f"/sandboxes/{sandbox.id}/ports/8000"
        token = {"e2b-traffic-access-token": sandbox.access}

        async def get(path: str) -> httpx2.Response:
            with anyio.fail_after(60):
                while True:
                    answer = await service.http.get(url + path, headers=token)
                    if "not open" not in answer.text:
                        return answer

        plain, endless = await get("/plain"), await get("/continue")
        with pytest.raises(httpx2.TransportError):
            await get("/cut")

    assert plain.status_code == 200
    assert {"set-cookie", "x-own"}.isdisjoint(plain.headers)
    assert endless.status_code == 502
    assert "Traceback" not in caplog.text


@pytest.mark.promise("R30", "R31")
async def test_odd_files_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        make = (
            "mkfifo pipe; for t in -99999999999 999999999999; do touch -d @$t f$t; done"
        )
        await sandbox.command(make)
        answers = {
            path: await sandbox.read(path) for path in ("pipe", "/dev/zero", "/dev/tty")
        }
        written = await sandbox.write("pipe", b"1")
        listed = await sandbox.unary("filesystem.Filesystem/ListDir", path=".")
        left, _ = await sandbox.command("pgrep -c cat")

    assert {answer.status_code for answer in answers.values()} == {400}
    assert written.status_code == 400
    times = {entry["name"]: entry["modifiedTime"] for entry in listed.json()["entries"]}
    assert len(times) == 3
    assert left.strip() == b"0"


@pytest.mark.promise("R7")
async def test_a_signature_is_good_for_files_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        await service.create()
        query = {"path": "a", "signature": "v1_x"}
        answer = await service.http.post("/process.Process/List", params=query)

    assert answer.status_code == 401
    assert answer.json()["message"] == "the API key is not valid"


@pytest.mark.promise("R53")
@pytest.mark.parametrize(
    "argv",
    [
        ["/bin/bash", "-l", "-c", "'" * (MAX_WORD_BYTES + 1)],
        ["ls", "日" * (MAX_WORD_BYTES // 3 + 1)],
        ["ls", *["'" * (MAX_WORDS_BYTES // 8)] * 8],
    ],
)
def test_a_command_is_bounded_before_it_is_quoted(argv: list[str]) -> None:
    with pytest.raises(APIError, match="to a file first"):
        spelled(argv)
    assert spelled([*argv[:-1], "'" * 10])


@pytest.mark.promise("R53")
def test_a_refusal_has_no_more_of_a_name_than_its_begin() -> None:
    with pytest.raises(APIError) as refused:
        check_template(("base",), "\u200b" * 1_000_000)

    assert len(refused.value.message) < 1_000
