"""Stores of a million rows against those of a thousand: appends, and newest pages.

A file is filled by copies of a few rows, and both take turns. If
the cost of n appends grows as n to the power of 1.1, one of them takes twice as long
in the large file as in the small one: that is the gate.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from harness.measure import Contender, Row, WrongResult, against, take_turns
from harness.options import Options, RowMaker
from pydantic import BaseModel

from toolcell.core import ToolCall
from toolcell.flow import START, Flow, Graph, SQLiteCheckpointer, interrupt
from toolcell.guard import ApprovalRequest, ApprovalStore, AuditLog
from toolcell.guard.spi import audit_page
from toolcell.tools import SQLiteRecords, ToolExecutionRecord

# The index of records takes in 64 at once: copies have to be of all or none.
_MADE, _SMALL, _LARGE = 128, 2**10, 2**20
_PAGE = 100
_AT_ONCE = 100
_GATE = 2.0

_APPENDS, _A_PAGE = f"{_AT_ONCE} appends", f"a page of {_PAGE}"
_COPY_RECORDS = f"""
INSERT INTO tool_records SELECT number + n * {_MADE}, lower(hex(randomblob(16))),
    parent_id, agent_id, tool_name, status, started_at, body
    FROM copies CROSS JOIN tool_records
"""
_COPY_SEARCH = f"""
INSERT INTO tool_search (rowid, facts, words)
    SELECT tool_search.rowid + n * {_MADE}, facts, words
    FROM copies CROSS JOIN tool_search
"""
_COPY_APPROVALS = """
INSERT INTO approvals SELECT lower(hex(randomblob(16))), lower(hex(randomblob(32))),
    agent_id, status, asked_at, expires_at, request, approver, reason, arguments
    FROM copies CROSS JOIN approvals
"""
_COPY_THREADS = f"""
INSERT INTO flow_threads SELECT thread || '-' || n, graph, status,
    changed + n * {_MADE}, CAST(replace(CAST(head AS TEXT), '"' || thread || '"',
    '"' || thread || '-' || n || '"') AS BLOB), sum, chain, token, owner
    FROM copies CROSS JOIN flow_threads
"""
_COPY_CHECKPOINTS = """
INSERT INTO flow_checkpoints SELECT thread || '-' || n, number, id, whole, record, sum
    FROM copies CROSS JOIN flow_checkpoints
