"""A process whose call waits: its memory, its folders and its descriptors.

All of it may change while it is looked at, and the thread may die and another process
get its id. So what is opened here is acted on only once `still_waits` has said,
afterwards, that the thread is the one that called.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct

from ..kernel import notification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Sequence

    from ..kernel.notification import Call

    Act = Callable[[], object]
    """Does a call, once its caller is known to be alive. The call then returns 0, as
    all of these do."""

AT_FDCWD = -100
GO_ON = object()
"""The value of an act that leaves the call to the kernel."""

PATH_BYTES = 4096
_OPENAT2 = 437
_NO_MAGIC_LINKS = 2
_OWN_DESCRIPTOR = re.compile(rb"/(?:proc/(self|thread-self|[0-9]+)|dev)/+fd/+([0-9]+)")
_STANDARD = {b"/dev/stdin": 0, b"/dev/stdout": 1, b"/dev/stderr": 2}
# Nobody has these but by a descriptor, and they are in no folder.
_NAMELESS = b"pipe:[", b"socket:["

_libc = ctypes.CDLL(None, use_errno=True)


class Later(Exception):
    """The call has to wait, and is to be tried again."""


class Caller:
    """Looks at the thread of a call. Its methods raise the call's OSError.

    Args:
        listener: That of the filter.
        call: The call that waits.
        folders: Real paths. What is beneath them may be changed.
    """

    def __init__(self, listener: int, call: Call, folders: Sequence[bytes]) -> None:
        self.thread: int = call.thread
        self._listener = listener
        self._call = call
        self._folders = folders
        self._opened: list[int] = []

    @property
    def waits(self) -> bool:
        """True if the thread is alive, so that its id still means it."""
        return notification.still_waits(self._listener, self._call)

    def answer(self, outcome: object) -> None:
        """Let the call return, or go on; close what was opened for it."""
        self.close()
        if outcome is GO_ON:
            notification.let_go_on(self._listener, self._call)
        else:
            notification.answer(self._listener, self._call)

    def fail(self, error: OSError) -> None:
        """Let the call fail; close what was opened for it."""
        self.close()
        number = error.errno or errno.EINVAL
        notification.answer(self._listener, self._call, error=number)

    def close(self) -> None:
        """Close all that was opened."""
        for fd in self._opened:
            os.close(fd)
        self._opened = []

    def memory(self, address: int, size: int) -> bytes:
        """Return bytes at an address: fewer at the end of what is mapped."""
        try:
            fd = os.open(f"/proc/{self.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise failed(errno.EPERM) from None
        try:
            return os.pread(fd, size, address)
        except (OSError, OverflowError):
            raise failed(errno.EFAULT) from None
        finally:
            os.close(fd)

    def exactly(self, address: int, size: int) -> bytes:
        """Return `size` bytes at an address."""
        found = self.memory(address, size) if size else b""
        if len(found) != size:
            raise failed(errno.EFAULT)
        return found

    def text(self, address: int, most: int, too_long: int) -> bytes:
        """Return what is before the NUL there, which is within `most` bytes."""
        found = self.memory(address, most)
        text, end, _ = found.partition(b"\0")
        if not end:
            raise failed(too_long if len(found) == most else errno.EFAULT)
        return text

    @property
    def process(self) -> int:
        """The id of the thread's process."""
        return int(self.field("Tgid"))

    def field(self, name: str) -> str:
        """Return a field of the thread's status."""
        try:
            with open(f"/proc/{self.thread}/status", encoding="utf-8") as file:
                for line in file:
                    key, _, value = line.partition(":")
                    if key == name:
                        return value.strip()
        except OSError:
            pass
        raise failed(errno.EPERM)

    def opened(self, number: int) -> int:
        """Open what a descriptor of the caller leads to, or its working directory."""
        where = "cwd" if number == AT_FDCWD else f"fd/{number}"
        try:
            fd = os.open(f"/proc/{self.thread}/{where}", os.O_PATH | os.O_CLOEXEC)
        except OSError as error:
            raise _unopened(error) from None
        return self._keep(fd)

    def descriptor(self, number: int) -> str:
        """Return a path of ours to a descriptor's file, which may be changed."""
        return self._changeable(self.opened(number))

    def path(
        self, number: int, address: int, *, follow: bool = True, empty: bool = False
    ) -> str:
        """Return a path of ours to the file that a path leads to.

        Args:
            number: The descriptor of the folder where it begins, or `AT_FDCWD`.
            address: Of the path.
            follow: False if a link at its end is itself meant.
            empty: True if an empty path means the descriptor's file.
        """
        path = self.text(address, PATH_BYTES, errno.ENAMETOOLONG)
        if not path and empty:
            return self.descriptor(number)
        return self.named(number, path, follow=follow)

    def named(self, number: int, path: bytes, *, follow: bool = True) -> str:
        """Do the same for a path that was read."""
        own = self._descriptor_of(path) if follow else None
        if own is not None:
            return self.descriptor(own)
        begin = AT_FDCWD if path.startswith(b"/") else self.opened(number)
        return self._changeable(self._keep(_resolve(begin, path, follow)))

    def link(self, number: int) -> str:
        """Return the name of what a descriptor of the caller leads to."""
        try:
            return os.readlink(f"/proc/{self.thread}/fd/{number}")
        except OSError as error:
            raise _unopened(error) from None

    def descriptor_flags(self, number: int) -> int:
        """Return what `fcntl` knows of a descriptor, with `O_CLOEXEC`."""
        try:
            with open(f"/proc/{self.thread}/fdinfo/{number}", "rb") as file:
                return int(file.read().split(b"flags:")[1].split()[0], 8)
        except OSError:
            raise failed(errno.EBADF) from None

    def replace(self, number: int, own: int, *, inheritable: bool) -> None:
        """Make a descriptor of the caller a copy of one of ours."""
        notification.replace_descriptor(
            self._listener, self._call, own, number, inheritable=inheritable
        )

    def _descriptor_of(self, path: bytes) -> int | None:
        """Return the caller's descriptor that a path names, if it does."""
        if path in _STANDARD:
            return _STANDARD[path]
        found = _OWN_DESCRIPTOR.fullmatch(path)
        if found is None:
            return None
        whose = found.group(1) or b"self"
        if whose.isdigit() and whose.decode() not in (
            str(self.thread),
            str(self.process),
        ):
            return None
        return int(found.group(2))

    def _changeable(self, fd: int) -> str:
        path = f"/proc/self/fd/{fd}"
        where = os.readlink(os.fsencode(path))
        beneath = any(
            where == folder or where.startswith(folder + b"/")
            for folder in self._folders
        )
        if not beneath and not where.startswith(_NAMELESS):
            raise failed(errno.EPERM)
        return path

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd


def failed(number: int) -> OSError:
    """Return the error of a call."""
    return OSError(number, os.strerror(number))


def _unopened(error: OSError) -> OSError:
    return failed(errno.EBADF if error.errno == errno.ENOENT else errno.EPERM)


def signed(argument: int) -> int:
    """Return an argument that is an `int`."""
    return struct.unpack("=i", struct.pack("=I", argument & 0xFFFF_FFFF))[0]  # type: ignore[no-any-return]


def _resolve(begin: int, path: bytes, follow: bool) -> int:
    """Open a path as a place, without any of /proc's links, which would be ours."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    how = struct.pack("=QQQ", flags, 0, _NO_MAGIC_LINKS)
    long = ctypes.c_long
    fd = _libc.syscall(long(_OPENAT2), long(begin), path, how, long(len(how)))
    if fd == -1:
        raise failed(ctypes.get_errno())
    return int(fd)
