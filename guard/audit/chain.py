"""The form of an audit log, and the check that nobody has touched one."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import SecretStr

from toolcell.core import AuditError, ConfigError, InvalidInputError

from .log_files import AuditPart, audit_parts, pruned_head

ProblemKind = Literal[
    "edited", "gap", "order", "replaced", "truncated", "rewritten", "torn", "unreadable"
]
"""Kinds of problems. `edited`: a record does not fit its own hash. `gap`: records are
missing. `order`: a record stands too late or twice. `replaced`: a record does not
follow the one before. `truncated`: the log ends before a given head. `rewritten`: a
given head names another record. `torn`: the last line is not whole. `unreadable`: a
line is not a record."""

LINE_BYTES = 65_536
"""Largest line in bytes. When it is reached, sizes and hashes take the place of large
fields."""

PROGRESS_BYTES = 1_048_576
"""Bytes between two reports of how far a check has come."""

_KEY_BYTES = 16
_LINE = re.compile(
    rb'(\{"seq":([0-9]{1,18}),.*,"prev":"([0-9a-f]{64})"),"hash":"([0-9a-f]{64})"\}\n'
)
_HEAD = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


class AuditHead(NamedTuple):
    """A place in an audit log: the number and the hash of a record.

    `str(head)` is short text to keep elsewhere; `AuditHead.parse` reads it.
    """

    seq: int
    """The number of the record; the first is 1, an empty log has 0."""

    hash: str
    """Its hash, 64 hexadecimal digits."""

    @classmethod
    def parse(cls, text: str) -> AuditHead:
        """Read what `str(head)` gave.

        Raises:
            InvalidInputError: The text is not that of a head.
        """
        match = _HEAD.fullmatch(text.strip())
        if match is None:
            raise InvalidInputError(
                "this is not the head of an audit log",
                hint="it looks like 12:9f86d081...",
            )
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


EMPTY = AuditHead(0, "0" * 64)
"""The head of a log without records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProblem:
    """A problem that `verify_audit` found in a log."""

    kind: ProblemKind
    line: int
    """The line of the file, from 1."""

    detail: str
    file: str | None = None
    """The name of the rotated file; None for the one that is written."""

    def __str__(self) -> str:
        place = "" if self.file is None else f"{self.file}: "
        return f"{place}line {self.line}: {self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The findings of `verify_audit`."""

    records: int
    head: AuditHead
    """The last record of the log that is whole."""

    problems: tuple[AuditProblem, ...]
    anchored: tuple[tuple[int, int], ...]
    """First and last number of each range that a given head confirms."""

    unanchored: tuple[tuple[int, int], ...]
    """Ranges whose chain holds, but which could have been rewritten or cut short."""

    @property
    def ok(self) -> bool:
        """True if no problem was found; ranges not anchored may still be forged."""
        return not self.problems

    def __str__(self) -> str:
        ranges = [(*span, "anchored") for span in self.anchored]
        ranges += [(*span, "chained, not anchored") for span in self.unanchored]
        lines = [f"records {a}-{b}: {what}" for a, b, what in sorted(ranges)]
        lines += map(str, self.problems)
        return "\n".join([*lines, "ok" if self.ok else "does not verify"])


def key_bytes(key: bytes | SecretStr | None) -> bytes | None:
    """Return the key of the hashes.

    Raises:
        ConfigError: It is shorter than 16 bytes.
    """
    raw = key.get_secret_value().encode() if isinstance(key, SecretStr) else key
    if raw is not None and len(raw) < _KEY_BYTES:
        raise ConfigError(
            "the key of the audit log is too short",
            hint=f"give at least {_KEY_BYTES} random bytes",
        )
    return raw


class Sealer:
    """Makes and checks the lines of a log.

    Args:
        key: The key of the hashes; None for plain SHA-256.
    """

    def __init__(self, key: bytes | None) -> None:
        # A copy of a hash object is quicker to make than a new one.
        self._blank: Any = sha256() if key is None else hmac.new(key, digestmod=sha256)

    def seal(self, previous: AuditHead, fields: str) -> tuple[bytes, str]:
        """Return the line of a record, and its hash.

        Args:
            previous: The head before this record.
            fields: The members of the record's JSON object, in printable ASCII only,
                so that no line end, terminal escape or change of direction gets
                through.
        """
        seq, prev = previous
        body = f'{{"seq":{seq + 1},{fields},"prev":"{prev}"'.encode("ascii")
        # As `_digest`, which is a call more for each line.
        hashed = self._blank.copy()
        hashed.update(body)
        digest: str = hashed.hexdigest()
        return body + f',"hash":"{digest}"}}\n'.encode("ascii"), digest

    def unseal(self, line: bytes) -> tuple[AuditHead, str, bool]:
        """Return a line's head, the hash before it, and whether its own hash fits.

        Raises:
            ValueError: The line is no record.
        """
        # Not parsed as JSON: the hash is checked first, whatever the line contains.
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError("not a record of an audit log")
        body, seq, prev, digest = match[1], int(match[2]), match[3], match[4].decode()
        holds = hmac.compare_digest(self._digest(body), digest)
        return AuditHead(seq, digest), prev.decode(), holds

    def _digest(self, body: bytes) -> str:
        hashed = self._blank.copy()
        hashed.update(body)
        digest: str = hashed.hexdigest()
        return digest


