"""Programs that people use send the values of credentials by their placeholders."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, PackageRules, SandboxManager

from ...conftest import BackendRow
from ...support.cells.client_programs import install
from ...support.cells.gates import Gate
from ...support.cells.mirror import credential_of, inspected
from ...support.cells.package_index import open_to_cells
from ...support.cells.web_server import NAME, resolve_here

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("boundary-6"),
    # The programs are the same on all.
    pytest.mark.one_backend,
]

PACKAGES = (
    *("aiohttp", "anthropic==2.14.0", "httpx", "openai==3.57.0"),
    *("pip", "requests", "urllib3", "uv"),
)
VALUE = f"sk-{secrets.token_hex(24)}"
BASIC = base64.b64encode(f"x:{VALUE}".encode()).decode()

CLIENTS = {
    "urllib3": """
import urllib3
way = urllib3.ProxyManager(os.environ["https_proxy"])
print(way.request("GET", url + "/", headers=bearer).data.decode())
""",
    "requests": """
import requests
print(requests.get(url, headers=bearer).text)
""",
    "requests, basic": """
import requests
print(requests.get(url, auth=("x", token)).headers["X-Shown"])
""",
    "httpx": """
import httpx
print(httpx.get(url, headers=bearer).text)
""",
    "aiohttp": """
import aiohttp, asyncio
async def main():
    async with aiohttp.ClientSession(trust_env=True) as client:
        async with client.get(url, headers=bearer) as answer:
            return await answer.text()
print(asyncio.run(main()))
""",
    "openai": """
import openai
client = openai.OpenAI(api_key=token, base_url=url + "/v1", max_retries=0)
print(client.models.with_raw_response.list().text)
""",
    "anthropic": """
import anthropic
client = anthropic.Anthropic(api_key=token, base_url=url, max_retries=0)
print(client.models.with_raw_response.list().text())
""",
    "pip": """
import subprocess
index = url.replace("//", f"//x:{token}@") + "/simple"
argv = [sys.executable, "-m", "pip", "download", "--no-cache-dir", "--retries=0"]
print(subprocess.run([*argv, "--index-url", index, "parcel"], capture_output=True))
""",
    "uv": """
import subprocess
index = url.replace("//", f"//x:{token}@") + "/simple"
argv = [sys.executable, "-m", "uv", "pip", "compile", "--no-cache", "-"]
argv += ["--default-index", index]
print(subprocess.run(argv, input=b"parcel", capture_output=True))
""",
}
BEGIN = """
import os, sys
url, token = f"https://{name}:{port}", os.environ["API_TOKEN"]
bearer = {"Authorization": f"Bearer {token}"}
"""


@pytest.fixture(scope="module")
async def manager(
    backend: BackendRow,
    mirror: Any,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SandboxManager]:
    folder = tmp_path_factory.mktemp("folder")
    (folder / "token").write_text(VALUE)
    open_to_cells(folder / "store")
    host = f"{NAME}:{mirror.port}"
    where = ["header:Authorization", "header:X-Api-Key", "basic"]
    credential = credential_of(folder / "token", host, prefix="sk-", where=where)
    config = backend.config(
        network=inspected(host, certificate),
        credentials=(credential,),
        limits=Limits(wall_seconds=120, memory_mib=1024),
        package_rules=PackageRules(allow=PACKAGES, folder=str(folder / "store")),
    )
    async with SandboxManager(config, resolver=resolve_here) as manager:
        await install(manager, PACKAGES)
        yield manager


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_sends_the_value_and_has_the_placeholder(
    manager: SandboxManager, mirror: Any, client: str
) -> None:
    mirror.heads.clear()
    gate = Gate()
    result = await manager.run(
        BEGIN + CLIENTS[client],
        inputs={"name": NAME, "port": mirror.port},
        packages=PACKAGES,
        agent_id="builder",
        gate=gate,
    )

    assert result.status == "ok", result.stderr
    assert mirror.heads
    for head in mirror.heads:
        assert VALUE in head or BASIC in head
    assert {tuple(outcome["used"]) for outcome in gate.outcomes} == {("api",)}
    assert not any(text in repr(result) for text in (VALUE, BASIC))
