"""The audit log: its records by number, a check of all of it, and kept heads."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import anyio.to_thread
from starlette.responses import Response

from toolcell.guard import AuditLog
from toolcell.guard.spi import AuditEntry, AuditFound, audit_page, audit_search

from ...operator.actions import keep_head
from ...operator.audit_anchors import KeptHead
from ...operator.audit_check import AuditCheck
from ...operator.exports import export_audit
from ...operator.filters import NAMES, ReadFilters, fits_audit, read_filters
from ..web.visit import ActionRefusedError, Visit
from .filters import by_day, exported, filter_choices
from .numbers import read_number

PAGE_RECORDS = 50
"""Records of a page. When it is reached the older ones are on the next one."""

MAX_PROBLEMS = 100
"""Problems of a check that are shown. When it is reached the rest is counted."""

_LOOK_AGAIN_SECONDS = 2


async def show(visit: Visit) -> Response:
    """Show a page of records, the state of the check, and the kept heads."""
    log, check = visit.sources.audit, visit.console.checks.audit_check
    if log is None or check is None:
        return visit.render("no_audit.html")
    before = visit.query("before")
    given = {name: visit.query(name) for name in NAMES}
    asked = read_filters(given, datetime.now(UTC))
    found = await _search(log.path, read_number(before) if before else None, asked)
    state = check.state
    answer = visit.render(
        "audit.html",
        days=by_day((_time_of(entry), entry) for entry in found.entries),
        older=found.next,
        given=given,
        query=urlencode({name: text for name, text in given.items() if text}),
        unread=asked.problems,
        choices=filter_choices(visit, given),
        is_first=not before,
        check=state,
        problems=() if state.report is None else state.report.problems[:MAX_PROBLEMS],
        heads=await _heads(visit),
        can_keep=visit.console.checks.heads is not None,
    )
    if state.state == "running":
        # Without a script, too, the page shows how far the check is.
        answer.headers["Refresh"] = str(_LOOK_AGAIN_SECONDS)
    return answer


async def export_log(visit: Visit) -> Response:
    """Answer with all records of the log that fit the filters, as a file."""
    log, _ = _log(visit)
    return exported(visit, "audit", partial(export_audit, log.path))


async def show_one(visit: Visit) -> Response:
    """Show one record whole."""
    log, _ = _log(visit)
    number = read_number(visit.part("number"))
    found = await _page(log.path, number + 1, 1)
    if not found or found[0].seq != number:
        raise ActionRefusedError(404, "the log has no such record")
    return visit.render("audit_record.html", entry=found[0])


async def verify(visit: Visit) -> Response:
    """Begin a check of the whole log against the kept heads."""
    _, check = _log(visit)
    check.start([head.head for head in await _heads(visit)])
    return visit.go("/audit")


async def keep(visit: Visit) -> Response:
    """Keep the present head."""
    log, _ = _log(visit)
    heads = visit.console.checks.heads
    if heads is None:
        raise ActionRefusedError(
            409, "no folder is configured for heads", hint="name a folder in [state]"
        )
    await keep_head(log, heads, by=visit.person.id)
    return visit.go("/audit#heads")


def _log(visit: Visit) -> tuple[AuditLog, AuditCheck]:
    log, check = visit.sources.audit, visit.console.checks.audit_check
    if log is None or check is None:
        raise ActionRefusedError(
            404, "there is no audit log", hint="name its path in [audit]"
        )
    return log, check


async def _heads(visit: Visit) -> list[KeptHead]:
    heads = visit.console.checks.heads
    return [] if heads is None else await anyio.to_thread.run_sync(heads.all)


async def _search(path: Path, before: int | None, asked: ReadFilters) -> AuditFound:
    wanted = dict(asked.wanted)
    times = {name: wanted.pop(name, None) for name in ("since", "until")}
    search = partial(
        audit_search,
        path,
        partial(fits_audit, wanted),
        before=before,
        limit=PAGE_RECORDS,
        **times,
    )
    return await anyio.to_thread.run_sync(search)


def _time_of(entry: AuditEntry) -> datetime | None:
    try:
        return datetime.fromisoformat(str(entry.record.get("time")))
    except ValueError:
        return None


async def _page(path: Path, before: int | None, limit: int) -> list[AuditEntry]:
    search = partial(audit_page, path, before=before, limit=limit)
    return await anyio.to_thread.run_sync(search)
