"""Indexes of packages that do not answer, or refuse."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from toolcell.core import PackageError
from toolcell.sandbox import PackageRules, SandboxManager

from ...conftest import SUBPROCESS
from ...support.cells.package_index import open_to_cells

pytestmark = pytest.mark.anyio


async def test_an_index_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_cells(tmp_path / "layers")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}/"

        async def reason(seconds: float) -> object:
            rules = PackageRules(
                allow=("kind",),
                index_url=address,
                folder=str(tmp_path),
                seconds=seconds,
            )
            async with SandboxManager(SUBPROCESS.config(package_rules=rules)) as m:
                with pytest.raises(PackageError) as caught:
                    await m.install(["kind"])
            return caught.value.details["reason"]

        assert await reason(60) == "unreachable"
        deaf.listen()
        assert await reason(0.5) == "timeout"

    assert not list((tmp_path / "building").iterdir())


@pytest.mark.promise("QP13")
@pytest.mark.parametrize("status", [401, 403])
async def test_an_index_that_refuses_is_no_misspelt_package(
    tmp_path: Path, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

    monkeypatch.setenv("INDEX_PASSWORD", "swordfish")
    open_to_cells(tmp_path / "store")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever).start()
    try:
        address = f"http://user@127.0.0.1:{server.server_port}/"
        rules = PackageRules(
            allow=("kind",),
            index_url=address,
            index_password="env:INDEX_PASSWORD",
            folder=str(tmp_path / "store"),
        )
        async with SandboxManager(SUBPROCESS.config(package_rules=rules)) as manager:
            with pytest.raises(PackageError, match=str(status)) as caught:
                await manager.install(["kind"])
    finally:
        server.shutdown()
        server.server_close()

    assert caught.value.details["reason"] == "refused"
    assert "not found" not in str(caught.value)
    assert "swordfish" not in str(caught.value)
