"""Pages of records: few are held at a time, and a page has a size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from toolcell.core.event_loop import rest
from toolcell.tools.spi import NumberedRecord

from .views import record_view

PAGE_BYTES = 4_194_304
"""Bytes of the records of one page. When it is reached the page ends, and its `next`
leads to the others."""

_AT_ONCE = 10


def written_page(
    search: Callable[..., list[NumberedRecord]], before: int | None, limit: int
) -> bytes:
    """Return a page as the JSON text of a `RecordList`.

    Args:
        search: Returns records, newest first; it takes `before` and `limit`.
        before: Only records with a lower number. None: the newest.
        limit: The most records.
    """
    texts: list[bytes] = []
    size = 0
    number: int | None = None
    for numbered in _records(search, before, limit):
        texts.append(record_view(numbered).model_dump_json().encode())
        size, number = size + len(texts[-1]), numbered.number
        if size >= PAGE_BYTES:
            break
        rest()
    more = size >= PAGE_BYTES or len(texts) == limit
    following = b"%d" % number if more and number is not None else b"null"
    return b'{"records":[%b],"next":%b}' % (b",".join(texts[::-1]), following)


def _records(
    search: Callable[..., list[NumberedRecord]], before: int | None, limit: int
) -> Iterator[NumberedRecord]:
    while limit > 0:
        found = search(before=before, limit=min(limit, _AT_ONCE))
        yield from found
        if len(found) < min(limit, _AT_ONCE):
            return
        before, limit = found[-1].number, limit - len(found)
