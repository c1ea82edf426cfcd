"""A small web server on loopback, with and without TLS, that remembers who came."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from ...conftest import missing

NAME = "api.example.test"
"""The name in the server's certificate."""

BLOCK = b"0123456789abcdef" * 4096


async def resolve_here(host: str, port: int) -> list[str]:
    """Lead each name to this machine: a resolver for a sandbox."""
    return ["127.0.0.1"]


@dataclass
class Site:
    """A running server."""

    port: int
    certificate: str = ""
    """PEM text that clients have to trust; empty without TLS."""

    hits: list[str] = field(default_factory=list)
    """Method, Host header and path of each request."""

    go_on: threading.Event = field(default_factory=threading.Event)
    """Lets what waits go on."""

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{NAME}:{self.port}"

    @property
    def rules(self) -> list[str]:
        """The rules of a network that reaches it, where `NAME` leads here."""
        return [f"{NAME}:{self.port}", f"127.0.0.1:{self.port}"]


class Handler(BaseHTTPRequestHandler):
    """`/big/N` is N bytes, `/to/URL` redirects, `/slow` waits, `/endless` goes on,
    `/wide` has a header of 40,000 bytes, `/silent` is not answered.

    An upgrade to a WebSocket is an echo: of messages, or of bytes without a key.
    """

    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        self.site.hits.append(f"{self.command} {self.headers['Host']} {self.path}")
        if self.headers["Sec-WebSocket-Key"]:
            self.converse()
        elif self.headers["Upgrade"] == "websocket":
            self.echo()
        elif self.path.startswith("/to/"):
            self.answer(b"", 302, Location=self.path[4:])
        elif self.path.startswith("/big/"):
            self.send(int(self.path[5:]))
        elif self.path == "/slow":
            self.head(200, 3)
            self.wfile.write(b"1")
            self.site.go_on.wait()
            self.wfile.write(b"23")
        elif self.path == "/wide":
            self.answer(b"wide", Wide="x" * 40_000)
        elif self.path == "/silent":
            self.close_connection = True
        elif self.path == "/endless":
            self.send(2**60)
        else:
            self.answer(f"hello {self.path}".encode())

    def echo(self) -> None:
        """Open what a client takes for a WebSocket, and send back its bytes."""
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.end_headers()
        while data := self.rfile.read1(65_536):
            self.wfile.write(data)
        self.close_connection = True

    def converse(self) -> None:
        """Open a WebSocket, and send back its messages of text."""
        socket, data = ServerProtocol(), f"{self.requestline}\r\n".encode()
        for name, value in self.headers.items():
            data += f"{name}: {value}\r\n".encode()
        data += b"\r\n"
        while data:
            socket.receive_data(data)
            for event in socket.events_received():
                if isinstance(event, Request):
                    socket.send_response(socket.accept(event))
                elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                    socket.send_text(event.data)
            for answer in socket.data_to_send():
                self.wfile.write(answer)
            data = self.rfile.read1(65_536)
        self.close_connection = True

    def do_POST(self) -> None:
        self.site.hits.append(f"{self.command} {self.headers['Host']} {self.path}")
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        while left:
            data = self.rfile.read(min(left, 65_536))
            left -= len(data)
            digest.update(data)
        self.answer(digest.hexdigest().encode())

    def send(self, size: int) -> None:
        self.head(200, size)
        while size:
            part = BLOCK[:size]
            self.wfile.write(part)
            size -= len(part)

    def head(self, status: int, size: int, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.head(status, len(body), **headers)
        self.wfile.write(body)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


class Server(ThreadingHTTPServer):
    """Its threads are waited for; what clients do wrong is not printed."""

    daemon_threads = False
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """Be quiet."""


def secure(server: HTTPServer, certificate: Path) -> str:
    """Give a server TLS; return the PEM text that its clients have to trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    return certificate.read_text().partition("-----BEGIN PRIVATE")[0]


@contextlib.contextmanager
def running(server: HTTPServer) -> Iterator[None]:
    """Serve from a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def serving(certificate: Path | None = None) -> Iterator[Site]:
    """Serve on a free port of 127.0.0.1.

    Args:
        certificate: Of `self_signed`; None serves without TLS.
    """
    handler: Any = type("Bound", (Handler,), {})
    server = Server(("127.0.0.1", 0), handler)
    site = handler.site = Site(server.server_port)
    if certificate is not None:
        site.certificate = secure(server, certificate)
    with running(server):
        try:
            yield site
        finally:
            site.go_on.set()


def self_signed(folder: Path) -> Path:
    """Make a certificate for `NAME` with its key behind it, in one file."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
        *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
        *("-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={NAME}"),
        *("-addext", f"subjectAltName=DNS:{NAME},DNS:*.example.test"),
    )
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        missing("there is no openssl command")
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate
