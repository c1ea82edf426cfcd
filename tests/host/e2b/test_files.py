"""Files and entries: uploads, downloads, signed URLs, folders."""

from __future__ import annotations

import base64
import gzip
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from ...support.paths import ROOT
from .served_sandboxes import Sandbox, served

pytestmark = pytest.mark.anyio


@pytest.mark.promise("S13")
async def test_files_go_in_and_come_out(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        data = bytes(range(256)) * 4096
        written = await sandbox.write("a/b.bin", data)
        read = await sandbox.read("/home/user/a/b.bin")
        form = await service.http.post(
            "/files",
            files=[("file", ("x", b"1")), ("file", ("/tmp/y", b"22"))],
            headers=sandbox.headers,
        )
        no_name = [("note", (None, b"0")), ("file", (None, b"333"))]
        unnamed = await service.http.post(
            "/files", params={"path": "v"}, files=no_name, headers=sandbox.headers
        )
        nowhere = await service.http.post(
            "/files", files=no_name, headers=sandbox.headers
        )
        packed = await service.http.post(
            "/files",
            params={"path": "z"},
            content=gzip.compress(b"zz"),
            headers={**sandbox.headers, "content-encoding": "gzip"},
        )
        texts = [
            (await sandbox.read(name)).content for name in ("x", "/tmp/y", "v", "z")
        ]

    assert written.json() == [
        {"name": "b.bin", "type": "file", "path": "/home/user/a/b.bin"}
    ]
    assert read.content == data
    assert [each["path"] for each in form.json()] == ["/home/user/x", "/tmp/y"]
    assert packed.status_code == 200
    assert texts == [b"1", b"22", b"333", b"zz"]
    assert [each["path"] for each in unnamed.json()] == ["/home/user/v"]
    assert nowhere.status_code == 400


@pytest.mark.promise("S7", "S8")
async def test_entries_are_shown_and_moved(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("d/one", b"1")
        await sandbox.command("ln -s one d/link; mkfifo d/pipe")
        service_name = "filesystem.Filesystem"
        listed = (await sandbox.unary(f"{service_name}/ListDir", path="d")).json()
        stat = (await sandbox.unary(f"{service_name}/Stat", path="d/link")).json()
        moved = await sandbox.unary(
            f"{service_name}/Move", source="d/one", destination="e/two"
        )
        made = await sandbox.unary(f"{service_name}/MakeDir", path="e/f/g")
        again = await sandbox.unary(f"{service_name}/MakeDir", path="e/f/g")
        removed = await sandbox.unary(f"{service_name}/Remove", path="e")
        missing = await sandbox.unary(f"{service_name}/Stat", path="e")

    assert [entry["name"] for entry in listed["entries"]] == ["link", "one", "pipe"]
    users = {(entry["owner"], entry["group"]) for entry in listed["entries"]}
    assert users == {("user", "user")}
    assert stat["entry"]["symlinkTarget"] == "/home/user/d/one"
    assert moved.json()["entry"]["path"] == "/home/user/e/two"
    assert moved.json()["entry"]["size"] == "1"
    assert made.json()["entry"]["type"] == "FILE_TYPE_DIRECTORY"
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")
    assert removed.status_code == 200
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "status"), [("missing", 404), (".", 400), ("", 400), ("/root/x", 404)]
)
async def test_files_that_cannot_be_read(
    tmp_path: Path, path: str, status: int
) -> None:
    async with served(tmp_path) as service:
        answer = await (await service.create()).read(path)

    assert answer.status_code == status, answer.text
    assert answer.json()["message"]


