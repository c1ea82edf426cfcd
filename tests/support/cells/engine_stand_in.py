"""A Docker engine that answers what a host asks, and falls silent on request."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from ..polling import until

_ANSWERS: dict[str, Any] = {
    "/version": {"ApiVersion": "1.41"},
    "/info": {"Runtimes": {"runc": {}}, "DefaultRuntime": "runc"},
    "/images/": {"Id": "sha256:0", "Config": {}},
    "/containers/json": [],
    "/containers/create": {"Id": "made"},
    "/containers/made/attach": {},
    "/containers/made": {},
}


class StandIn(ThreadingMixIn, UnixStreamServer):
    """Answers each path of the API that begins as one in `_ANSWERS`.

    Args:
        place: Its Unix socket.
        silent_at: The paths that get no answer before `speak` is set.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, place: Path, *silent_at: str) -> None:
        self.address = f"unix://{place}"
        self.silent_at = silent_at
        self.asked: list[str] = []
        self.speak = threading.Event()
        super().__init__(str(place), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        version, _, rest = self.path.lstrip("/").partition("/")
        path = f"/{rest}" if version.startswith("v1.") else self.path
        self.server.asked.append(f"{self.command} {path.partition('?')[0]}")
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path.startswith(self.server.silent_at or ("-",)):
            self.server.speak.wait(60)
        found = next(_ANSWERS[key] for key in _ANSWERS if path.startswith(key))
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        return "a Unix socket"


@asynccontextmanager
async def engine(place: Path, *silent_at: str) -> AsyncIterator[StandIn]:
    """Serve as an engine until this is left, and nobody speaks to it any more."""
    with StandIn(place / "engine.sock", *silent_at) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.speak.set()
            await until(lambda: not is_asked())
            server.shutdown()
            thread.join()


def is_asked() -> bool:
    """Tell whether a thread of this process asks an engine, this one or another."""
    return any(each.name == "toolcell engine" for each in threading.enumerate())