def verify_audit(
    path: str | Path,
    *,
    anchors: Iterable[AuditHead] = (),
    key: bytes | SecretStr | None = None,
    on_progress: Callable[[int, int], object] | None = None,
) -> AuditReport:
    """Check an audit log: edits, gaps, order, and its end against given heads.

    Rotated files of the log are part of it. One that was deleted is a gap, unless a
    record of the log says that it was pruned, or an anchor is its last head.

    Without `anchors` a log that was cut at its end, or rewritten as a whole, passes:
    the report names such ranges as not anchored.

    Args:
        path: The file that is written. It may be in use.
        anchors: Heads of the log that were stored elsewhere, in any order.
        key: The key that the log was written with; default none.
        on_progress: Called after each MiB with the bytes that were checked, and with
            those of the whole log. An error that it raises ends the check.

    Raises:
        AuditError: The file cannot be read.
        ConfigError: The key is too short.
    """
    check = _ChainCheck(Sealer(key_bytes(key)), anchors)
    with audit_parts(path) as parts:
        total, checked, reported = sum(part.size for part in parts), 0, 0
        try:
            for part in parts:
                name = None if part is parts[-1] else part.path.name
                for number, line in _lines(part):
                    check.line(name, number, line)
                    checked += len(line)
                    if on_progress is not None and checked - reported >= PROGRESS_BYTES:
                        reported = checked
                        on_progress(checked, total)
        except OSError as error:
            raise AuditError(
                f"the audit log cannot be read: {error.strerror}",
                hint="look at the disk",
            ) from error
    return check.report()


def _lines(part: AuditPart) -> Iterator[tuple[int, bytes]]:
    left, number = part.size, 0
    while left > 0 and (line := part.file.readline(min(left, LINE_BYTES + 1))):
        number += 1
        left -= len(line)
        if len(line) > LINE_BYTES:
            while left > 0 and not line.endswith(b"\n"):
                line = part.file.readline(min(left, LINE_BYTES))
                left -= len(line)
            line = b"\n"
        yield number, line


class _ChainCheck:
    """Follows a chain line by line and notes where it holds."""

    def __init__(self, sealer: Sealer, anchors: Iterable[AuditHead]) -> None:
        self._sealer = sealer
        self._anchors: dict[int, set[str]] = {}
        for anchor in anchors:
            if anchor.seq:
                self._anchors.setdefault(anchor.seq, set()).add(anchor.hash)
        self._head = self._start = EMPTY
        self._pruned: set[str] = set()
        self._file: str | None = None
        self._number = self._records = 0
        self._first = 1
        self._vouched = 0
        self._problems: list[AuditProblem] = []
        self._anchored: list[tuple[int, int]] = []
        self._unanchored: list[tuple[int, int]] = []

    def _wrong(self, kind: ProblemKind, detail: str) -> None:
        problem = AuditProblem(
            kind=kind, line=self._number, detail=detail, file=self._file
        )
        self._problems.append(problem)

    def line(self, file: str | None, number: int, line: bytes) -> None:
        self._file, self._number = file, number
        try:
            here, prev, holds = self._sealer.unseal(line)
        except ValueError:
            if line.endswith(b"\n"):
                self._wrong("unreadable", "not a record of an audit log")
            else:
                self._wrong("torn", f"{len(line)} bytes of a line that is not whole")
            return
        self._records += 1
        if self._records == 1 and here.seq > 1:
            self._begin(AuditHead(here.seq - 1, prev))
        self._follows(here, prev)
        anchors = self._anchors.pop(here.seq, None)
        if not holds:
            self._wrong("edited", f"record {here.seq} does not fit its hash")
            self._end_range(here.seq - 1)
            self._first = here.seq + 1
        elif anchors == {here.hash}:
            self._vouched = here.seq
        elif anchors is not None:
            self._wrong("rewritten", f"an anchor names another record {here.seq}")
        if holds and (pruned := pruned_head(line)):
            self._pruned.add(pruned)
        self._head = here

    def _begin(self, start: AuditHead) -> None:
        """Begin after records that are in no file; `report` asks for the reason."""
        self._start = self._head = start
        self._first = start.seq + 1
        if self._anchors.get(start.seq) == {start.hash}:
            self._pruned.add(str(start))
        detail = f"records 1-{start.seq} are missing"
        self._missing = AuditProblem(
            kind="gap", line=self._number, detail=detail, file=self._file
        )

    def _follows(self, here: AuditHead, prev: str) -> None:
        expected = self._head.seq + 1
        if here.seq == expected and prev == self._head.hash:
            return
        if here.seq > expected:
            self._wrong("gap", f"records {expected}-{here.seq - 1} are missing")
        elif here.seq < expected:
            self._wrong("order", f"record {here.seq} stands after {self._head.seq}")
        else:
            self._wrong("replaced", f"record {here.seq} does not follow {expected - 1}")
        self._end_range(self._head.seq)
        self._first = here.seq

    def _end_range(self, last: int) -> None:
        """Close the range of unbroken chain that ends with this record."""
        if self._vouched >= self._first:
            self._anchored.append((self._first, min(self._vouched, last)))
            self._first = self._vouched + 1
        if last >= self._first:
            self._unanchored.append((self._first, last))
        self._vouched = 0

    def report(self) -> AuditReport:
        self._end_range(self._head.seq)
        if self._start.seq and str(self._start) not in self._pruned:
            self._problems.insert(0, self._missing)
        for seq in sorted(self._anchors):
            if seq <= self._start.seq and str(self._start) in self._pruned:
                continue
            if seq > self._head.seq:
                detail = f"the log ends at {self._head.seq}, an anchor names {seq}"
                self._wrong("truncated", detail)
            else:
                self._wrong("rewritten", f"the record {seq} of an anchor is missing")
        return AuditReport(
            records=self._records,
            head=self._head,
            problems=tuple(self._problems),
            anchored=tuple(self._anchored),
            unanchored=tuple(self._unanchored),
        )
