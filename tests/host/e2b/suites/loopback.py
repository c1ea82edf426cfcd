"""Names of a domain lead to a server on loopback, by TLS, with no other network.

Clients of the sandbox API then find sandboxes by name, as E2B's own tests do.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path
from typing import cast

_MARK = "TOOLCELL_ON_LOOPBACK"
_LOOPBACK = b"\x7f\0\0\1"
_RESET = struct.pack("ii", 1, 0)


def enter() -> None:
    """Start this program again where loopback is the only network, unless it is there.

    It needs root, or user namespaces.
    """
    if _MARK not in os.environ:
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        os.environ[_MARK] = "1"
        unshare = ["unshare", *user, "--net", "--mount", "--", sys.executable]
        os.execvp("unshare", [*unshare, *sys.argv])


def prepare(folder: Path) -> None:
    """Bring loopback up, and let it answer for names; `enter` was called."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    resolver = folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)


def certificate(folder: Path, domain: str) -> Path:
    """Return a new certificate of a domain and its names, with its key, in one file."""
    both = folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={domain}", "-keyout", both, "-out", both),
            *("-addext", f"subjectAltName=DNS:{domain},DNS:*.{domain}"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
        ],
        check=True,
        capture_output=True,
    )
    return both


class _Names(asyncio.DatagramProtocol):
    """A name server that knows one domain."""

    def __init__(self, domain: str) -> None:
        self._end = b"".join(
            bytes([len(part)]) + part.encode() for part in domain.split(".")
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        end = data.index(b"\0", 12)
        question = data[12 : end + 5]
        is_known = data[12:end].lower().endswith(self._end)
        is_asked = is_known and int.from_bytes(data[end + 1 : end + 3], "big") == 1
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + _LOOPBACK if is_asked else b""
        head = data[:2] + (b"\x81\x80" if is_known else b"\x81\x83")
        counts = b"\0\1" + bytes([0, int(is_asked)]) + bytes(4)
        self._transport.sendto(head + counts + question + answer, address)


async def serve(domain: str, certificate: Path, port: int) -> None:
    """Answer for a domain, and lead its connections to a port, until cancelled."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def connected(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            up, down = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, down))
                tasks.create_task(_copy(up, writer))
        except* OSError:
            pass

    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(
        lambda: _Names(domain), local_addr=("127.0.0.1", 53)
    )
    server = await asyncio.start_server(connected, "127.0.0.1", 443, ssl=context)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionResetError:
        if not writer.is_closing():
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
    finally:
        writer.close()
