"""Connections: beneath the cell's folders, to its servers, and to the host's proxy.

The address of `connect` and `bind` is in memory, so the call is done here: on the
caller's own socket where the kernel lets us have it, else on a new one that takes the
place of its descriptor. Options of the one that is replaced are lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct

from ..kernel import linux
from ..kernel.descriptors import send_fds
from ..wire.contract import LOOPBACK
from .caller import AT_FDCWD, Later, failed, signed
from .ports import Ports, is_own, read_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from .caller import Act, Caller

    Step = Callable[[socket.socket], None]

_ADDRESS_BYTES = 128
_PIDFD_GETFD = 438
# Somebody else may come to the listener first.
_STRANGERS = 16
_JOIN_SECONDS = 0.5
_REMEMBERED, _MAX_BOUND = 4096, 64

_libc = ctypes.CDLL(None, use_errno=True)


class Sockets:
    """Does the calls about sockets.

    Nothing listens for connections to the proxy, since others on the machine could come
    there: for each port of a relay there is a socket that takes the other ends.

    Args:
        supervisor: The process whose descendants the programs are.
    """

    def __init__(self, supervisor: int) -> None:
        self.ports = Ports(supervisor)
        self.relays: dict[int, socket.socket] = {}
        """The sockets of relays, by the ports that programs connect to."""

        # What was done to the latest sockets, by their name in /proc.
        self._done: dict[str, str] = {}
        # The latest that were bound and do not listen yet: this process has them, too.
        self._bound: dict[str, socket.socket] = {}

    def connect(self, caller: Caller, *arguments: int) -> Act:
        number, name = signed(arguments[0]), _socket_name(caller, arguments[0])
        if self._done.get(name) == "connect":
            raise failed(errno.EISCONN)
        address = _address(caller, arguments)
        [family] = struct.unpack_from("=H", address)
        if family == socket.AF_UNIX:
            target = _beneath(caller, _path(address, errno.ECONNREFUSED))
            return lambda: self._do(
                caller, number, family, "connect", lambda own: own.connect(target)
            )
        host, port = read_address(address)
        if not is_own(host):
            raise failed(errno.ENETUNREACH)

        def step(own: socket.socket) -> None:
            if port in self.relays:
                _join(own, self.relays[port])
            else:
                self.ports.connect(own, port)

        return lambda: self._do(caller, number, family, "connect", step)

    def bind(self, caller: Caller, *arguments: int) -> Act:
        number, name = signed(arguments[0]), _socket_name(caller, arguments[0])
        if name in self._done:
            raise failed(errno.EINVAL)
        address = _address(caller, arguments)
        [family] = struct.unpack_from("=H", address)
        if family != socket.AF_UNIX:
            return self._bind_port(caller, number, family, address)
        path = _path(address, errno.EACCES)
        _beneath(caller, os.path.dirname(path) or b".")
        begin = caller.opened(AT_FDCWD)
        umask = int(caller.field("Umask"), 8)

        def step(own: socket.socket) -> None:
            # By the path as it was given, since that becomes the socket's name; it is
            # Landlock that keeps this process from making a socket elsewhere.
            os.fchdir(begin)
            os.umask(umask)
            try:
                own.bind(path)
            finally:
                os.chdir("/")

        return lambda: self._do(caller, number, family, "bind", step)

    def _bind_port(
        self, caller: Caller, number: int, family: int, address: bytes
    ) -> Act:
        host, port = read_address(address)
        if not is_own(host):
            raise failed(errno.EADDRNOTAVAIL)
        if port in self.relays:
            raise failed(errno.EADDRINUSE)
        return lambda: self._do(
            caller, number, family, "bind", lambda own: self.ports.bind(own, port)
        )

    def open(self, port: int) -> socket.socket:
        """Return a connection to a server of the cell. Raises OSError."""
        own = socket.socket()
        try:
            own.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                self.ports.connect(own, port)
        except OSError:
            own.close()
            raise
        return own

    def listen(self, caller: Caller, *arguments: int) -> Act:
        """Let bound sockets listen. Others of TCP would get a port of the machine."""
        name, backlog = _socket_name(caller, arguments[0]), signed(arguments[1])
        if self._done.get(name) != "bind":
            raise failed(errno.EACCES)

        def act() -> None:
            # It stays the caller's alone. A second call changes nothing.
            bound = self._bound.pop(name, None)
            if bound is not None:
                with bound:
                    bound.listen(backlog)

        return act

    def _do(
        self, caller: Caller, number: int, family: int, call: str, step: Step
    ) -> None:
        flags = caller.descriptor_flags(number)
        waits = not flags & os.O_NONBLOCK
        own = _callers_socket(caller, number)
        if own is not None:
            with own:
                _attempt(own, step, waits)
                self._remember(own, call)
            return
        with socket.socket(family, socket.SOCK_STREAM) as new:
            if family != socket.AF_UNIX:
                # It is the one option that is often set before `connect`.
                new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            inheritable = not flags & os.O_CLOEXEC
            try:
                _attempt(new, step, waits)
            except BlockingIOError as error:
                if error.errno == errno.EINPROGRESS:
                    # The caller waits for it by other calls.
                    caller.replace(number, new.fileno(), inheritable=inheritable)
                raise
            caller.replace(number, new.fileno(), inheritable=inheritable)
            self._remember(new, call)

    def _remember(self, own: socket.socket, call: str) -> None:
        if len(self._done) >= _REMEMBERED:
            del self._done[next(iter(self._done))]
        name = os.readlink(f"/proc/self/fd/{own.fileno()}")
        self._done[name] = call
        if call == "bind":
            self._bound[name] = own.dup()
            if len(self._bound) > _MAX_BOUND:
                oldest = next(iter(self._bound))
                self._bound.pop(oldest).close()
                self._done.pop(oldest, None)


def _join(own: socket.socket, relay: socket.socket) -> None:
    """Connect a socket to this process, and give the other end to a relay."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(_STRANGERS)
        own.connect_ex(listener.getsockname())
        for _ in range(_STRANGERS):
            if not select.select([listener], [], [], _JOIN_SECONDS)[0]:
                break
            other, peer = listener.accept()
            with other:
                if peer == own.getsockname():
                    return _hand_over(other, relay)
    raise failed(errno.ETIMEDOUT)


