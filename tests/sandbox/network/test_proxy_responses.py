"""Plain HTTP responses that pass through the proxy."""

from __future__ import annotations

import pytest

from toolcell.sandbox.network.http_request import ResponseHead

RESPONSES = {
    b"HTTP/1.1 200 OK\r\nA: 1\r\n\r\nbody\r\n\r\nmore": (
        b"HTTP/1.1 200 OK\r\nA: 1\r\nConnection: close\r\n\r\nbody\r\n\r\nmore"
    ),
    b"HTTP/1.1 204 N\r\nconnection: Keep-Alive\r\n x\r\nKeep-Alive: 5\r\n\r\n": (
        b"HTTP/1.1 204 N\r\nConnection: close\r\n\r\n"
    ),
    b"HTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\n\nbody": (
        b"HTTP/1.1 103 E\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"
    ),
    b"HTTP/1.1 200 cut": b"HTTP/1.1 200 cut",
    b"": b"",
}


@pytest.mark.promise("QN1")
@pytest.mark.parametrize(("said", "heard"), RESPONSES.items())
def test_a_response_says_that_its_connection_closes(said: bytes, heard: bytes) -> None:
    """A client's pool would use the connection again, and find it closed."""
    for size in (1, 7, 1 << 16):
        head = ResponseHead()
        pieces = [said[i : i + size] for i in range(0, len(said), size)]
        assert b"".join(map(head.pass_on, pieces)) + head.end() == heard
