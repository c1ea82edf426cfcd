"""The file of an audit log: one writer at a time, always at a whole last line."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Self

from toolcell.core import AuditError, ConfigError
from toolcell.core.storage.processes import ForkAware

from .chain import EMPTY, AuditHead, Sealer
from .log_files import is_rotated, last_lines, rotated_files, rotated_path

LOCK_SECONDS = 2.0
"""Longest wait for other writers of the file. When it is over, `AuditError`."""

FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
FLAGS |= os.O_NONBLOCK  # A pipe in its place is refused, and not waited for.
TAKE = fcntl.LOCK_EX | fcntl.LOCK_NB
_BRIEF_SECONDS = 0.001
_LOCK_PAUSE = 0.000_2
_UNKNOWN = -1
_MAX_FIRST_BYTES = 1 << 20
_logger = logging.getLogger("toolcell.guard")


class HeldByOthersError(AuditError):
    """Other writers hold the file, and the caller cannot wait for them."""


class LockedFile(ForkAware):
    """A file of an audit log. `with file:` locks it against all other writers.

    Args:
        path: The file; created with mode 0600. Not a link.

    Raises:
        ConfigError: The path cannot be used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._failed_at = -LOCK_SECONDS
        self._open()
        self._make_lock()

    @abstractmethod
    def _at_end(self, removed: bool) -> bool:
        """Go to the end of the locked file; return False if another file follows it."""

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, FLAGS, 0o600)
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

    def hold(self, removed: bool = True, asked_at: float | None = None) -> None:
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
        while True:
            self._lock.acquire()
            try:
                fcntl.flock(self._fd, TAKE)
            except (BlockingIOError, ValueError):
                self._lock.release()
                self._wait(asked_at)
            except BaseException:
                self._lock.release()
                raise
            try:
                if self._at_end(removed):
                    return
            except OSError as error:
                self.release()
                raise self._error(f"cannot be read: {error.strerror}") from error
            except BaseException:
                self.release()
                raise
            # The log goes on in another file.
            self.release()

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
            while not self._try_lock():
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

    def _try_lock(self) -> bool:
        """Lock the file, with the lock of this process, if nobody holds it."""
        # Not held between two tries: an event loop may ask for it.
        self._lock.acquire()
        try:
            if self._fd < 0:
                raise self._error("is closed")
            fcntl.flock(self._fd, TAKE)
        except BlockingIOError:
            self._lock.release()
            return False
        except BaseException:
            self._lock.release()
            raise
        return True

    def _held_by_others(self) -> HeldByOthersError:
        return HeldByOthersError(f"the audit log {self._path} is held by others")

    def _error(self, what: str) -> AuditError:
        return AuditError(
            f"the audit log {self._path} {what}",
            hint="nothing is allowed that cannot be recorded",
        )