def _hand_over(other: socket.socket, relay: socket.socket) -> None:
    try:
        send_fds(relay, b"c", [other.fileno()])
    except OSError:
        # It has ended, or takes no more for now.
        raise failed(errno.ECONNREFUSED) from None


def _socket_name(caller: Caller, number: int) -> str:
    name = caller.link(signed(number))
    if not name.startswith("socket:["):
        raise failed(errno.ENOTSOCK)
    return name


def _address(caller: Caller, arguments: tuple[int, ...]) -> bytes:
    size = signed(arguments[2])
    if not 2 <= size <= _ADDRESS_BYTES:
        raise failed(errno.EINVAL)
    return caller.exactly(arguments[1], size)


def _path(address: bytes, nameless: int) -> bytes:
    """Return the path in an address; `nameless` is the error if there is none."""
    path = address[2:].partition(b"\0")[0]
    if not path:
        raise failed(nameless)
    return path


def _beneath(caller: Caller, path: bytes) -> str:
    """Return our path to what lies beneath the cell's folders."""
    try:
        return caller.named(AT_FDCWD, path)
    except PermissionError:
        raise failed(errno.EACCES) from None


def _attempt(own: socket.socket, step: Step, waits: bool) -> None:
    """Do a step that may have to wait, without waiting here.

    Args:
        own: The socket.
        step: Raises BlockingIOError when it would have to wait.
        waits: True if the caller waits, and false if it wants that error.
    """
    own.setblocking(False)
    try:
        step(own)
    except BlockingIOError:
        if waits:
            raise Later from None
        raise
    finally:
        own.setblocking(waits)


def _callers_socket(caller: Caller, number: int) -> socket.socket | None:
    """Return the caller's socket, or None where the kernel, or an engine, refuses."""
    long = ctypes.c_long
    process = linux.pidfd_open(caller.process)
    try:
        fd = _libc.syscall(long(_PIDFD_GETFD), long(process), long(number), long(0))
    finally:
        os.close(process)
    return None if fd == -1 else socket.socket(fileno=fd)
