"""Nodes' records of themselves in the directory, signed by the cluster's token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

TOLD_SECONDS = 5.0
"""Seconds for which it holds what a driver says of its queue. When they are over
without a word the driver counts as gone."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class NodeRecord(BaseModel):
    """One node: its address, and the certificate that it shows."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    host: Annotated[str, Field(min_length=1, max_length=255)]
    port: Annotated[int, Field(ge=1, le=65_535)]
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the certificate, made anew at each start of the node."""


class Directory(Protocol):
    """Finds the nodes of a cluster, and knows how many runs wait for them."""

    async def nodes(self) -> Sequence[NodeRecord]:
        """Return the nodes that were there lately.

        Raises:
            SandboxUnavailableError: The directory does not answer.
        """

    async def tell(self, driver: str, waiting: int) -> None:
        """Note how many runs wait in a driver, for `TOLD_SECONDS`.

        Args:
            driver: Tells the driver from others; letters and digits.
            waiting: The runs and sessions that wait.

        Raises:
            SandboxUnavailableError: The directory does not answer.
        """

    async def waiting(self) -> int:
        """Return how many runs and sessions wait in all drivers.

        Raises:
            SandboxUnavailableError: The directory does not answer.
        """


class FixedNodes:
    """A directory of nodes that never change, and to which no queue is reported.

    Args:
        records: The nodes.
    """

    def __init__(self, records: Sequence[NodeRecord]) -> None:
        self._records = tuple(records)

    async def nodes(self) -> Sequence[NodeRecord]:
        return self._records

    async def tell(self, driver: str, waiting: int) -> None:
        pass

    async def waiting(self) -> int:
        return 0


class _Signed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    record: NodeRecord
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


def sign(record: NodeRecord, key: bytes) -> str:
    """Return a record as text that `read_signed` takes."""
    return _Signed(record=record, signature=_hmac(record, key)).model_dump_json()


def read_signed(text: str | bytes, key: bytes) -> NodeRecord | None:
    """Return the record of a text; None if it was not signed with this key."""
    try:
        signed = _Signed.model_validate_json(text)
    except ValidationError:
        return None
    right = _hmac(signed.record, key)
    return signed.record if hmac.compare_digest(signed.signature, right) else None


def _hmac(record: NodeRecord, key: bytes) -> str:
    text = b"toolcell node 1|" + record.model_dump_json().encode()
    return hmac.new(key, text, hashlib.sha256).hexdigest()
