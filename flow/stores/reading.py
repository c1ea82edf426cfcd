"""Records as they are read from a store: nothing is guessed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import Discriminator, TypeAdapter, ValidationError

from toolcell.core import CheckpointSerializationError, InvalidInputError

from ..values.json_values import read_json_bytes
from .records import (
    VERSION,
    AnswerRecord,
    Checkpoint,
    JournalRecord,
    Record,
    ThreadHead,
)

_R = TypeVar("_R")
_log = logging.getLogger("toolcell.flow")

_HINT = "restore the store from a copy, or delete the thread"
_journal = TypeAdapter[JournalRecord](Annotated[JournalRecord, Discriminator("type")])


def read_journal(text: bytes) -> JournalRecord:
    """Return a record of the journal. Raises CheckpointSerializationError."""
    return _read(_journal.validate_python, text)


def read_checkpoint(text: bytes) -> Checkpoint:
    """Return a checkpoint. Raises CheckpointSerializationError."""
    return _read(Checkpoint.model_validate, text)


def read_head(text: bytes) -> ThreadHead:
    """Return a head. Raises CheckpointSerializationError."""
    return _read(ThreadHead.model_validate, text)


class HeadReader:
    """Reads heads; one that cannot be read is passed over, and named once."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def read(self, thread_id: str, text: bytes | None) -> ThreadHead | None:
        """Return the head of a thread; None: it cannot be read."""
        try:
            return read_head(text or b"")
        except CheckpointSerializationError as error:
            if thread_id not in self._named:
                self._named.add(thread_id)
                _log.warning(
                    "thread %s is passed over: its head cannot be read (%s)",
                    *(thread_id, error.message),
                )
            return None


def read_answer(text: bytes) -> AnswerRecord:
    """Return an answer. Raises CheckpointSerializationError."""
    return _read(AnswerRecord.model_validate, text)


def _read(validate: Callable[[Any], _R], text: bytes) -> _R:
    try:
        return validate(_versioned(text))
    except ValidationError as error:
        raise Record.refused(error) from None
    except InvalidInputError as error:
        # Of a Send or a question inside the record.
        raise CheckpointSerializationError(error.message, hint=_HINT) from error


def _versioned(text: bytes) -> Any:
    try:
        value = read_json_bytes(text)
    except ValueError as error:
        raise CheckpointSerializationError("a record is no JSON", hint=_HINT) from error
    if not isinstance(value, dict):
        raise CheckpointSerializationError("a record is no object", hint=_HINT)
    if isinstance(value.get("v"), int) and value["v"] > VERSION:
        raise CheckpointSerializationError(
            f"a record has version {value['v']}, this toolcell reads {VERSION}",
            hint="a newer toolcell wrote it: use that one",
        )
    return value
