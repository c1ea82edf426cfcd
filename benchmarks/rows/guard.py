"""Rows on the guard: one guarded call on each store, refusals, and many rules.

Peers are written for limits 5.8, pyrate-limiter 4.5, casbin 1.43 and cedarpy 4.12.
None of them reserves and settles: each only answers once.
"""

from __future__ import annotations

import importlib
import itertools
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio.to_thread
from baselines.bare_reserve import BareReserve
from harness.measure import (
    CALLS,
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    repeated,
    take_turns,
)
from harness.options import Options
from pydantic import JsonValue

from toolcell.core import GuardDeniedError, ToolCall
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    AuditLog,
    CallFacts,
    MemoryStore,
    RedisStore,
    SQLiteStore,
    Store,
)
from toolcell.tools import ConcurrentExecutor, RunContext, ToolRegistry, tool

_CROWD = 64
"""Calls at once."""

_CALL = ToolCall(id="1", name="add", arguments={"a": 1}, agent_id="a")
_FACTS = CallFacts(cost={"usd": "0.000001"})
_COST = {"usd": "0.000001"}
_SUM: dict[str, JsonValue] = {"a": 2, "b": 3}
_Timed = Callable[[], Awaitable[float]]
"""Makes one call, and returns its time in seconds."""


def _guard(
    store: Store | None = None,
    allow: tuple[Any, ...] = ("add",),
    audit: AuditLog | None = None,
) -> ActionGuard:
    policy = AgentPolicy(
        agent_id="a",
        allow=allow,
        rate_limits=[{"limit": "100000/second", "algorithm": "bucket"}],
        budgets=[
            {"unit": "usd", "limit": "1000000", "window": "day"},
            {"unit": "calls", "limit": 10**9, "per": "agent_tool"},
        ],
    )
    return ActionGuard([policy], store=store, audit=audit)


async def _guarded(guard: ActionGuard) -> None:
    async with guard.admit(_CALL, _FACTS) as permit:
        if not await permit.settle(_COST):
            raise WrongResult("a call was settled before")


async def _refused(guard: ActionGuard) -> None:
    try:
        async with guard.admit(_CALL, _FACTS):
            raise WrongResult("a call was admitted")
    except GuardDeniedError:
        pass


def _plain(name: str, work: Callable[[], object]) -> Contender:
    return repeated(name, _awaited(work))


async def _measured(options: Options, *contenders: Contender) -> list[Sample]:
    samples = await take_turns(contenders, options.runs)
    return [sample.by_own_clock() for sample in samples]


def _single(work: str, sample: Sample, gate: float | None) -> Row:
    """Return the row of one call of a run."""
    values = [value * 1_000 / CALLS for value in sample.values]
    one = Sample(name=sample.name, unit="µs", values=values)
    return Row(work=work, ours=one, compare="absolute", gate=gate)


async def memory(options: Options) -> list[Row]:
    """Decide, reserve in a rate and two budgets, settle; and a refusal."""
    works: dict[str, Callable[[], Awaitable[object]]] = {
        "guard.admit": partial(_guarded, _guard(MemoryStore())),
        "refused by a rule": partial(_refused, _guard(allow=("sub",))),
        "refused by a rate": partial(_refused, await _full_guard()),
        "limits moving window": _awaited(_hit("10000000/day")),
        "limits moving window, full": _awaited(_full_hit()),
    }
    seen: dict[str, list[float]] = {name: [] for name in works}
    await take_turns(
        [_each(name, work, seen[name]) for name, work in works.items()], options.runs
    )
    guarded, by_rule, by_rate, hit, miss = (
        Sample(name=name, unit="µs", values=values) for name, values in seen.items()
    )
    return [
        *against("one guarded call, memory", [guarded, hit], [2.1], "share"),
        *against("one refusal by a rule", [by_rule, miss], [3.8], "share"),
        *against("one refusal by a rate", [by_rate, miss], [None], "share"),
    ]


def _each(
    name: str, work: Callable[[], Awaitable[object]], seen: list[float]
) -> Contender:
    """Return a contender that notes the time of each call, in microseconds.

    The median of single calls does not feel what else the machine does.
    """

    async def calls() -> None:
        for _ in range(CALLS):
            started = time.perf_counter()
            await work()
            seen.append((time.perf_counter() - started) * 1_000_000)

    return Contender(name=name, run=calls)