class AuditFile(LockedFile):
    """A chain of records in a file. `with file:` locks it against all other writers.

    Args:
        path: The file; created with mode 0600. Not a link.
        sealer: Makes and checks the lines.
        record: Returns a record of the file's own, given its members, for `write`.
        rotate_bytes: Bytes after which the log goes on in a new file. When it is
            reached the next record is the first of that file. None: never.
        keep_files: Rotated files that stay. When it is reached the oldest is deleted,
            and a record says so. None: all stay.

    Raises:
        ConfigError: The path cannot be used.
    """

    def __init__(
        self,
        path: Path,
        sealer: Sealer,
        record: Callable[[Mapping[str, int | str]], str],
        *,
        rotate_bytes: int | None = None,
        keep_files: int | None = None,
    ) -> None:
        self._next_path = path.with_name(f"{path.name}.next")
        self._sealer = sealer
        self._record = record
        self._rotate_bytes = rotate_bytes
        self._rotate_at = rotate_bytes or sys.maxsize
        self._keep_files = keep_files
        self._end = _UNKNOWN
        self._repair = ""
        self.head = EMPTY
        """The head as of the last time that this process held the file."""

        super().__init__(path)

    def _renew(self) -> None:
        self._end = _UNKNOWN
        super()._renew()

    def _at_end(self, removed: bool) -> bool:
        """Go to the end of the locked file; return False if another file follows it."""
        size = links = -1
        if removed:
            state = os.fstat(self._fd)
            size, links = state.st_size, state.st_nlink
        else:
            size = os.lseek(self._fd, 0, os.SEEK_END)
        if (size != self._end or self._repair) and not self._catch_up(size):
            return False
        if not links:
            raise self._error("was removed")
        return True

    def _catch_up(self, size: int) -> bool:
        """Read the lines of other writers; remove a last line that is not whole.

        Returns:
            False if the file was rotated: the next one is open then, and not locked.
        """
        if size != self._end and not self._read_end(size):
            return False
        if self._repair:
            # It stays until it is written: the disk may have no room yet.
            self.write(self._repair)
            self._repair = ""
        return True

    def _read_end(self, size: int) -> bool:
        lines, end = last_lines(self._fd, size)
        head = EMPTY if lines else self._head_before()
        for line in lines:
            head = self._next(head, line)
        known = self.head
        if head.seq < known.seq or (head.seq == known.seq and head != known):
            raise self._error(f"was cut: it ends at {head.seq}, not at {known.seq}")
        if end < size:
            if not end and not _may_be_ours(self._fd, size, head.seq + 1):
                raise self._error("is no audit log: it has no whole line")
            torn = os.pread(self._fd, size - end, end)
            self._repair = self._record(
                {
                    "event": "repaired",
                    "bytes": len(torn),
                    "sha256": sha256(torn).hexdigest(),
                }
            )
            os.ftruncate(self._fd, end)
        self.head, self._end = head, end
        if lines and is_rotated(lines[-1]):
            self._open_next()
            return False
        return True

    def _head_before(self) -> AuditHead:
        """Return the last head of the file before this one."""
        older = rotated_files(self._path)
        return self._last_head(older[-1]) if older else EMPTY

    def _last_head(self, path: Path) -> AuditHead:
        """Return the head that a rotated file ends with."""
        with path.open("rb") as file:
            fd = file.fileno()
            lines, _ = last_lines(fd, os.fstat(fd).st_size)
        if not lines or not is_rotated(lines[-1]):
            raise self._error(f"does not follow {path.name}: its end is missing")
        return self._next(EMPTY, lines[-1])

    def _next(self, before: AuditHead, line: bytes) -> AuditHead:
        try:
            here, prev, holds = self._sealer.unseal(line)
        except ValueError:
            holds = False
        if not holds or (before.seq and before != AuditHead(here.seq - 1, prev)):
            raise self._error("does not verify at its end")
        return here

    def write(self, fields: str) -> AuditHead:
        """Append a record, given as members of a JSON object; the file must be held.

        Raises:
            AuditError: The record cannot be written; no part of it is in the file.
        """
        head = self._write(fields)
        if self._end >= self._rotate_at:
            self._rotate()
        return head

    def _write(self, fields: str) -> AuditHead:
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
        # Quicker than by name, and there is one for each line.
        self.head = head = tuple.__new__(AuditHead, (before[0] + 1, digest))
        return head

    def _rotate(self) -> None:
        """Go on in a new file; this one is named by the number of its last record."""
        named = rotated_path(self._path, self.head.seq + 1)
        try:
            _link(self._path, named)
            following = _open_locked(self._next_path)
            try:
                self._write(self._record({"event": "rotated", "file": named.name}))
            except BaseException:
                os.close(following)
                raise
        except (OSError, AuditError) as error:
            # The log is whole, in one file; the next try is a file's size away.
            self._rotate_at = self._end + (self._rotate_bytes or 0)
            _logger.warning("%s cannot be rotated: %s", self._path, error)
            return
        self._replace(following)
        if self._keep_files is not None:
            self._prune(self._keep_files)

    def _replace(self, following: int) -> None:
        """Put the next file in the place of this one, which ends with `rotated`."""
        try:
            # A stored head of the next file says that all of this one is on the disk.
            os.fsync(self._fd)
            os.rename(self._next_path, self._path)
            _sync_folder(self._path.parent)
        except OSError as error:
            os.close(following)
            self._end = _UNKNOWN
            raise self._error(f"cannot be rotated: {error.strerror}") from error
        os.close(self._fd)
        self._fd, self._end = following, 0
        self._rotate_at = self._rotate_bytes or sys.maxsize

    def _open_next(self) -> None:
        """Open the file that follows this one, whose last record is `rotated`."""
        state = os.fstat(self._fd)
        if self._path.exists() and os.path.samestat(self._path.stat(), state):
            # The writer that rotated it died before it was done.
            _link(self._path, rotated_path(self._path, self.head.seq))
            self._replace(_open_locked(self._next_path))
            return
        rotated = self._fd
        try:
            self._open()
        except ConfigError as error:
            self._fd = rotated
            raise self._error("has no file after a rotated one") from error
        self._end = _UNKNOWN
        os.close(rotated)

    def _prune(self, keep_files: int) -> None:
        """Delete the oldest files, each after a record that says so is on the disk."""
        extra = rotated_files(self._path)[:-keep_files]
        try:
            for file in extra:
                members = {"event": "pruned", "file": file.name}
                head = str(self._last_head(file))
                self._write(self._record({**members, "head": head}))
            if extra:
                os.fsync(self._fd)
            for file in extra:
                file.unlink()
        except (OSError, AuditError) as error:
            _logger.warning("%s cannot be pruned: %s", self._path, error)

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


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _may_be_ours(fd: int, size: int, seq: int) -> bool:
    """Return whether a file without a whole line can be a torn first record."""
    first = b'{"seq":%d,' % seq
    start = os.pread(fd, len(first), 0)
    # After a loss of power a file may be as long as it should be, and empty.
    return size <= _MAX_FIRST_BYTES and (
        first.startswith(start) or not start.strip(b"\0")
    )


def _link(path: Path, named: Path) -> None:
    with suppress(FileExistsError):
        os.link(path, named, follow_symlinks=False)
    if not named.samefile(path):
        raise OSError(f"{named} is another file")


def _open_locked(path: Path) -> int:
    """Return a file that is empty and locked."""
    fd = os.open(path, FLAGS | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, TAKE)
    except BaseException:
        os.close(fd)
        raise
    return fd
