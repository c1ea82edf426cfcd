"""Much through inspected HTTPS, and many connections at once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, Network, SandboxManager

from ...conftest import BackendRow
from ...support.cells.gates import Gate
from ...support.cells.mirror import credential_of
from ...support.cells.web_server import (
    BLOCK,
    NAME,
    Site,
    resolve_here,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.one_backend,
    pytest.mark.promise("boundary-5"),
]

MIB = 2**20
BOTH_WAYS = """
import hashlib, urllib.request
digest, left = hashlib.sha256(), size
with urllib.request.urlopen(f"{url}/big/{size}") as answer:
    while piece := answer.read(262144):
        digest.update(piece)
        left -= len(piece)
def pieces():
    for _ in range(size // len(block)):
        yield block.encode()
request = urllib.request.Request(f"{url}/up", pieces(), {"Content-Length": str(size)})
with urllib.request.urlopen(request) as answer:
    sent = answer.read().decode()
[left, digest.hexdigest(), sent]
"""
AT_ONCE = """
import ssl, threading, urllib.request
trust = ssl.create_default_context()
threading.stack_size(262144)
found = []
def ask(number):
    for turn in range(3):
        path = f"/{number}-{turn}"
        with urllib.request.urlopen(url + path, context=trust) as answer:
            found.append(answer.read().decode() == f"hello {path}")
threads = [threading.Thread(target=ask, args=(n,)) for n in range(64)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
[len(found), all(found)]
"""


@pytest.fixture(scope="module")
async def manager(
    backend: BackendRow,
    site: Site,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SandboxManager]:
    token = tmp_path_factory.mktemp("secret") / "token"
    token.write_text("x" * 40)
    host = f"{NAME}:{site.port}"
    config = backend.config(
        network=Network(
            mode="guarded",
            hosts=tuple(site.rules),
            inspect=(host,),
            server_ca=str(certificate),
        ),
        credentials=(credential_of(token, host),),
        limits=Limits(wall_seconds=600, cpu_seconds=600, pids=200, network_bytes=2**33),
    )
    async with SandboxManager(config, resolver=resolve_here) as manager:
        yield manager


def peak_mib() -> float:
    """Return the most memory that this process had since the last call."""
    [kb] = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    Path("/proc/self/clear_refs").write_text("5")
    return int(kb) / 1024


MUCH = pytest.mark.full, pytest.mark.timeout(3_600)


@pytest.mark.parametrize("agent", ["reader", "builder"])
@pytest.mark.parametrize("size", [64 * MIB, pytest.param(1024 * MIB, marks=MUCH)])
async def test_bodies_are_exact_and_never_held_whole(
    manager: SandboxManager, site: Site, size: int, agent: str
) -> None:
    """With credentials of its agent, bodies are searched in both directions."""

    async def both_ways(size: int) -> None:
        inputs: dict[str, Any] = {
            "url": site.url,
            "size": size,
            "block": BLOCK.decode(),
        }
        result = await manager.run(
            BOTH_WAYS, inputs=inputs, agent_id=agent, gate=Gate()
        )
        digest = hashlib.sha256()
        for _ in range(size // len(BLOCK)):
            digest.update(BLOCK)
        assert result.value == [0, digest.hexdigest(), digest.hexdigest()], result

    peak_mib()
    await both_ways(MIB)
    before = peak_mib()
    await both_ways(size)
    assert peak_mib() - before < 24


async def test_64_connections_at_once_have_their_own_answers(
    manager: SandboxManager, site: Site
) -> None:
    gate = Gate()
    result = await manager.run(AT_ONCE, inputs={"url": site.url}, gate=gate)

    assert result.value == [192, True], result.stderr
    assert len(gate.outcomes) == 192
    assert {outcome["status"] for outcome in gate.outcomes} == {200}
