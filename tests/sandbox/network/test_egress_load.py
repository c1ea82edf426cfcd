"""Many connections at once, and much through one channel."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from toolcell.sandbox import ExecutionResult, Limits, Network, SandboxManager

from ...conftest import BackendRow
from ...support.cells.web_server import Site, resolve_here, serving

pytestmark = pytest.mark.anyio

FETCH = """
import hashlib, threading, urllib.request
# Where an rlimit holds memory, stacks count as if they were used.
threading.stack_size(262144)
problems, sizes = [], []
def fetch(n):
    try:
        size = 0
        with urllib.request.urlopen(f"{url}/big/{each + n}") as answer:
            while piece := answer.read(262144):
                size += len(piece)
        sizes.append(size - n)
    except Exception as error:
        problems.append(repr(error))
threads = [threading.Thread(target=fetch, args=(n,)) for n in range(streams)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
[problems, sizes.count(each), len(sizes)]
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
async def reaching(backend: BackendRow, site: Site) -> AsyncIterator[SandboxManager]:
    config = backend.config(
        limits=Limits(wall_seconds=110, pids=200, network_bytes=2**30),
        network=Network.allow(site.rules),
    )
    async with SandboxManager(config, resolver=resolve_here) as manager:
        yield manager


async def fetch(
    reaching: SandboxManager, site: Site, streams: int, each: int
) -> ExecutionResult:
    inputs: dict[str, Any] = {"url": site.url, "streams": streams, "each": each}
    result = await reaching.run(FETCH, inputs=inputs)
    assert result.status == "ok", (result.status, result.stderr)
    assert result.value == [[], streams, streams]
    assert result.usage.network_bytes > streams * each
    return result


async def test_64_streams_at_once(reaching: SandboxManager, site: Site) -> None:
    result = await fetch(reaching, site, 64, 100_000)

    assert [connection.verdict for connection in result.connections] == ["allowed"] * 64


async def test_more_streams_than_fit_wait_their_turn(
    reaching: SandboxManager, site: Site
) -> None:
    await fetch(reaching, site, 150, 1_000)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.promise("QN5")
async def test_50_mb_pass_without_growing(reaching: SandboxManager, site: Site) -> None:
    await fetch(reaching, site, 4, 1_000_000)
    before = peak_mib()
    await fetch(reaching, site, 4, 12_500_000)

    assert peak_mib() - before < 16


@pytest.mark.full
async def test_500_mb_pass_without_growing(
    reaching: SandboxManager, site: Site
) -> None:
    await fetch(reaching, site, 64, 100_000)
    before = peak_mib()
    await fetch(reaching, site, 64, 7_900_000)

    assert peak_mib() - before < 64
