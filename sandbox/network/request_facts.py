"""The facts of an HTTP request that a gate judges, in one spelling.

What two servers would read in two ways cannot be judged, and is refused. The target
that is sent is the one that was judged.

Sources: RFC 3986 section 6.2, RFC 9110 section 9.1, RFC 9112 section 6.1, RFC 3875
section 4.1.18.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import h11
from pydantic import JsonValue

from ..config.host_rules import DEFAULT_PORTS, read_authority

MAX_TARGET_BYTES = 8_192
"""Bytes of a path with its query. When it is exceeded the request is refused."""

MAX_QUERY_FIELDS = 200
"""Fields of a query. When it is exceeded the request is refused."""

_METHOD = re.compile(r"[A-Z][A-Z-]{0,19}")
_NEVER_SENT = ("CONNECT", "TRACE", "TRACK")
_TARGET = re.compile(r"[!$&'()*+,\-./0-9:;=?@A-Z_a-z~%]*")
_URL = re.compile(r"(?i:(https?|wss))://([^/?#]+)(.*)", re.DOTALL)
_ESCAPE = re.compile(r"%(.{0,2})")
_UNRESERVED = re.compile(rb"[A-Za-z0-9._~-]")
_DECODINGS = 4
# Frameworks take these for the method, path or host, in place of those judged here.
_TAKES_THE_PLACE = frozenset(
    (
        b"x-http-method x-http-method-override x-method-override x-original-method "
        b"x-forwarded-method x-original-url x-original-uri x-original-path "
        b"x-envoy-original-path x-rewrite-url x-forwarded-uri x-forwarded-path "
        b"x-forwarded-prefix x-script-name x-original-host x-forwarded-host x-host "
        b"forwarded"
    ).split()
)
# Frameworks take this field of a query for the method. PHP drops spaces before a name,
# ends it at NUL, and reads `.` as `_`; qs (Express) reads `[a]` and `a[]` as `a`.
_METHOD_FIELD = re.compile(r"[\s\[]*[._]method(?:[\0\s\[\]].*)?", re.I | re.DOTALL)
_NOT_OF_A_VARIABLE = re.compile(rb"[^a-z0-9]")
# Servers that keep headers as variables (CGI, WSGI) read `_` in a name as `-`, and
# some any other sign.
_READ_AS_VARIABLES = frozenset(
    (b"host", b"content-length", b"content-type", b"transfer-encoding")
)


def exact_target(target: str) -> str:
    """Return a target in the only spelling in which it is judged and sent.

    Escapes of plain characters are undone, other escapes have capital digits. `;` in a
    query is escaped, as it ends a field for some servers. `*` stays.

    Raises:
        ValueError: Servers would read it in more than one way.
    """
    if len(target) > MAX_TARGET_BYTES:
        raise ValueError(f"its target has more than {MAX_TARGET_BYTES} bytes")
    if target == "*":
        return target
    if not target.startswith("/") or not _TARGET.fullmatch(target):
        raise ValueError("its target has characters that a URL does not have")
    path, mark, query = target.partition("?")
    path, query = _ESCAPE.sub(_plain, path), _ESCAPE.sub(_plain, query)
    _check_segments(path)
    return path + mark + query.replace(";", "%3B")


def _plain(escape: re.Match[str]) -> str:
    """Return the one spelling of an escape. Raises ValueError if it is invalid."""
    if not re.fullmatch(r"[0-9A-Fa-f]{2}", escape[1]):
        raise ValueError("its target has an escape that is not valid")
    byte = bytes((int(escape[1], 16),))
    return byte.decode() if _UNRESERVED.fullmatch(byte) else f"%{escape[1].upper()}"


def _check_segments(path: str) -> None:
    """Refuse a path that may lead elsewhere than it seems to.

    Servers differ in what they decode, and when; so no reading may have a segment that
    goes up, stays, or is empty.
    """
    read = path.encode()
    for _ in range(_DECODINGS):
        segments = re.split(rb"[/\\]", read)[1:]
        names = [segment.partition(b";")[0] for segment in segments]
        if b"." in names or b".." in names:
            raise ValueError("its path has a segment `.` or `..`")
        if b"" in segments[:-1] or b"" in names[:-1]:
            raise ValueError("its path has an empty segment")
        if re.search(rb"[\0-\x1f\x7f]", read):
            raise ValueError("its path has a control character")
        if not _is_utf8(read):
            raise ValueError("its path is not UTF-8")
        decoded = unquote_to_bytes(read)
        if decoded == read:
            return
        read = decoded
    raise ValueError("its path is escaped again and again")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def request_facts(
    request: h11.Request, target: str, host: str, port: int, *, scheme: str = "http"
) -> dict[str, JsonValue]:
    """Return the facts of a request that rules know.

    Args:
        request: Its head.
        target: Its target, as `exact_target` returns it.
        host: The host that it goes to.
        port: Its port.
        scheme: `http` or `https`.

    Raises:
        ValueError: It cannot be judged exactly.
    """
    method = request.method.decode("ascii")
    _check_method(method)
    _check_names(name for name, _ in request.headers)
    path, _, query = target.partition("?")
    facts: dict[str, JsonValue] = {
        "method": method,
        "scheme": scheme,
        "host": host,
        "port": port,
        "path": path,
        "query": _fields(query),
    }
    return facts | _body_facts(request)


def facts_of_url(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an act with the parts of its `url` in its place.

    A request without a `method` is a GET, and one without a length has no body.

    Args:
        name: The act.
        arguments: They, with a URL of `http` or `https` as `url`; one of `https` or
            `wss` if a WebSocket is opened.

    Raises:
        ValueError: It is no such URL, is read in more than one way, a part of it is
            named beside it, or requests of its method are not served.
    """
    others = {each: value for each, value in arguments.items() if each != "url"}
    found = _URL.fullmatch(str(arguments["url"]))
    schemes = ("https", "wss") if name == "http.upgrade" else ("http", "https")
    if found is None or found[1].lower() not in schemes:
        ways = " or ".join(f"{each}://host/path" for each in schemes)
        raise ValueError(f"`url` is not {ways}")
    scheme = found[1].lower().replace("wss", "https")
    host, port = read_authority(found[2], DEFAULT_PORTS[scheme])
    parts: dict[str, Any] = {"host": host, "port": port}
    if name != "net.connect":
        target = found[3] if found[3].startswith("/") else f"/{found[3]}"
        path, _, query = exact_target(target).partition("?")
        parts |= {"scheme": scheme, "path": path, "query": _fields(query)}
        body = {"content_type": None, "content_length": 0}
        others = {"method": "GET", **body, **others}
        _check_method(str(others["method"]))
    if name == "http.upgrade":
        parts["protocol"] = "websocket"
    if both := parts.keys() & others.keys():
        raise ValueError(f"`url` says {', '.join(sorted(both))} already")
    return parts | others


