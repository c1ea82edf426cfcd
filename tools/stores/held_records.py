"""Records that their store does not take for a while."""

from __future__ import annotations

import logging
from collections import deque

from toolcell.core import StoreUnavailableError

from .records import Records, ToolExecutionRecord

_log = logging.getLogger(__name__)
_MAX_HELD = 1_000
"""Records held at most. When it is reached the oldest one is dropped, and logged."""


class HeldRecords:
    """Holds what a store refuses until it takes it, so that no call begins meanwhile.

    A call whose record is refused has happened, and its result says what it did. The
    next one finds out by `flush`, before it does anything.

    Args:
        records: The store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._held: deque[ToolExecutionRecord] = deque()

    def add(self, record: ToolExecutionRecord) -> None:
        """Store a record, now or later."""
        self._held.append(record)
        try:
            self.flush()
        except StoreUnavailableError as error:
            _log.error("the record of call %r has to wait: %s", record.call_id, error)
            if len(self._held) > _MAX_HELD:
                lost = self._held.popleft()
                _log.error("the record of call %r is lost", lost.call_id)

    def flush(self) -> None:
        """Store what is held. Raises StoreUnavailableError if that is not possible."""
        while self._held:
            record = self._held.popleft()
            try:
                self._records.add(record)
            except StoreUnavailableError as error:
                self._held.appendleft(record)
                raise StoreUnavailableError(
                    "the records of calls cannot be written, so none begins",
                    hint="nothing was done; the log of toolcell.tools says why",
                ) from error

    def check(self) -> None:
        """Check that records can be stored. Raises StoreUnavailableError."""
        self.flush()
        self._records.check()
