"""A server that keeps the requests that come, and shows what they sent."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from toolcell.sandbox import Network

from .web_server import Server, running, secure


class Mirror(BaseHTTPRequestHandler):
    """Keeps the requests that come, and shows them in its answers in many ways."""

    protocol_version = "HTTP/1.1"
    heads: list[str]
    port: int
    value: str

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self.heads.append(f"{self.command} {self.path}\n{self.headers}{body!r}")
        if self.path.startswith("/repo.git/"):
            self.repository()
            return
        sent = self.headers.get("Authorization", "none").rpartition(" ")[2]
        show = self.path.strip("/").partition("?")[0]
        text = sent.encode()
        ways = {
            "base64": base64.b64encode(b"ab" + text),
            "hex": text.hex().encode(),
            "value": self.value.encode(),
        }
        text = ways.get(show, text)
        self.send_response(206 if show == "piece" else 200, f"OK {sent}")
        self.send_header("X-Shown", f"you sent {sent}")
        if show == "gzip":
            self.send_header("Content-Encoding", "gzip")
        if show == "pieces":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for byte in text:
                self.wfile.write(b"1\r\n%c\r\n" % byte)
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def repository(self) -> None:
        """Answer as a repository of git's older protocol, to those who log in."""
        is_head = self.path.endswith("/HEAD")
        text = (
            b"ref: refs/heads/main\n" if is_head else b"1" * 40 + b"\trefs/heads/main\n"
        )
        knows = "Authorization" in self.headers
        self.send_response(200 if knows else 401)
        self.send_header("WWW-Authenticate", "Basic")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


def inspected(host: str, certificate: Path) -> Network:
    """Return a network with a host at 127.0.0.1 whose HTTPS is inspected."""
    port = host.rpartition(":")[2]
    return Network(
        mode="guarded",
        hosts=(host, f"127.0.0.1:{port}"),
        inspect=(host,),
        server_ca=str(certificate),
    )


def credential_of(file: Path, host: str, **more: Any) -> Any:
    """Return the credential of the agent `builder` whose value is in a file."""
    return {
        "name": "api",
        "value": f"file:{file}",
        "hosts": [host],
        "agents": ["builder"],
        "variable": "API_TOKEN",
        **more,
    }


@contextmanager
def mirroring(certificate: Path | None, value: str) -> Iterator[type[Mirror]]:
    """Serve on a free port of 127.0.0.1; `/value` shows the value.

    Args:
        certificate: Of `self_signed`; None serves without TLS.
        value: What `/value` shows.
    """
    handler: Any = type("Bound", (Mirror,), {"heads": [], "value": value})
    server = Server(("127.0.0.1", 0), handler)
    handler.port = server.server_port
    if certificate is not None:
        secure(server, certificate)
    with running(server):
        yield handler
