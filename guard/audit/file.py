"""The file of an audit log: one writer at a time, always at a whole last line."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from toolcell.core import AuditError, ConfigError
from toolcell.core.storage.forks import ForkAware

from .chain import EMPTY, AuditHead, Sealer

LOCK_SECONDS = 2.0
"""Longest wait for other writers of the file. When it is over, `AuditError`."""

_BRIEF_SECONDS = 0.001
_LOCK_PAUSE = 0.000_2
_TAKE = fcntl.LOCK_EX | fcntl.LOCK_NB
_TAIL_BYTES = 4_096
_FIRST = b'{"seq":1,'
_MAX_FIRST_BYTES = 1 << 20


class HeldByOthersError(AuditError):
    """Other writers hold the file, and the caller cannot wait for them."""


class AuditFile(ForkAware):
    """A chain of records in a file. `with file:` locks it against all other writers.

    Args:
        path: The file; created with mode 0600. Not a link.
        sealer: Makes and checks the lines.
        repaired: Returns the record of a repair, given the bytes that were removed.

    Raises:
        ConfigError: The path cannot be used.
    """

    def __init__(
        self, path: Path, sealer: Sealer, repaired: Callable[[bytes], str]
    ) -> None:
        super().__init__()
        self._path = path
        self._sealer = sealer
        self._repaired = repaired
        self._end = 0
        self._failed_at = -LOCK_SECONDS
        self._repair = ""
        self.head = EMPTY
        """The head as of the last time that this process held the file."""

        self._open()
        self._make_lock()

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._fd = os.open(self._path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"the audit log {self._path} cannot be opened: {error.strerror}",
                hint="give a file in a folder that exists; links are not followed",
            ) from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            self._fd = -1
            raise ConfigError(
                f"the audit log {self._path} is not a file",
                hint="name a regular file; no folder, pipe or device",
            )

    def _make_lock(self) -> None:
        # A lock that was held during a fork would stay held.
        self._lock = threading.Lock()
        self._waiting = 0

    def _renew(self) -> None:
        inherited = self._fd
        if inherited >= 0:
            # It shares the parent's lock on the file.
            self._open()
            os.close(inherited)
        self._make_lock()

    def close(self) -> None:
        """Close the file; a forked process closes its own copy of the descriptor."""
        if self._is_inherited:
            self._make_lock()
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Self:
        self.hold(asked_at=time.monotonic())
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self, *, removed: bool = True, asked_at: float | None = None) -> None:
        """Lock the file, at a whole last line, until `release`.

        Args:
            removed: True to check that the file still exists (one `fstat`, which takes
                6 % of an audited call).
            asked_at: The time since which the caller has waited for other writers
                (`time.monotonic`). None: the caller is an event loop, and cannot wait.

        Raises:
            HeldByOthersError: Other writers hold the file, and the caller cannot wait.
            AuditError: The file was removed, cut or changed, or others hold it for
                longer than `LOCK_SECONDS`.
        """
        self._follow_fork()
        self._lock.acquire()
        try:
            fcntl.flock(self._fd, _TAKE)
        except (BlockingIOError, ValueError):
            self._lock.release()
            self._wait(asked_at)
        except BaseException:
            self._lock.release()
            raise
        try:
            if removed:
                state = os.fstat(self._fd)
                if not state.st_nlink:
                    raise self._error("was removed")
                size = state.st_size
            else:
                size = os.lseek(self._fd, 0, os.SEEK_END)
            if size != self._end or self._repair:
                self._catch_up(size)
        except OSError as error:
            self.release()
            raise self._error(f"cannot be read: {error.strerror}") from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Unlock the file for other writers."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._lock.release()

    def _wait(self, asked_at: float | None) -> None:
        """Lock the file as soon as other writers release it."""
        cannot_wait = asked_at is None
        if cannot_wait and self._waiting:
            raise self._held_by_others()
        began = time.monotonic()
        deadline = began + (_BRIEF_SECONDS if cannot_wait else LOCK_SECONDS)
        self._waiting += not cannot_wait
        try:
            while not self._taken():
                if cannot_wait and time.monotonic() > deadline:
                    raise self._held_by_others()
                # A caller that waited through another's deadline does not wait again.
                if self._failed_at > (asked_at or began):
                    raise self._error("is held by another process")
                if time.monotonic() > deadline:
                    self._failed_at = time.monotonic()
                    raise self._error("is held by another process")
                time.sleep(_LOCK_PAUSE)
        finally:
            self._waiting -= not cannot_wait

    def _taken(self) -> bool:
        """Lock the file, with the lock of this process, if nobody holds it."""
        # Not held between two tries: an event loop may ask for it.
        self._lock.acquire()
        try:
            if self._fd < 0:
                raise self._error("is closed")
            fcntl.flock(self._fd, _TAKE)
        except BlockingIOError:
            self._lock.release()
            return False
        except BaseException:
            self._lock.release()
            raise
        return True

    def _held_by_others(self) -> HeldByOthersError:
        return HeldByOthersError(f"the audit log {self._path} is held by others")

    def _catch_up(self, size: int) -> None:
        """Read the lines of other writers; remove a last line that is not whole."""
        if size != self._end:
            self._read_end(size)
        if self._repair:
            # It stays until it is written: the disk may have no room yet.
            self.write(self._repair)
            self._repair = ""

    def _read_end(self, size: int) -> None:
        lines, end = self._tail(size)
        head = EMPTY
        for line in lines:
            head = self._next(head, line)
        known = self.head
        if head.seq < known.seq or (head.seq == known.seq and head != known):
            raise self._error(f"was cut: it ends at {head.seq}, not at {known.seq}")
        self.head, self._end = head, end
        if end < size:
            if not end and not self._may_be_ours(size):
                raise self._error("is no audit log: it has no whole line")
            self._repair = self._repaired(os.pread(self._fd, size - end, end))
            os.ftruncate(self._fd, end)

    def _may_be_ours(self, size: int) -> bool:
        """Return whether a file without a whole line can be a torn first record."""
        start = os.pread(self._fd, len(_FIRST), 0)
        # After a loss of power a file may be as long as it should be, and empty.
        return size <= _MAX_FIRST_BYTES and (
            _FIRST.startswith(start) or not start.strip(b"\0")
        )

    def _next(self, before: AuditHead, line: bytes) -> AuditHead:
        try:
            here, prev, holds = self._sealer.unseal(line)
        except ValueError:
            holds = False
        if not holds or (before.seq and before != AuditHead(here.seq - 1, prev)):
            raise self._error("does not verify at its end")
        return here

    def _tail(self, size: int) -> tuple[list[bytes], int]:
        """Return the last two whole lines, and the offset of their end."""
        span = _TAIL_BYTES
        while True:
            start = max(0, size - span)
            data = os.pread(self._fd, size - start, start)
            end = data.rfind(b"\n") + 1
            lines = data[:end].splitlines(keepends=True)
            # The first line may lack its beginning.
            if len(lines) > 2 or not start:
                return lines[-2:], start + end
            span *= 4

    def write(self, fields: str) -> AuditHead:
        """Append a record, given as members of a JSON object; the file must be held.

        Raises:
            AuditError: The record cannot be written; no part of it is in the file.
        """
        before = self.head
        line, digest = self._sealer.seal(before, fields)
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                os.ftruncate(self._fd, self._end)
        except OSError as error:
            raise self._error(f"cannot be written: {error.strerror}") from error
        if written < len(line):
            raise self._error("cannot be written: no room is left")
        self._end += written
        self.head = AuditHead(before[0] + 1, digest)
        return self.head

    def sync(self) -> AuditHead:
        """Wait until all records are on the disk; return the head.

        Other writers do not wait meanwhile.

        Raises:
            AuditError: The disk failed, or the file cannot be locked.
        """
        with self:
            head, fd = self.head, os.dup(self._fd)
        try:
            os.fsync(fd)
        except OSError as error:
            raise self._error(f"is not on the disk: {error.strerror}") from error
        finally:
            os.close(fd)
        return head

    def _error(self, what: str) -> AuditError:
        return AuditError(
            f"the audit log {self._path} {what}",
            hint="nothing is allowed that cannot be recorded",
        )
