"""Modes, owners, times and extended attributes of files, and truncation by path.

Landlock does not bound these calls, and where cells share a user the kernel would let
each change what belongs to the others and to the host.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from .caller import AT_FDCWD, failed, signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .caller import Act, Caller

_AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = 0x100, 0x1000
_NAME_BYTES, _VALUE_BYTES = 256, 65_536
_TIMESPECS = struct.Struct("@qqqq")
_SECONDS = struct.Struct("@qq")

_libc = ctypes.CDLL(None, use_errno=True)


def chmod(caller: Caller, *arguments: int) -> Act:
    return _mode(caller.path(AT_FDCWD, arguments[0]), arguments[1])


def fchmod(caller: Caller, *arguments: int) -> Act:
    return _mode(caller.descriptor(signed(arguments[0])), arguments[1])


def fchmodat(caller: Caller, *arguments: int) -> Act:
    return _mode(caller.path(signed(arguments[0]), arguments[1]), arguments[2])


def fchmodat2(caller: Caller, *arguments: int) -> Act:
    return _mode(_by_flags(caller, arguments, arguments[3]), arguments[2])


def chown(caller: Caller, *arguments: int) -> Act:
    return _owner(caller.path(AT_FDCWD, arguments[0]), *arguments[1:3])


def lchown(caller: Caller, *arguments: int) -> Act:
    path = caller.path(AT_FDCWD, arguments[0], follow=False)
    return _owner(path, *arguments[1:3])


def fchown(caller: Caller, *arguments: int) -> Act:
    return _owner(caller.descriptor(signed(arguments[0])), *arguments[1:3])


def fchownat(caller: Caller, *arguments: int) -> Act:
    return _owner(_by_flags(caller, arguments, arguments[4]), *arguments[2:4])


def utimensat(caller: Caller, *arguments: int) -> Act:
    times = caller.exactly(arguments[2], _TIMESPECS.size) if arguments[2] else None
    if arguments[1] or signed(arguments[0]) == AT_FDCWD:
        return _times(_by_flags(caller, arguments, arguments[3]), times)
    if arguments[3]:
        raise failed(errno.EINVAL)
    return _times(caller.descriptor(signed(arguments[0])), times)


def futimesat(caller: Caller, *arguments: int) -> Act:
    times = _of_microseconds(caller, arguments[2])
    if arguments[1]:
        return _times(caller.path(signed(arguments[0]), arguments[1]), times)
    return _times(caller.descriptor(signed(arguments[0])), times)


def utimes(caller: Caller, *arguments: int) -> Act:
    times = _of_microseconds(caller, arguments[1])
    return _times(caller.path(AT_FDCWD, arguments[0]), times)


def utime(caller: Caller, *arguments: int) -> Act:
    times = None
    if arguments[1]:
        seconds = _SECONDS.unpack(caller.exactly(arguments[1], _SECONDS.size))
        times = _TIMESPECS.pack(seconds[0], 0, seconds[1], 0)
    return _times(caller.path(AT_FDCWD, arguments[0]), times)


def setxattr(caller: Caller, *arguments: int) -> Act:
    return _set_attribute(caller, caller.path(AT_FDCWD, arguments[0]), arguments)


def lsetxattr(caller: Caller, *arguments: int) -> Act:
    path = caller.path(AT_FDCWD, arguments[0], follow=False)
    return _set_attribute(caller, path, arguments)


def fsetxattr(caller: Caller, *arguments: int) -> Act:
    path = caller.descriptor(signed(arguments[0]))
    return _set_attribute(caller, path, arguments)


def removexattr(caller: Caller, *arguments: int) -> Act:
    path = caller.path(AT_FDCWD, arguments[0])
    return _remove_attribute(path, _name(caller, arguments[1]))


def lremovexattr(caller: Caller, *arguments: int) -> Act:
    path = caller.path(AT_FDCWD, arguments[0], follow=False)
    return _remove_attribute(path, _name(caller, arguments[1]))


def fremovexattr(caller: Caller, *arguments: int) -> Act:
    path = caller.descriptor(signed(arguments[0]))
    return _remove_attribute(path, _name(caller, arguments[1]))


def truncate(caller: Caller, *arguments: int) -> Act:
    path = caller.path(AT_FDCWD, arguments[0])
    [length] = struct.unpack("=q", struct.pack("=Q", arguments[1]))
    return lambda: os.truncate(path, length)


def _by_flags(caller: Caller, arguments: tuple[int, ...], flags: int) -> str:
    if flags & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
        raise failed(errno.EINVAL)
    return caller.path(
        signed(arguments[0]),
        arguments[1],
        follow=not flags & _AT_SYMLINK_NOFOLLOW,
        empty=bool(flags & _AT_EMPTY_PATH),
    )


def _mode(path: str, mode: int) -> Act:
    return lambda: os.chmod(path, mode & 0o7777)


def _owner(path: str, user: int, group: int) -> Act:
    return lambda: os.chown(path, signed(user), signed(group))


def _of_microseconds(caller: Caller, address: int) -> bytes | None:
    if not address:
        return None
    times = _TIMESPECS.unpack(caller.exactly(address, _TIMESPECS.size))
    if not all(0 <= part < 1_000_000 for part in times[1::2]):
        raise failed(errno.EINVAL)
    return _TIMESPECS.pack(times[0], times[1] * 1000, times[2], times[3] * 1000)


def _times(path: str, times: bytes | None) -> Act:
    """Set both times, as the kernel takes them: it knows "now" and "unchanged"."""

    def act() -> None:
        if _libc.utimensat(AT_FDCWD, path.encode(), times, 0):
            raise failed(ctypes.get_errno())

    return act


def _name(caller: Caller, address: int) -> bytes:
    return caller.text(address, _NAME_BYTES, errno.ERANGE)


def _set_attribute(caller: Caller, path: str, arguments: tuple[int, ...]) -> Act:
    _, name, value, size, flags = arguments[:5]
    if size > _VALUE_BYTES:
        raise failed(errno.E2BIG)
    key, data = _name(caller, name), caller.exactly(value, size)
    return lambda: os.setxattr(path, key, data, signed(flags))


def _remove_attribute(path: str, name: bytes) -> Act:
    return lambda: os.removexattr(path, name)
