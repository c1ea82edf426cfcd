"""Counters on a Redis Cluster: where they are, and calls that count in two places."""

from __future__ import annotations

import gc
import subprocess
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis

from toolcell.core import GuardDeniedError, StoreUnavailableError
from toolcell.guard import ActionGuard, AgentPolicy, RedisStore
from toolcell.guard.stores.base import Charge, RateHit, Reservation

from ...support.guard.builders import FREE, call, facts, refusal, spend
from ...support.guard.redis_cluster import NODES, RedisCluster, redis_cluster
from ...support.guard.worker import PATIENCE
from ...support.polling import until

pytestmark = pytest.mark.anyio

AGENTS = [f"agent-{number}" for number in range(12)]
HOUR = 3_600_000_000
SHORT = 0.2

OLD_TICK = """
return redis.call('ZRANGEBYSCORE', KEYS[1] .. 'ends', '-inf', '0', 'LIMIT', 0, 1000)
"""
"""What hosts that keep all keys in one slot do first, at every call."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
async def store(
    cluster: RedisCluster, request: pytest.FixtureRequest
) -> AsyncIterator[RedisStore]:
    made = store_of(cluster, request.node.name)
    yield made
    await made.aclose()


def store_of(
    cluster: RedisCluster, name: str, deadline: float = PATIENCE
) -> RedisStore:
    return RedisStore(cluster.url, prefix=name[-64:], deadline=deadline)


def limited(agent_id: str, limit: int, **more: Any) -> AgentPolicy:
    budgets = [{"unit": "calls", "limit": limit, **more.pop("budget", {})}]
    return AgentPolicy(agent_id=agent_id, allow=["*"], budgets=budgets, **more)


async def admitted(guard: ActionGuard, agents: list[str]) -> int:
    """Make a call of each agent, all at once; return how many were let in."""
    done: list[str] = []

    async def one(agent: str) -> None:
        with suppress(GuardDeniedError):
            await spend(guard, call(agent_id=agent))
            done.append(agent)

    async with anyio.create_task_group() as tasks:
        for agent in agents:
            tasks.start_soon(one, agent)
    return len(done)


def accounts(cluster: RedisCluster, name: str) -> list[int]:
    """Return how many accounts of a prefix each node has."""
    counts = []
    for number in range(NODES):
        with cluster.node(number) as node:
            counts.append(len(list(node.scan_iter(f"{{{name}|*:account:*"))))
    return counts


async def test_agents_are_spread_over_the_nodes(
    cluster: RedisCluster, store: RedisStore, request: pytest.FixtureRequest
) -> None:
    guard = ActionGuard([limited(agent, 3) for agent in AGENTS], store=store)

    assert await admitted(guard, AGENTS * 5) == 3 * len(AGENTS)

    counts = accounts(cluster, request.node.name)
    assert sum(counts) == len(AGENTS)
    assert all(counts)


async def test_children_of_one_parent_share_its_limit_exactly(
    store: RedisStore,
) -> None:
    children = [limited(agent, 10, parent="top") for agent in AGENTS]
    guard = ActionGuard([limited("top", 50), *children], store=store)

    assert await admitted(guard, AGENTS * 10) == 50

    with anyio.fail_after(PATIENCE):
        left = (await guard.decide(call(agent_id="top"), FREE)).remaining
    assert left == {"top calls/total": 0}


async def test_a_limit_that_all_agents_share_is_exact(store: RedisStore) -> None:
    every = {"budget": {"per": "global"}}
    guard = ActionGuard([limited(agent, 50, **every) for agent in AGENTS], store=store)

    assert await admitted(guard, AGENTS * 10) == 50

    denied = await refusal(guard, call(agent_id="agent-3"))
    assert denied["reason"] == "budget_exceeded"
    assert denied["remaining"] == {"all calls/total": 0}


async def test_what_a_shared_limit_refuses_is_taken_back_at_home(
    store: RedisStore,
) -> None:
    policy = AgentPolicy(
        agent_id="a",
        allow=["*"],
        max_concurrency=1,
        rate_limits=["9/day", {"limit": "8/day", "algorithm": "bucket"}],
        budgets=[
            {"unit": "tokens", "limit": 5, "per": "global"},
            {"unit": "tokens", "limit": 70},
        ],
    )
    guard = ActionGuard([policy], store=store)

    for _ in range(3):
        assert (await refusal(guard, call(), facts(tokens=6)))["rule"] == (
            "all tokens/total"
        )
    decision = await spend(guard, call(), facts(tokens=5), tokens=2)

    assert decision.remaining == {
        "a 9 calls/86400 s": 8,
        "a 8 calls/86400 s": 7,
        "a max_concurrency": 0,
        "all tokens/total": 0,
        "a tokens/total": 65,
    }
    left = (await guard.decide(call(), facts(tokens=1))).remaining
    assert left["all tokens/total"] == 3
    assert left["a tokens/total"] == 68
    assert left["a max_concurrency"] == 1


async def test_holds_in_two_places_end_and_are_corrected(cluster: RedisCluster) -> None:
    now = [1_000.0]
    store = RedisStore(
        cluster.url, prefix="ends", clock=lambda: now[0], deadline=PATIENCE
    )
    lines = [
        *[Charge("agent|a|x", 4, 10), Charge("global|y", 3, 10)],
        Charge("tool|t|z", 2, 10, refund=True),
    ]

    async def levels() -> list[tuple[int, int]]:
        peeked = await store.peek(Reservation("a|", [], lines, HOUR))
        return [(used, held) for used, held, _ in peeked.levels]

    assert (await store.reserve(Reservation("a|1", [], lines, HOUR))).admitted
    assert await levels() == [(0, 4), (0, 3), (0, 2)]
    now[0] += 3_601
    assert await levels() == [(4, 0), (3, 0), (0, 0)]
    assert await store.settle("a|1", [1, 1, 1])
    assert await levels() == [(1, 0), (1, 0), (1, 0)]
    assert not await store.settle("a|1", [1, 1, 1])
    await store.aclose()


async def test_an_agent_with_another_topmost_parent_is_refused_until_its_reset(
    store: RedisStore,
) -> None:
    tops = [limited("one", 100), limited("other", 100)]
    guard = ActionGuard([*tops, limited("a", 2, parent="one")], store=store)
    assert await admitted(guard, ["a", "a", "a"]) == 2

    guard.replace_policies([*tops, limited("a", 2, parent="other")])
    with pytest.raises(StoreUnavailableError, match="kept with those of one"):
        await spend(guard, call())

    await guard.reset("a", by="pat")
    assert await admitted(guard, ["a", "a", "a"]) == 2


async def test_an_older_host_and_a_newer_one_do_not_count_beside_each_other(
    cluster: RedisCluster,
) -> None:
    with redis.RedisCluster.from_url(cluster.url) as client:
        client.zadd("{older}:ends", {"{older}:hold:1": 5})
        older = RedisStore(cluster.url, prefix="older", deadline=PATIENCE)
        with pytest.raises(StoreUnavailableError, match="by another toolcell"):
            await older.peek(Reservation("", [RateHit("r", 1, 1)], [], HOUR))
        await older.aclose()

        newer = RedisStore(cluster.url, prefix="newer", deadline=PATIENCE)
        await newer.peek(Reservation("", [RateHit("r", 1, 1)], [], HOUR))
        await newer.aclose()
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.eval(OLD_TICK, 1, "{newer}:")


async def test_a_node_that_hangs_delays_its_own_agents_alone(
    cluster: RedisCluster, store: RedisStore, request: pytest.FixtureRequest
) -> None:
    guard = ActionGuard([limited(agent, 1_000) for agent in AGENTS], store=store)
    assert await admitted(guard, AGENTS) == len(AGENTS)
    _, hung, _ = accounts(cluster, request.node.name)
    answered: list[str] = []

    async def one(agent: str) -> None:
        await spend(guard, call(agent_id=agent))
        answered.append(agent)

    async with anyio.create_task_group() as tasks:
        with paused(cluster, 1):
            for agent in AGENTS:
                tasks.start_soon(one, agent)
            await until(lambda: len(answered) == len(AGENTS) - hung)
            others = len(answered)
    assert others < len(answered) == len(AGENTS)


async def test_a_node_that_hangs_is_away_until_it_goes_on(
    cluster: RedisCluster,
) -> None:
    store = store_of(cluster, "hangs", SHORT)
    guard = ActionGuard([limited(agent, 1_000) for agent in AGENTS], store=store)

    async def refused() -> set[str]:
        """Call once for each agent; return those that were refused."""
        found = set[str]()
        for agent in AGENTS:
            try:
                await spend(guard, call(agent_id=agent))
            except StoreUnavailableError:
                found.add(agent)
        return found

    while await refused():
        pass
    _, hung, _ = accounts(cluster, "hangs")
    with paused(cluster, 1):
        assert len(await refused()) >= hung > 0
    while await refused():
        pass
    await store.aclose()
    with warnings.catch_warnings():
        # redis-py leaves a socket open when it looks for the nodes anew.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextmanager
def paused(cluster: RedisCluster, number: int) -> Iterator[None]:
    cluster.pause(number)
    try:
        yield
    finally:
        cluster.resume(number)


def test_a_cluster_made_by_redis_itself_is_the_same(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    checked = subprocess.run(
        ["redis-cli", "--cluster", "check", f"127.0.0.1:{cluster.ports[0]}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "All 16384 slots covered" in checked.stdout
