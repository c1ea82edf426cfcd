"""Drivers that have the token and ask a node for more than its owner allows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent
from toolcell.cluster.driver.runs import ask
from toolcell.cluster.wire.link import Link
from toolcell.core import InvalidInputError
from toolcell.sandbox import Limits, Network, SandboxManager

from ...conftest import SUBPROCESS
from ...support.cluster.null_nodes import TOKEN

pytestmark = pytest.mark.anyio
LIMITS = Limits(output_bytes=1000, network_bytes=1000)
ALLOWED = "api.example.org:443"
WIDER = "*.example.org:443"


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ClusterSandbox]:
    config = SUBPROCESS.config(limits=LIMITS, network=Network.allow([ALLOWED]))
    async with (
        SandboxManager(config) as cells,
        NodeAgent(cells, token=TOKEN, name="one", check_seconds=3600) as agent,
        ClusterSandbox(FixedNodes([agent.record]), token=TOKEN) as sandbox,
    ):
        yield sandbox


@pytest.fixture
def link(sandbox: ClusterSandbox) -> Link:
    """A link without the checks of a driver before it."""
    [node] = sandbox._nodes.open
    return node.link


async def refusal(link: Link, **fields: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        await ask(link, fields)
    return caught.value.message


NUMBERS = [
    name
    for name, value in LIMITS
    if type(value) in (int, float) and name not in ("cpu_seconds",)
]


@pytest.mark.promise("cluster-43")
@pytest.mark.parametrize("op", ["run", "stream"])
@pytest.mark.parametrize("name", NUMBERS)
async def test_no_limit_of_a_node_can_be_widened(
    link: Link, op: str, name: str
) -> None:
    wider = {name: getattr(LIMITS, name) * 2}
    message = await refusal(link, op=op, options={"code": "1"}, limits=wider)
    assert name in message


@pytest.mark.promise("cluster-43")
@pytest.mark.parametrize(
    "name",
    ["env", "mounts", "image", "python", "work_dir", "limits", "network", "calls"],
)
@pytest.mark.parametrize("op", ["run", "stream"])
async def test_what_is_the_node_s_cannot_be_sent(
    link: Link, op: str, name: str
) -> None:
    message = await refusal(link, op=op, options={"code": "1", name: {}})
    assert name in message


@pytest.mark.promise("cluster-43")
async def test_the_network_of_a_node_cannot_be_widened(
    link: Link, sandbox: ClusterSandbox
) -> None:
    wide = Network.allow([WIDER]).model_dump(mode="json")
    run = {"options": {"code": "1"}, "network": wide}
    assert WIDER in await refusal(link, op="run", **run)
    opening: dict[str, Any] = {"packages": [], "agent_id": None, "network": wide}
    assert WIDER in await refusal(link, op="session", **opening)
    async with sandbox.session(network=Network.none) as session:
        with pytest.raises(InvalidInputError, match="the node allows less") as caught:
            await session.set_network(Network.allow([WIDER]))
        assert WIDER in caught.value.message
        assert session.network == Network.none
        await session.set_network(Network.allow([ALLOWED]))
        assert session.network == Network.allow([ALLOWED])
