"""Runs: the calls that run now, and the records of those that ended."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from time import time
from urllib.parse import urlencode

import anyio.to_thread
from starlette.responses import Response

from toolcell.core import InvalidInputError
from toolcell.core.text.printable import without_overwritten
from toolcell.guard import Redactor
from toolcell.tools.spi import NumberedRecord

from ...http.streams import event_stream
from ...operator.actions import cancel_call
from ...operator.explanations import call_tree, why
from ...operator.exports import export
from ...operator.filters import NAMES, read_filters
from ...operator.live_calls import LiveCall, LiveCalls
from ..web.programs import Terminal
from ..web.visit import ActionRefusedError, Visit
from .filters import by_day, exported, filter_choices
from .numbers import read_number

PAGE_RECORDS = 50
"""Records of a page. When it is reached the older ones are on the next one."""

_LINE_BYTES = 4_096


async def show(visit: Visit) -> Response:
    """Show the calls that run, and a page of records."""
    given = {name: visit.query(name) for name in NAMES}
    before = visit.query("before")
    asked = read_filters(given, datetime.now(UTC))
    search = partial(
        visit.sources.records.page,
        **asked.wanted,
        before=read_number(before) if before else None,
        limit=PAGE_RECORDS + 1,
    )
    found = await anyio.to_thread.run_sync(search)
    records = found[:PAGE_RECORDS]
    kept = {name: text for name, text in given.items() if text}
    host = visit.sources.host
    return visit.render(
        "runs.html",
        live=None if host is None else host.live_calls.all(),
        days=by_day((entry.record.started_at, entry) for entry in records),
        older=records[-1].number if len(found) > PAGE_RECORDS else None,
        given=given,
        query=urlencode(kept),
        problems=asked.problems,
        choices=filter_choices(visit, given),
        is_first=not before,
        now=time(),
    )


async def export_records(visit: Visit) -> Response:
    """Answer with all records that fit the filters, as a file."""
    return exported(visit, "runs", partial(export, visit.sources.records))


async def show_live(visit: Visit) -> Response:
    """Show a call that runs, with its latest output."""
    call = _find(visit)
    redactor = visit.sources.redactor
    missing, pieces = call.output.read()
    return visit.render(
        "live_call.html",
        call=call,
        arguments=call.arguments(redactor),
        missing=missing,
        place=call.output.size,
        lines=_text(b"".join(data for _, data in pieces), redactor),
        now=time(),
    )


async def stream(visit: Visit) -> Response:
    """Answer with the further output of a call, line by line."""
    call = _find(visit)
    lines = _lines(call, read_number(visit.query("after", "0")), visit)
    return event_stream(lines)


async def cancel(visit: Visit) -> Response:
    """Cancel a call that runs."""
    call = _find(visit)
    recorded = await cancel_call(
        _calls(visit), call, by=visit.person.id, audit=visit.sources.audit
    )
    return visit.stopped("/runs", recorded=recorded)


async def show_record(visit: Visit) -> Response:
    """Show a record, and the calls that its program made."""
    found = await _record(visit)
    tree = partial(call_tree, visit.sources.records, found.record)
    return await visit.render_large(
        "record.html",
        found.record.agent_id or "",
        found=found,
        record=found.record,
        tree=await anyio.to_thread.run_sync(tree),
        has_picture=partial(_has_picture, visit),
    )


async def show_picture(visit: Visit) -> Response:
    """Answer with a picture of a program; a browser runs nothing of it."""
    pictures = visit.sources.pictures
    found = None
    if pictures is not None:
        find = partial(pictures.find, visit.part("sha256"))
        found = await anyio.to_thread.run_sync(find)
    if found is None:
        raise ActionRefusedError(
            404, "there is no such picture", hint="pictures are kept for a time"
        )
    policy = {"Content-Security-Policy": "sandbox; default-src 'none'"}
    return Response(found.data, media_type=found.mime, headers=policy)


async def show_why(visit: Visit) -> Response:
    """Show why a call was decided as it was, and how it would be decided now."""
    found, sources = await _record(visit), visit.sources
    reasons = await why(
        found.record,
        guard=sources.guard,
        registry=sources.registry,
        audit=None if sources.audit is None else sources.audit.path,
        redactor=sources.redactor,
        seconds=sources.config.tools.timeout_seconds,
    )
    return visit.render("why.html", found=found, record=found.record, why=reasons)


def _calls(visit: Visit) -> LiveCalls:
    host = visit.sources.host
    if host is None:
        raise ActionRefusedError(
            404,
            "calls of another process are not seen here",
            hint="`toolcell serve --console` shows those that it serves",
        )
    return host.live_calls


def _find(visit: Visit) -> LiveCall:
    try:
        return _calls(visit).find(read_number(visit.part("number")))
    except InvalidInputError as error:
        raise ActionRefusedError(404, error.message, hint=error.hint) from None


async def _record(visit: Visit) -> NumberedRecord:
    number = read_number(visit.part("number"))
    search = partial(visit.sources.records.page, before=number + 1, limit=1)
    found = await anyio.to_thread.run_sync(search)
    if not found or found[0].number != number:
        raise ActionRefusedError(
            404, "there is no such record", hint="records are kept for a time"
        )
    return found[0]


def _has_picture(visit: Visit, sha256: object) -> bool:
    pictures = visit.sources.pictures
    return pictures is not None and isinstance(sha256, str) and pictures.has(sha256)


def _text(output: bytes, redactor: Redactor) -> str:
    """Return output as a terminal leaves it; nothing is hidden but known secrets."""
    text = without_overwritten(output.decode("utf-8", "replace"))
    # Line by line: a redactor cuts long texts.
    return "\n".join(map(redactor.text, text.split("\n")))


async def _lines(
    call: LiveCall, place: int, visit: Visit
) -> AsyncGenerator[bytes, None]:
    """Yield the output after a place as events; secrets are found in whole lines."""
    redactor, terminal, rest = visit.sources.redactor, Terminal(), b""
    while True:
        ended = call.ended.is_set()
        missing, pieces = call.output.read(place)
        place = call.output.size
        if missing:
            rest = b"[%d bytes are missing]\n" % missing
        rest += b"".join(data for _, data in pieces)
        cut = len(rest) if ended else rest.rfind(b"\n") + 1
        if not cut and len(rest) > _LINE_BYTES:
            cut = len(rest)
        if cut:
            text = _text(rest[:cut], redactor)
            yield _event("line", [*terminal.pieces(text)])
            rest = rest[cut:]
        if ended:
            yield _event("end", call.status or "")
            return
        if call.output.size == place and not call.ended.is_set():
            await call.output.changed()


def _event(kind: str, data: str | list[tuple[str, str]]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
