"""Ports of a cell's servers, on a loopback interface that others share.

A server gets a port of the machine's that nobody asked for, and a key of the cell's:
the kernel then drops each packet that is not signed with it (TCP_MD5SIG, RFC 2385).
Programs connect through the notifier, which has the key and knows the port. It keeps
the server's socket as well, so that no one else has this port while the cell can come
there; a look at the programs' descriptors says when they have closed it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct

from ..kernel import process_tree
from ..wire.contract import LOOPBACK
from .caller import failed

_OWN = ("0.0.0.0", "::", "::1")  # noqa: S104
# Servers of both families listen at one address of the machine.
_MAPPED = "::ffff:"
_MAX_SERVERS = 64
_TRIES = 16
_MD5SIG_EXT, _HAS_PREFIX, _EVERYBODY = 32, 1, 0
_ADDRESS_BYTES, _KEY_BYTES = 128, 80
_CLOSED = 7
"""Of `TCP_INFO`: the state of a socket that was not connected yet."""


class Ports:
    """The ports that programs of one cell have bound.

    Args:
        supervisor: The process whose descendants the programs are.
    """

    def __init__(self, supervisor: int) -> None:
        self._supervisor = supervisor
        self._key = os.urandom(_KEY_BYTES)
        self._servers: list[_Server] = []

    def __len__(self) -> int:
        return len(self._servers)

    def bind(self, own: socket.socket, port: int) -> None:
        """Give a program's socket a port that only this cell comes to.

        Args:
            own: Unbound.
            port: The one that programs call it by; 0 for that of the machine.

        Raises:
            OSError: The port is taken, there are too many, or the kernel cannot sign.
        """
        taken = self._server_at(port, own.family) if port else None
        if taken and (taken.port, taken.family) == (port, own.family):
            raise failed(errno.EADDRINUSE)
        if len(self) >= _MAX_SERVERS:
            self.forget_closed()
        if len(self) >= _MAX_SERVERS:
            raise failed(errno.EADDRNOTAVAIL)
        self._sign(own)
        real = _bind_anywhere(own)
        self._servers.append(_Server(own, port or real, real))

    def connect(self, own: socket.socket, port: int) -> None:
        """Connect a socket, which does not block, to a server of the cell.

        Raises:
            BlockingIOError: It is being connected.
            OSError: There is none.
        """
        server = self._server_at(port, own.family)
        if server is None or not server.listens:
            raise failed(errno.ECONNREFUSED)
        if own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED:
            self._sign(own)
        code = own.connect_ex(_address(own, server.real))
        if code in (errno.EINPROGRESS, errno.EALREADY):
            if not select.select([], [own], [], 0)[1]:
                raise failed(errno.EINPROGRESS)
            code = own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code not in (0, errno.EISCONN):
            raise failed(code)

    def forget_closed(self) -> None:
        """Let go of servers that no program has any more."""
        for server in list(self._servers):
            self._is_held(server)

    def _server_at(self, port: int, family: int) -> _Server | None:
        """Return the server at a port, by either of its numbers."""
        there = [
            server for server in self._servers if port in (server.port, server.real)
        ]
        there.sort(key=lambda each: (each.port != port, each.family != family))
        return next(filter(self._is_held, there), None)

    def _is_held(self, server: _Server) -> bool:
        if server.is_held_below(self._supervisor):
            return True
        self._servers.remove(server)
        server.close()
        return False

    def _sign(self, own: socket.socket) -> None:
        """Have a socket sign all that it sends, and take nothing else."""
        try:
            if own.family == socket.AF_INET6:
                own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            signature = _signature(own.family, self._key)
            own.setsockopt(socket.IPPROTO_TCP, _MD5SIG_EXT, signature)
        except OSError:
            raise failed(errno.EACCES) from None


class _Server:
    """A bound socket of a program.

    Args:
        own: The socket; it is copied.
        port: What programs call its port.
        real: Its port on the machine.
    """

    def __init__(self, own: socket.socket, port: int, real: int) -> None:
        self._socket = own.dup()
        self._name = os.readlink(f"/proc/self/fd/{own.fileno()}")
        self._seen = ""
        self.family, self.port, self.real = own.family, port, real
        self.close = self._socket.close

    @property
    def listens(self) -> bool:
        """True unless it was only bound, or shut down: nobody would answer."""
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    def is_held_below(self, supervisor: int) -> bool:
        """Return True if a process has the socket, where it was seen last or anywhere.

        One that is in a message between two processes is seen nowhere.
        """
        if self._leads_here(self._seen):
            return True
        for pid in process_tree.descendants(supervisor):
            folder = f"/proc/{pid}/fd"
            with contextlib.suppress(OSError):
                for number in os.listdir(folder):
                    if self._leads_here(f"{folder}/{number}"):
                        self._seen = f"{folder}/{number}"
                        return True
        return False

    def _leads_here(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            return os.readlink(path) == self._name
        return False


def read_address(address: bytes) -> tuple[str, int]:
    """Return host and port of an address of IPv4 or IPv6. Raises OSError."""
    [family] = struct.unpack_from("=H", address)
    sizes = {socket.AF_INET: (4, 8), socket.AF_INET6: (8, 24)}
    if family not in sizes:
        raise failed(errno.EAFNOSUPPORT)
    begin, end = sizes[family]
    if len(address) < end:
        raise failed(errno.EINVAL)
    host = socket.inet_ntop(family, address[begin:end])
    [port] = struct.unpack_from("!H", address, 2)
    return host[len(_MAPPED) :] if host.startswith(_MAPPED) else host, port


def is_own(host: str) -> bool:
    """Return True if a server of the cell may have an address."""
    return host in _OWN or host.startswith("127.")


def _address(own: socket.socket, port: int) -> tuple[str, int]:
    return (_MAPPED if own.family == socket.AF_INET6 else "") + LOOPBACK, port


def _bind_anywhere(own: socket.socket) -> int:
    """Bind to a free port by its number, and return it.

    A port that the kernel chose would be free again when the program shuts its socket
    down; the cell would then come to whoever takes it next.
    """
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port: int = probe.getsockname()[1]
        try:
            own.bind(_address(own, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return port
    raise failed(errno.EADDRINUSE)


def _signature(family: int, key: bytes) -> bytes:
    """Return a `struct tcp_md5sig` of a key for all addresses of IPv4."""
    address = struct.pack("=H", family)
    if family == socket.AF_INET6:
        # Port and flow, and the prefix of mapped addresses.
        address += bytes(6 + 10) + b"\xff\xff"
    fields = struct.pack("=BBHi", _HAS_PREFIX, _EVERYBODY, len(key), 0)
    return address.ljust(_ADDRESS_BYTES, b"\0") + fields + key