def _check_method(method: str) -> None:
    if not _METHOD.fullmatch(method) or method in _NEVER_SENT:
        raise ValueError(f"requests of the method {method[:20]!r} are not served")


def _check_names(names: Iterable[bytes]) -> None:
    """Refuse headers that some servers read in place of what was judged."""
    for name in names:
        read = _NOT_OF_A_VARIABLE.sub(b"-", name)
        if read in _TAKES_THE_PLACE or (read != name and read in _READ_AS_VARIABLES):
            raise ValueError(
                f"its header {name.decode()!r} is read by some servers in place of "
                "its method, target, host or length"
            )


def _fields(query: str) -> dict[str, JsonValue]:
    """Return the values of each field of a query, in order."""
    found: dict[str, list[JsonValue]] = {}
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_QUERY_FIELDS,
        )
    except UnicodeDecodeError:
        raise ValueError("its query is not UTF-8") from None
    except ValueError:
        raise ValueError(f"its query has over {MAX_QUERY_FIELDS} fields") from None
    for name, value in pairs:
        if _METHOD_FIELD.fullmatch(name):
            raise ValueError(
                "its query has `_method`, which some servers read in place of its "
                "method"
            )
        found.setdefault(name, []).append(value)
    return {**found}


def _body_facts(request: h11.Request) -> dict[str, JsonValue]:
    """Return type and length of a body; `content_length` is null for an unknown one."""
    lengths = [value for name, value in request.headers if name == b"content-length"]
    types = [value for name, value in request.headers if name == b"content-type"]
    is_chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if is_chunked and lengths:
        raise ValueError("it has Content-Length and Transfer-Encoding")
    if len(types) > 1:
        raise ValueError("it has more than one Content-Type")
    length = int(lengths[0]) if lengths else 0
    return {
        "content_type": types[0].decode("latin-1") if types else None,
        "content_length": None if is_chunked else length,
    }
