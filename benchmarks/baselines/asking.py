"""A client that asks a server the same for ever, on many connections at once.

Standard input has JSON: the port, and for each connection a list of requests, which
it makes in turns. A line is printed once each connection had an answer.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import threading
import time
from typing import Any

_REST_SECONDS = 0.01


def ask(port: int, requests: list[dict[str, Any]], answered: threading.Barrier) -> None:
    """Make the requests of one connection for ever."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for number, request in enumerate(itertools.cycle(requests)):
        try:
            connection.request(**request)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            # The server closed it, as it may; the next request opens a new one.
            connection.close()
            time.sleep(_REST_SECONDS)
        if number == 0:
            answered.wait()


def main() -> None:
    """Ask on all connections until the process is killed."""
    given = json.load(sys.stdin)
    connections = given["connections"]
    answered = threading.Barrier(len(connections) + 1)
    for requests in connections:
        work = (given["port"], requests, answered)
        threading.Thread(target=ask, args=work, daemon=True).start()
    answered.wait()
    print("asked", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
