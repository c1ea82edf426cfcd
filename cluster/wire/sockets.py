"""Sockets of names: a name may have several addresses, of both families."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio

_BACKLOG = 1024
_AGAIN_SECONDS = 0.1
# A port that is free at one address may be taken at another.
_TRIES = 10
_NOT_OF_THIS_MACHINE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a name, with its port."""

    family: int
    place: tuple[Any, ...]

    def __str__(self) -> str:
        host, port = self.place[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def addresses_of(host: str, port: int) -> list[Address]:
    """Return the addresses of a name, each once. Raises OSError."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    each = {Address(int(family), place): None for family, _, _, _, place in found}
    return list(each)


async def connected(address: Address) -> socket.socket:
    """Return a new connection. Raises OSError."""
    plain = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        plain.setblocking(False)
        try:
            plain.connect(address.place)
        except BlockingIOError:
            await anyio.wait_writable(plain)
            if number := plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(number, os.strerror(number)) from None
    except BaseException:
        plain.close()
        raise
    return plain


async def listening(host: str, port: int) -> list[socket.socket]:
    """Return sockets that take connections: one for each address that a name has.

    An address that this machine does not have is left out, and a warning names it.

    Args:
        host: An address, or a name.
        port: The port at all of them; 0 takes one that is free.

    Raises:
        OSError: It cannot listen at one of them, or at none.
    """
    addresses = await addresses_of(host, port)
    for left in reversed(range(_TRIES)):
        try:
            return _listen(addresses, port)
        except OSError as error:
            if port or not left or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("the last try returns, or raises")


def _listen(addresses: list[Address], port: int) -> list[socket.socket]:
    made: list[socket.socket] = []
    with ExitStack() as stack:
        missing: OSError | None = None
        for address in addresses:
            where = Address(
                address.family, (address.place[0], port, *address.place[2:])
            )
            try:
                listener = _listener(where)
            except OSError as error:
                problem = OSError(error.errno, f"{where}: {error.strerror}")
                if error.errno not in _NOT_OF_THIS_MACHINE:
                    raise problem from None
                missing = problem
                _log.warning("the node does not listen at %s", problem.strerror)
                continue
            made.append(stack.enter_context(listener))
            port = port or listener.getsockname()[1]
        if missing is not None and not made:
            raise missing
        stack.pop_all()
    return made


def _listener(address: Address) -> socket.socket:
    place: Any = address.place
    listener = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            # The addresses of IPv4 have their own sockets.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


async def accept(
    listener: socket.socket, serve: Callable[[socket.socket], Coroutine[Any, Any, None]]
) -> None:
    """Serve each connection in its own task, for ever."""
    async with anyio.create_task_group() as tasks:
        while True:
            await anyio.wait_readable(listener)
            try:
                plain, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                _log.warning("a connection could not be taken: %s", error)
                await anyio.sleep(_AGAIN_SECONDS)
                continue
            tasks.start_soon(serve, plain)