@pytest.mark.promise("S16")
async def test_the_root_takes_no_file_as_its_page_says(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        answer = await (await service.create()).write("/new", b"1")

    page = (ROOT / "docs/sandbox_api.md").read_text()
    assert answer.status_code == 403, answer.text
    assert "- `/` is read-only: files are made in the home and in `/tmp`." in page
    assert "- The only user is `sandbox_api.user`." in page


def signature(sandbox: Sandbox, path: str, operation: str, end: int | None) -> str:
    """Return a signature as the SDKs make it."""
    parts = [path, operation, "", sandbox.access]
    parts += [] if end is None else [str(end)]
    digest = hashlib.sha256(":".join(parts).encode()).digest()
    return "v1_" + base64.b64encode(digest).decode().rstrip("=")


async def test_signed_urls_are_for_one_file_act_and_time(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("a", b"1")
        await sandbox.write("b", b"2")

        async def get(**query: str | int) -> int:
            answer = await service.http.get("/files", params=query)
            return answer.status_code

        later, past = int(time.time()) + 60, int(time.time()) - 1
        good = signature(sandbox, "a", "read", None)
        timed = signature(sandbox, "a", "read", later)
        old = signature(sandbox, "a", "read", past)
        write = signature(sandbox, "a", "write", None)

        assert await get(path="a", signature=good) == 200
        assert await get(path="a", signature=timed, signature_expiration=later) == 200
        assert await get(path="b", signature=good) == 401
        assert await get(path="a", signature=write) == 401
        assert await get(path="a", signature=timed) == 401
        moved = later + 60
        assert await get(path="a", signature=timed, signature_expiration=moved) == 401
        assert await get(path="a", signature=old, signature_expiration=past) == 401
        query: dict[str, str | int] = {"signature_expiration": past}
        told = await service.http.get(
            "/files", params={"path": "a", "signature": old, **query}
        )
        expired = {"code": 401, "message": "signature is already expired"}
        assert told.json() == expired
        assert await get(path="a", signature="v1_") == 401
        assert await get(path="a") == 401
        upload = await service.http.post(
            "/files", params={"path": "a", "signature": write}, content=b"3"
        )
        assert upload.status_code == 200
        assert (await sandbox.read("a")).content == b"3"


async def test_files_have_metadata(tmp_path: Path) -> None:
    async def write(sandbox: Sandbox, path: str, **metadata: str) -> Any:
        headers = {f"x-metadata-{name}": value for name, value in metadata.items()}
        answer = await sandbox.http.post(
            "/files",
            params={"path": path},
            content=b"x",
            headers={
                **sandbox.headers,
                **headers,
                "content-type": "application/octet-stream",
            },
        )
        return answer.json()

    async with served(tmp_path) as service:
        sandbox = await service.create()
        service_name = "filesystem.Filesystem"
        await write(sandbox, "d/b.txt")
        await sandbox.command(
            'python3 -c \'import os; os.setxattr("d/b.txt", "user.e2b.own", b"1")\''
        )
        own = await sandbox.unary(f"{service_name}/Stat", path="d/b.txt")
        [written] = await write(sandbox, "d/a.txt", author="mish", kind="x y")
        stat = await sandbox.unary(f"{service_name}/Stat", path="d/a.txt")
        found = await sandbox.unary(f"{service_name}/ListDir", path="d", depth=1)
        moved = await sandbox.unary(
            f"{service_name}/Move", source="d/a.txt", destination="c.txt"
        )
        await write(sandbox, "c.txt", kind="z")
        again = await sandbox.unary(f"{service_name}/Stat", path="c.txt")
        refused = await write(sandbox, "e.txt", bad="\x01")
        missing = await sandbox.unary(f"{service_name}/Stat", path="e.txt")

    known = {"author": "mish", "kind": "x y"}
    assert written["metadata"] == stat.json()["entry"]["metadata"] == known
    listed = [entry.get("metadata") for entry in found.json()["entries"]]
    assert listed == [known, {"own": "1"}]
    assert moved.json()["entry"]["metadata"] == known
    assert own.json()["entry"]["metadata"] == {"own": "1"}
    # Written over, a file has its new metadata alone.
    assert again.json()["entry"]["metadata"] == {"kind": "z"}
    assert refused["code"] == 400
    assert missing.status_code == 404
