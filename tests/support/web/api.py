"""An HTTP API on the loopback address that tells what it was sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NETWORKS = ("127.0.0.1/32",)


@dataclass(frozen=True)
class Sent:
    """A request as it came."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [text for key, text in self.headers if key.lower() == name.lower()]
        assert len(found) < 2, f"{name} came {len(found)} times"
        return found[0] if found else None


@dataclass
class WebAPI:
    """An API; `answers` has raw answers by the targets of requests."""

    url: str = ""
    requests: list[Sent] = field(default_factory=list)
    answers: dict[str, bytes] = field(default_factory=dict)
    held: threading.Event = field(default_factory=threading.Event)
    """While it is not set, `/hold` waits."""

    def answer(
        self, target: str, body: bytes, status: int = 200, **headers: str
    ) -> None:
        """Set an answer; `_` in the names of headers is written as `-`."""
        lines = [f"HTTP/1.1 {status} Whatever"]
        given = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        given |= {name.replace("_", "-"): text for name, text in headers.items()}
        lines += [f"{name}: {text}" for name, text in given.items()]
        self.answers[target] = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    @property
    def targets(self) -> list[str]:
        return [request.target for request in self.requests]


class _Handler(BaseHTTPRequestHandler):
    api: WebAPI

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = Sent(
            self.command, self.path, self.headers.items(), self.rfile.read(length)
        )
        self.api.requests.append(sent)
        self.close_connection = True
        if self.path == "/hold":
            self.api.held.wait(120)
        if self.path in self.api.answers:
            self.wfile.write(self.api.answers[self.path])
            return
        body = json.dumps({"method": sent.method, "target": sent.target}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _any

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@contextmanager
def web_api() -> Iterator[WebAPI]:
    """Serve an API; it answers with the method and the target of each request."""
    api = WebAPI()
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        api.held.set()
        server.shutdown()
        thread.join()
        server.server_close()


def operation(path: str = "/pets", method: str = "get", **more: Any) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document of one operation, `act`."""
    about = {"operationId": "act", "responses": {"200": {"description": "ok"}}}
    return document({path: {method: about | more}})


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document."""
    info = {"title": "An API", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, **more}


def given(name: str, where: str, **more: Any) -> dict[str, Any]:
    """Return a parameter; its schema takes any text, unless `schema` says another."""
    needed = {"required": True} if where == "path" else {}
    return {"name": name, "in": where, "schema": {"type": "string"}} | needed | more