def _awaited(work: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def called() -> None:
        work()

    return called


async def _full_guard() -> ActionGuard:
    policy = AgentPolicy(agent_id="a", allow=["add"], rate_limits=["1/day"])
    guard = ActionGuard([policy])
    async with guard.admit(_CALL, _FACTS) as permit:
        await permit.settle()
    return guard


async def whole(options: Options) -> list[Row]:
    """A tool call with all that belongs to it, and the same with the audit log.

    In a row, and each after one of the others: a processor foresees the way through
    a piece of code that runs again and again, if it is short, and a host's calls come
    one by one.
    """
    names = ["mcp call_tool", "executor.call", "with the audit log"]
    in_a_row, by_turns = (_samples(names) for _ in range(2))
    with TemporaryDirectory() as folder, _audit_log(folder) as log:
        calls = [_mcp_call(), _tool_call(None), _tool_call(log)]
        contenders = [
            *(
                _timed([call], [each])
                for call, each in zip(calls, in_a_row, strict=True)
            ),
            _timed(calls, by_turns),
        ]
        await take_turns(contenders, options.runs)
    rows = []
    for how, (bare, plain, audited) in (("", in_a_row), (", by turns", by_turns)):
        work, slow = f"one guarded tool call{how}", [plain.slowest(), bare.slowest()]
        rows += against(work, [plain, bare], [2.2], "share")
        rows += against(f"{work}, p99", slow, [None if how else 1.9], "share")
        rows += against(f"{work}, audited", [audited, bare], [4], "share")
    return rows


def _samples(names: Sequence[str]) -> list[Sample]:
    return [Sample(name=name, unit="µs") for name in names]


def _timed(calls: Sequence[_Timed], samples: Sequence[Sample]) -> Contender:
    """Return a contender that makes each call in turn, and notes their times."""

    async def in_turn() -> None:
        for _ in range(CALLS):
            for call, sample in zip(calls, samples, strict=True):
                sample.values.append(await call() * 1_000_000)

    return Contender(name=" and ".join(sample.name for sample in samples), run=in_turn)


def _audit_log(folder: str) -> AuditLog:
    # All calls of the row are of one run.
    return AuditLog(Path(folder, "audit.jsonl"), run_records=1_000_000)


def _mcp_call() -> _Timed:
    server = _load("mcp.server.mcpserver", "mcp").MCPServer("peer")
    server.tool(name="add")(_add)

    async def call() -> float:
        started = time.perf_counter()
        await server.call_tool("add", _SUM)
        return time.perf_counter() - started

    return call


def _tool_call(audit: AuditLog | None) -> _Timed:
    registry = ToolRegistry([tool(name="add", cost=_COST)(_add)])
    guard = _guard(MemoryStore(), audit=audit)
    executor = ConcurrentExecutor(registry, guard=guard)
    run, numbers = RunContext(run_id="r"), itertools.count()

    async def call() -> float:
        number = next(numbers)
        request = ToolCall(id=f"{number}", name="add", arguments=_SUM, agent_id="a")
        started = time.perf_counter()
        result = await executor.call(request, run=run)
        took = time.perf_counter() - started
        if result.content != 5:
            raise WrongResult(f"2 + 3 became {result!r}")
        return took

    return call


async def _add(a: int, b: int) -> int:
    return a + b


async def sqlite(options: Options) -> list[Row]:
    """The same in a file: the store's own work, and the call awaited."""
    with TemporaryDirectory() as folder:
        store = SQLiteStore(Path(folder, "state.db"))
        bare = BareReserve(Path(folder, "bare.db"))

        async def hops() -> None:
            await anyio.to_thread.run_sync(int)
            await anyio.to_thread.run_sync(int)

        async def bare_hops() -> None:
            await anyio.to_thread.run_sync(bare.reserve)
            await anyio.to_thread.run_sync(bare.settle)

        contenders = [
            repeated("guard.admit", partial(_guarded, _guard(store))),
            repeated("bare sqlite3", bare_hops),
            repeated("two thread hops", hops),
        ]
        guarded, sketch, empty = await _measured(options, *contenders)
        await store.aclose()
        bare.close()
    own = [_less(sample, empty) for sample in (guarded, sketch)]
    work = f"{CALLS} guarded calls, SQLite"
    return [
        *against(f"{work}, without the hops", own, [2.2], "share"),
        *against(f"{work}, awaited", [guarded, empty], [None], "share"),
        _single("one guarded call, SQLite, awaited", guarded, None),
    ]


def _less(sample: Sample, floor: Sample) -> Sample:
    """Return a sample without the time of what it shares with another one."""
    values = [value - floor.p50 for value in sample.values]
    return Sample(name=sample.name, unit=sample.unit, values=values)


async def redis(options: Options) -> list[Row]:
    """The same in Redis on a local socket; a call is two round trips."""
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("there is no redis-server")
    with TemporaryDirectory() as folder:
        socket = Path(folder, "redis.sock")
        arguments = ["--port", "0", "--unixsocket", str(socket), "--save", ""]
        with subprocess.Popen(
            [program, *arguments], stdout=subprocess.DEVNULL
        ) as server:
            try:
                while not socket.exists():
                    await anyio.sleep(0.01)
                return await _on_redis(options, f"unix://{socket}")
            finally:
                server.kill()


async def _on_redis(options: Options, url: str) -> list[Row]:
    client = importlib.import_module("redis").Redis.from_url(url)
    store = RedisStore(url, deadline=1)

    async def pings() -> None:
        await anyio.to_thread.run_sync(client.ping)
        await anyio.to_thread.run_sync(client.ping)

    guard = _guard(store)
    ours = repeated("guard.admit", partial(_guarded, guard))
    samples = await _measured(options, ours, repeated("two PINGs, awaited", pings))
    crowd = await _measured(
        options,
        _crowd("guard.admit", partial(_guarded, guard)),
        _crowd("two PINGs on threads", pings),
    )
    trips = Sample(name="guard.admit", unit="trips")
    for _ in range(CALLS):
        # The server's own count of what it has read; the second asks for it.
        before = client.info("stats")["total_reads_processed"]
        await _guarded(guard)
        after = client.info("stats")["total_reads_processed"]
        trips.values.append(after - before - 1)
    client.close()
    await store.aclose()
    return [
        *against(f"{CALLS} guarded calls, Redis", samples, [None], "share"),
        *against(f"{_CROWD} at once, Redis, CPU time", crowd, [0.7], "share"),
        Row(work="round trips of a call", ours=trips, compare="absolute", gate=2),
        _single("one guarded call, Redis", samples[0], None),
    ]


def _crowd(name: str, work: Callable[[], Awaitable[object]]) -> Contender:
    """Return a contender that does a piece of work often at once, by its CPU time."""

    async def one() -> None:
        await work()

    async def run() -> float:
        started = time.process_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(_CROWD):
                tasks.start_soon(one)
        return (time.process_time() - started) * 1_000

    return Contender(name=name, run=run)


async def rules(options: Options) -> list[Row]:
    """A thousand rules against ten: exact names, and globs."""
    names = [f"tool{number}" for number in range(1_000)]
    globs = [f"tool{number}_*" for number in range(1_000)]

    def with_rules(kind: list[str], count: int) -> Contender:
        guard = _guard(allow=(*kind[: count - 1], "add"))
        return repeated(f"{count} rules", partial(guard.decide, _CALL, _FACTS))

    made = [with_rules(kind, count) for kind in (names, globs) for count in (1_000, 10)]
    samples = await _measured(options, *made)
    return [
        *against(f"{CALLS} decisions, exact names", samples[:2], [2], "share"),
        *against(f"{CALLS} decisions, globs", samples[2:], [3], "share"),
    ]


def _load(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Missing(f"{package} is not installed") from None


def _full_hit() -> Callable[[], object]:
    hit = _hit("1/day")
    hit()
    return hit


def _hit(rate: str) -> Callable[[], object]:
    module = _load("limits", "limits")
    storage = module.storage.MemoryStorage()
    limiter = module.strategies.MovingWindowRateLimiter(storage)
    return partial(limiter.hit, module.parse(rate), "a")


def _pyrate() -> Contender:
    module = _load("pyrate_limiter", "pyrate-limiter")
    limiter = module.Limiter(module.Rate(10_000_000, module.Duration.DAY))
    work = partial(limiter.try_acquire, "a", blocking=False)
    return _plain("pyrate-limiter", work)


def _casbin() -> Contender:
    module = _load("casbin", "casbin")
    model = module.Enforcer.new_model(
        text="[request_definition]\nr = sub, obj\n[policy_definition]\np = sub, obj\n"
        "[policy_effect]\ne = some(where (p.eft == allow))\n"
        "[matchers]\nm = r.sub == p.sub && r.obj == p.obj"
    )
    enforcer = module.Enforcer(model)
    for number in range(10):
        enforcer.add_policy("a", f"tool{number}")
    return _plain("casbin, 10 rules", partial(enforcer.enforce, "a", "tool9"))


def _cedar() -> Contender:
    module = _load("cedarpy", "cedarpy")
    text = "".join(
        f'permit(principal == Agent::"a", action == Action::"tool{number}", resource);'
        for number in range(10)
    )
    request = {
        "principal": 'Agent::"a"',
        "action": 'Action::"tool9"',
        "resource": 'Tool::"t"',
        "context": {},
    }
    work = partial(module.is_authorized, request, text, [])
    return _plain("cedarpy, 10 policies as text", work)


def _peer(make: Callable[[], Contender]) -> Callable[[Options], Awaitable[list[Row]]]:
    async def row(options: Options) -> list[Row]:
        ours = repeated("guard.admit", partial(_guarded, _guard(MemoryStore())))
        samples = await _measured(options, ours, make())
        return against(f"{CALLS} guarded calls, memory", samples, [None], "share")

    return row


GUARD_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "guard-memory": memory,
    "guard-call": whole,
    "guard-sqlite": sqlite,
    "guard-redis": redis,
    "guard-rules": rules,
    "peer-guard-pyrate": _peer(_pyrate),
    "peer-guard-casbin": _peer(_casbin),
    "peer-guard-cedarpy": _peer(_cedar),
}