"""
_numbers = itertools.count()

Work = Callable[[], Awaitable[None]]


def _by_cpu(name: str, work: Work) -> Contender:
    """Return a contender that reports the CPU time of the process."""

    async def run() -> float:
        started = time.process_time()
        await work()
        return (time.process_time() - started) * 1_000

    return Contender(name=name, run=run)


async def _rows(
    store: str, works: Sequence[Mapping[str, Work]], options: Options
) -> list[Row]:
    """Return a row for each kind of work of the large file and the small one."""
    large, small = works
    contenders = [
        _by_cpu(f"{size:,} rows", file[kind])
        for kind in large
        for size, file in ((_LARGE, large), (_SMALL, small))
    ]
    samples = await take_turns(contenders, max(1, options.runs // 4))
    clocks = [sample.by_own_clock() for sample in samples]
    pairs = dict(zip(large, zip(clocks[::2], clocks[1::2], strict=True), strict=True))
    return [
        row
        for kind, pair in pairs.items()
        for row in against(f"{store}, {kind}, CPU", pair, [_GATE], "share")
    ]


def _copy_rows(path: Path, size: int, *statements: str) -> None:
    """Copy each of the rows that were made until there are enough."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TEMP TABLE copies (n INTEGER PRIMARY KEY)")
        numbers = ((n,) for n in range(1, size // _MADE))
        database.executemany("INSERT INTO copies VALUES (?)", numbers)
        for statement in statements:
            database.execute(statement)


def _record() -> ToolExecutionRecord:
    number = next(_numbers)
    return ToolExecutionRecord(
        call_id=uuid4().hex,
        tool_name=f"tool{number % 8}",
        agent_id=f"agent{number % 100}",
        parent_id=None,
        tool_version="1",
        arguments={"a": number, "text": "some words that are searched"},
        verdict="allowed",
        status="ok",
        started_at=datetime.now(UTC),
        duration_ms=1.0,
        result=number,
    )


def _record_works(store: SQLiteRecords) -> dict[str, Work]:
    async def append() -> None:
        for _ in range(_AT_ONCE):
            store.add(_record())

    async def page() -> None:
        if len(store.page(tool_name="tool7", limit=_PAGE)) != _PAGE:
            raise WrongResult("a page of records is short")

    return {_APPENDS: append, _A_PAGE: page}


async def records(options: Options) -> list[Row]:
    """Records of calls."""
    with TemporaryDirectory() as folder, ExitStack() as opened:
        works = []
        for size in (_LARGE, _SMALL):
            path = Path(folder, f"{size}.db")
            with closing(SQLiteRecords(path)) as store:
                for _ in range(_MADE):
                    store.add(_record())
            _copy_rows(path, size, _COPY_RECORDS, _COPY_SEARCH)
            again = opened.enter_context(closing(SQLiteRecords(path)))
            works.append(_record_works(again))
        return await _rows("records", works, options)


def _request(now: float) -> ApprovalRequest:
    number = next(_numbers)
    agent = f"agent{number % 100}"
    return ApprovalRequest(
        id=uuid4().hex,
        call=ToolCall(id=str(number), name="pay", agent_id=agent),
        run_id="r",
        version="1",
        definition_hash="",
        tags=frozenset(),
        rule="ask",
        asked_at=now,
        expires_at=now + 3_600,
    )


def _use(store: ApprovalStore) -> None:
    """Ask for an approval, give it and use it."""
    now = time.time()
    request = _request(now)
    store.open(request, max_pending=100, record=_nothing)
    store.answer(
        request.id,
        "approved",
        now=now,
        approver="anna",
        arguments=None,
        record=_nothing,
    )
    if not store.use(request.id, now, _nothing):
        raise WrongResult("an approval could not be used")


def _nothing(*_: object) -> None:
    pass


def _approval_works(store: ApprovalStore) -> dict[str, Work]:
    async def append() -> None:
        for _ in range(_AT_ONCE):
            _use(store)

    async def page() -> None:
        if len(store.recent(time.time(), state="used", limit=_PAGE)) != _PAGE:
            raise WrongResult("a page of approvals is short")

    async def waiting() -> None:
        if store.pending(time.time()) or store.count_waited_for(time.time()):
            raise WrongResult("an approval waits")

    return {_APPENDS: append, _A_PAGE: page, "those that wait": waiting}


async def approvals(options: Options) -> list[Row]:
    """Approvals that were asked for, given and used."""
    with TemporaryDirectory() as folder, ExitStack() as opened:
        works = []
        for size in (_LARGE, _SMALL):
            path = Path(folder, f"{size}.db")
            with ApprovalStore(path) as store:
                for _ in range(_MADE):
                    _use(store)
            _copy_rows(path, size, _COPY_APPROVALS)
            store = opened.enter_context(ApprovalStore(path))
            works.append(_approval_works(store))
        return await _rows("approvals", works, options)


class Count(BaseModel):
    """The state of a thread that pauses."""

    n: int = 0


def _paused() -> Graph[Count]:
    graph = Graph(Count, name="paused")
    graph.node(lambda: {"n": interrupt("n?")}, name="ask")
    return graph.edge(START, "ask")


def _thread_works(store: SQLiteCheckpointer) -> dict[str, Work]:
    flow = Flow(_paused(), checkpointer=store)

    async def append() -> None:
        for _ in range(_AT_ONCE):
            await flow.run({}, f"t{next(_numbers)}")

    async def page() -> None:
        if len(await flow.threads(status="interrupted", limit=_PAGE)) != _PAGE:
            raise WrongResult("a page of threads is short")

    return {_APPENDS: append, _A_PAGE: page}


async def threads(options: Options) -> list[Row]:
    """Threads of a flow that wait for an answer."""
    with TemporaryDirectory() as folder:
        async with AsyncExitStack() as opened:
            works = []
            for size in (_LARGE, _SMALL):
                path = Path(folder, f"{size}.db")
                async with SQLiteCheckpointer(path, power_safe=False) as store:
                    flow = Flow(_paused(), checkpointer=store)
                    for _ in range(_MADE):
                        await flow.run({}, f"t{next(_numbers)}")
                    _copy_rows(path, size, _COPY_THREADS, _COPY_CHECKPOINTS)
                again = SQLiteCheckpointer(path, power_safe=False)
                works.append(_thread_works(await opened.enter_async_context(again)))
            return await _rows("threads", works, options)


def _audit_works(log: AuditLog) -> dict[str, Work]:
    async def append() -> None:
        _fill(log, _AT_ONCE)

    middle = log.head().seq // 2

    async def page() -> None:
        if len(audit_page(log.path, before=middle, limit=_PAGE)) != _PAGE:
            raise WrongResult("a page of the audit log is short")

    return {_APPENDS: append, _A_PAGE: page}


def _fill(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.append("benchmark", number=number, text="some words")


async def audit(options: Options) -> list[Row]:
    """Lines of the audit log; each is hashed with the one before, so none is a copy."""
    with TemporaryDirectory() as folder, ExitStack() as opened:
        works = []
        for size in (_LARGE, _SMALL):
            log = opened.enter_context(AuditLog(Path(folder, f"{size}.jsonl")))
            _fill(log, size)
            works.append(_audit_works(log))
        return await _rows("audit log", works, options)


STORE_ROWS: dict[str, RowMaker] = {
    "store-records": records,
    "store-approvals": approvals,
    "store-threads": threads,
    "store-audit": audit,
}
