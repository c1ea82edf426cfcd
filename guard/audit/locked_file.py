"""A file of which one thread of one process at a time is the writer."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from abc import abstractmethod
from pathlib import Path
from typing import Self

from toolcell.core import AuditError, ConfigError
from toolcell.core.storage.forks import ForkAware

LOCK_SECONDS = 2.0
"""Longest wait for other writers of the file. When it is over, `AuditError`."""

FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
FLAGS |= os.O_NONBLOCK  # A pipe in its place is refused, and not waited for.
TAKE = fcntl.LOCK_EX | fcntl.LOCK_NB
_BRIEF_SECONDS = 0.001
_LOCK_PAUSE = 0.000_2


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
