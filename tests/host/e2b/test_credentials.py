"""Sandboxes of the API use the credentials of their token's agent."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from toolcell.sandbox.network.name_resolution import NameResolver

from ...support.cells.mirror import mirroring
from ...support.cells.web_server import NAME, resolve_here, self_signed
from .served_sandboxes import served

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-6")]

VALUE = secrets.token_hex(20)
RULES = """
[[policies]]
agent_id = "a"
allow = ["sandbox.*", "http.request"]
[[policies]]
agent_id = "b"
allow = ["sandbox.*", "http.request"]
"""
SEND = """python3 - <<'END'
import os, urllib.request
request = urllib.request.Request("https://{host}/")
request.add_header("Authorization", "Bearer " + os.environ["API_TOKEN"])
print(urllib.request.urlopen(request).read().decode())
END"""


async def test_a_sandbox_uses_a_credential_that_it_never_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NameResolver, "of_run", lambda *_: resolve_here)
    certificate = self_signed(tmp_path)
    (tmp_path / "token").write_text(VALUE)
    with mirroring(certificate, VALUE) as mirror:
        host = f"{NAME}:{mirror.port}"
        tables = f"""
[sandbox.network]
mode = "guarded"
hosts = {json.dumps([host, f"127.0.0.1:{mirror.port}"])}
inspect = ["{host}"]
server_ca = "{certificate}"
[[sandbox.credentials]]
name = "api"
value = "file:{tmp_path}/token"
hosts = ["{host}"]
agents = ["a"]
variable = "API_TOKEN"
"""
        async with served(tmp_path, tables, policies=RULES) as service:
            sandbox = await service.create()
            token, _ = await sandbox.command("printf %s $API_TOKEN")
            answer, _ = await sandbox.command(SEND.format(host=host))
            other = await service.create("b")
            none, _ = await other.command("printf %s ${API_TOKEN-none}")

    assert len(token) == len(VALUE)
    assert answer.strip() == token
    assert none == b"none"
    [head] = mirror.heads
    assert f"Bearer {VALUE}\n" in head
