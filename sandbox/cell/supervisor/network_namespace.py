"""A network namespace that is given up once a program has used it."""

from __future__ import annotations

import contextlib
import os
import re

from ..kernel import linux

_FILES = (
    "dev",
    "snmp",
    "netstat",
    "sockstat",
    "snmp6",
    "sockstat6",
    "ipv6_route",
    "rt_cache",
)
_MAX_BYTES = 65_536
# Numbers of the whole machine, which stand among those of the namespace.
_OF_THE_MACHINE = re.compile(rb"(?:orphan|alloc|mem) \d+")


class NetworkNamespace:
    """All that this process's network namespace shows of its use by programs.

    Their sockets are closed by now. What lasts (ports in TIME_WAIT, metrics of peers,
    routes) takes a packet or a look for a route, and both are counted. A kernel that
    has one of the files has no other account of it.
    """

    def __init__(self) -> None:
        self._files = []
        for name in _FILES:
            with contextlib.suppress(FileNotFoundError):
                self._files.append(os.open(f"/proc/self/net/{name}", os.O_RDONLY))
        self._before = self._read()

    def _read(self) -> list[bytes]:
        return [os.pread(file, _MAX_BYTES, 0) for file in self._files]

    def renewed(self, settings: int) -> NetworkNamespace:
        """Return this one if nothing differs since it was made, else a new one.

        Args:
            settings: As for `linux.bring_up_loopback`.

        Raises:
            OSError: The kernel makes no new namespace.
        """
        found = self._read()
        if found == self._before or _own(found) == _own(self._before):
            return self
        linux.unshare(linux.CLONE_NEWNET)
        linux.bring_up_loopback(settings)
        for file in self._files:
            os.close(file)
        return NetworkNamespace()


def _own(files: list[bytes]) -> list[bytes]:
    """Return what files say of the namespace alone."""
    return [_OF_THE_MACHINE.sub(b"", text) for text in files]
