"""The head of a request inside of HTTPS, before anything interprets it.

h11 takes some of what servers read in two ways; that is refused here.

Sources: RFC 9112 sections 2.2, 3, 5.2 and 6.3.
"""

from __future__ import annotations

import re
from collections import Counter

from .http_request import MAX_HEAD_BYTES
from .types import ByteStream

_END = b"\r\n\r\n"
_LINE = re.compile(rb"([A-Z][A-Z-]{0,19}) ([^ #\\\\]+) (HTTP/1\.[01])")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:.*", re.DOTALL)
_LENGTH = re.compile(rb"content-length:[ \t]*[0-9]{1,18}[ \t]*", re.IGNORECASE)
_ODD = re.compile(rb"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n")
_HIGH = re.compile(rb"[\x80-\xff]")
_NEVER_SENT = (b"CONNECT", b"TRACE", b"TRACK")
_ONCE = (b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade")


async def next_head(buffer: bytes, source: ByteStream) -> tuple[bytes, bytes]:
    """Return the head of the next request, and what came after it.

    An empty line before it is left out, as some clients send one after a body.

    Args:
        buffer: Bytes that came already.
        source: Delivers the others.

    Returns:
        The head with its empty line, as `exact_head` returns it; empty at the end.

    Raises:
        ValueError: It can be read in two ways, or is not valid.
        OSError: The program went away.
    """
    while len(buffer) < 2 and (more := await source.receive()):
        buffer += more
    buffer = buffer.removeprefix(b"\r\n")
    searched = 0
    while (end := buffer.find(_END, searched)) < 0:
        if len(buffer) > MAX_HEAD_BYTES:
            raise ValueError(f"its head has more than {MAX_HEAD_BYTES} bytes")
        searched = max(len(buffer) - len(_END), 0)
        more = await source.receive()
        if not more:
            if buffer:
                raise ValueError("the request ended too early")
            return b"", b""
        buffer += more
    end += len(_END)
    return exact_head(buffer[:end]), buffer[end:]


def exact_head(head: bytes) -> bytes:
    """Return a head whose target is ASCII.

    Raises:
        ValueError: It can be read in two ways, or is not valid.
    """
    if len(head) > MAX_HEAD_BYTES:
        raise ValueError(f"its head has more than {MAX_HEAD_BYTES} bytes")
    if _ODD.search(head):
        raise ValueError("its head has a bare line end or a control character")
    first, *headers = head.removesuffix(_END).split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise ValueError("its first line is not one of HTTP/1.1")
    _check_method(line[1], line[2])
    if not all(map(_HEADER.fullmatch, headers)):
        raise ValueError("it has a folded or a misspelt header")
    names = Counter(header.partition(b":")[0].lower() for header in headers)
    for name in _ONCE:
        if names[name] > 1:
            raise ValueError(f"it has more than one {name.decode()}")
    if not names[b"host"]:
        raise ValueError("it has no Host")
    if names[b"content-length"] != sum(map(bool, map(_LENGTH.fullmatch, headers))):
        raise ValueError("its length is no number")
    if names[b"content-length"] and names[b"transfer-encoding"]:
        raise ValueError("it has two lengths")
    target = _HIGH.sub(lambda byte: b"%%%02X" % byte[0][0], line[2])
    return b"\r\n".join([b" ".join((line[1], target, line[3])), *headers]) + _END


def _check_method(method: bytes, target: bytes) -> None:
    """Refuse what is no request for a resource. Raises ValueError."""
    if method in _NEVER_SENT:
        raise ValueError(f"requests of the method {method.decode()} are not served")
    if target == b"*" and method != b"OPTIONS":
        raise ValueError("its target is not a path")
