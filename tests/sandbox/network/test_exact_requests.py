"""The one spelling of a request that rules judge, and networks inside each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolcell.core import InvalidInputError
from toolcell.sandbox import Network
from toolcell.sandbox.network.http_request import (
    HTTPRequest,
    check_host,
    new_reader,
)
from toolcell.sandbox.network.request_facts import exact_target, request_facts
from toolcell.sandbox.network.request_head import exact_head
from toolcell.sandbox.network.types import EgressError


@pytest.mark.promise("boundary-2")
@pytest.mark.parametrize(
    ("target", "exact"),
    [
        ("/", "/"),
        ("/a/b/?", "/a/b/?"),
        ("/%7Euser/%41%2f%c3%a9", "/~user/A%2F%C3%A9"),
        ("/a?b=%2e%2E/../c", "/a?b=../../c"),
        ("/a?b=1;c=2&d=%3b", "/a?b=1%3Bc=2&d=%3B"),
        ("/100%25", "/100%25"),
        ("/@scope%2Fname", "/@scope%2Fname"),
        ("/a;v=1/b..c/...", "/a;v=1/b..c/..."),
        ("*", "*"),
    ],
)
def test_a_target_has_one_spelling(target: str, exact: str) -> None:
    assert exact_target(target) == exact == exact_target(exact)


@pytest.mark.promise("boundary-2")
@pytest.mark.parametrize(
    "target",
    [
        "",
        "a",
        "/a/../b",
        "/a/./b",
        "/a/..",
        "/..;x/b",
        "/;x/b",
        "/%2e%2E/b",
        "/a%2f..%2fb",
        "/a%5C..%5cb",
        "/%252e%252e%252fb",
        "/%25252525252e",
        "//b",
        "/a//b",
        "/a%2F/b",
        "/a\\b",
        "/a#b",
        "/a b",
        "/a\x00",
        "/a%00",
        "/a%0d%0ab",
        "/é",
        "/%e9",
        "/a%C0%AE%c0%ae/b",
        "/a%25c0%25ae/b",
        "/%",
        "/%g0",
        "/%c",
        "/" + "a" * 8_192,
    ],
)
def test_a_target_that_is_read_in_two_ways_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="its "):
        exact_target(target)


@pytest.mark.promise("boundary-2")
@given(st.text(alphabet="/.%25fF;aA\\\\eE02?", max_size=12))
def test_no_reading_of_an_exact_target_climbs(text: str) -> None:
    try:
        path = exact_target(f"/{text}").partition("?")[0]
    except ValueError:
        return
    for _ in range(6):
        parts = path.replace("\\", "/").split("/")
        assert not {".", ".."} & {part.partition(";")[0] for part in parts}
        for escape, plain in (("%2F", "/"), ("%2E", "."), ("%5C", "\\"), ("%25", "%")):
            path = path.replace(escape, plain).replace(escape.lower(), plain)


def facts(method: str, target: str, *headers: tuple[str, str]) -> dict[str, Any]:
    request = h11.Request(
        method=method, target=target, headers=[("Host", "h"), *headers]
    )
    return request_facts(request, exact_target(target), "h", 80)


@pytest.mark.promise("boundary-2")
def test_the_facts_of_a_request() -> None:
    found = facts("POST", "/a?b=1&b=%32&c", ("Content-Length", "5"))

    assert found == {
        "method": "POST",
        "scheme": "http",
        "host": "h",
        "port": 80,
        "path": "/a",
        "query": {"b": ["1", "2"], "c": [""]},
        "content_type": None,
        "content_length": 5,
    }
    chunked = facts("PUT", "/", ("Transfer-Encoding", "chunked"))
    assert chunked["content_length"] is None
    assert facts("GET", "/?b=1;force=true")["query"] == {"b": ["1;force=true"]}
    assert facts("GET", "/?method=a&x_method=b")["method"] == "GET"


@pytest.mark.promise("boundary-2")
@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("get", "/", ()),
        ("TRACE", "/", ()),
        ("GET", "/?a=%ff", ()),
        ("POST", "/?a=1&_method=DELETE", ()),
        ("POST", "/?_%4Dethod=PUT", ()),
        ("POST", "/?.method=DELETE", ()),
        ("POST", "/?+%20_method=DELETE", ()),
        ("POST", "/?_method%00x=DELETE", ()),
        ("POST", "/?_method%5B%5D=DELETE", ()),
        ("POST", "/?%5B_method%5D=DELETE", ()),
        ("GET", "/?" + "a&" * 201, ()),
        ("PUT", "/", (("Content-Type", "a/b"), ("Content-Type", "c/d"))),
        ("PUT", "/", (("Content-Length", "1"), ("Transfer-Encoding", "chunked"))),
        ("POST", "/", (("X-HTTP-Method-Override", "DELETE"),)),
        ("POST", "/", (("X_Http_Method", "DELETE"),)),
        ("GET", "/", (("X-Original-URL", "/admin"),)),
        ("GET", "/", (("X-Rewrite-Url", "/admin"),)),
        ("GET", "/", (("X-Forwarded-Host", "other"),)),
        ("GET", "/", (("Forwarded", "for=1.2.3.4;host=other"),)),
        ("GET", "/", (("X-Envoy-Original-Path", "/admin"),)),
        ("GET", "/", (("X-Forwarded-Prefix", "/admin"),)),
        ("POST", "/", (("X.HTTP.Method.Override", "DELETE"),)),
        ("POST", "/", (("content.length", "5"),)),
        ("POST", "/", (("Content_Length", "5"),)),
        ("POST", "/", (("transfer_encoding", "chunked"),)),
    ],
)
def test_what_cannot_be_judged_exactly_is_refused(
    method: str, target: str, headers: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(ValueError, match=r"its |it |requests "):
        facts(method, target, *headers)


PLAIN = (
    ("GET", "POST", "M-X"),
    ("/", "/%7eu/%2D?b=%41", "/a/?c&c=%c3%a9", "/\xe9?q=\xe9"),
    ("Host: a.test", "host:A.TEST.:443"),
    (
        *("Content-Length: 3", "X-Own: 1", "Upgrade: h2c", "TE: trailers"),
        *("Connection: X-Own, Host, Content-Length", "Keep-Alive: 5"),
    ),
)
ODD = (
    ("GET", "get", "TRACE"),
    ("/", "/%2e%2e/x", "https://a.test/y", "//x"),
    ("Host: a.test", "Host: b.test", "Host : a.test"),
    (
        *("Content-Length: 3", "content-length:\t03", "Content-Length: 3, 3"),
        *("Transfer-Encoding: chunked", "transfer-encoding: CHUNKED"),
        *(" folded", "X: a\rY: b", "Host: a.test"),
    ),
)


def heads(
    methods: Sequence[str],
    targets: Sequence[str],
    hosts: Sequence[str],
    lines: Sequence[str],
) -> st.SearchStrategy[tuple[str, str, str, list[str]]]:
    return st.tuples(
        *map(st.sampled_from, (methods, targets, hosts)),
        st.lists(st.sampled_from(lines), max_size=4, unique=True),
    )


def read_plainly(sent: bytes) -> tuple[list[str], dict[str, str]]:
    """Read a head as the plainest server would; every line counts once."""
    head, end, body = sent.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert (end, body, len(headers)) == (b"\r\n\r\n", b"", len(pairs))
    assert not re.search("[\r\n\0]", "".join([first, *headers.values()]))
    return first.split(" "), headers


@pytest.mark.promise("boundary-2")
@given(heads(*PLAIN) | heads(*PLAIN) | heads(*ODD))
@example(("GET", "/", "Host: a.test", ["Connection: X-Own, Host", "X-Own: 1"]))
@example(("POST", "/%7eu/%2D?b=%41", "Host: a.test", ["Transfer-Encoding: CHUNKED"]))
@example(("POST", "/\xe9?q=\xe9", "host:A.TEST.:443", ["Content-Length: 3"]))
def test_the_plainest_server_reads_what_was_judged(
    drawn: tuple[str, str, str, list[str]],
) -> None:
    method, target, host, lines = drawn
    written = "\r\n".join([f"{method} {target} HTTP/1.1", host, *lines, "", ""])
    reader = new_reader()
    try:
        reader.receive_data(exact_head(written.encode("latin-1")))
        read = reader.next_event()
        assert isinstance(read, h11.Request)
        check_host(read, "a.test", 443, 443)
        made = HTTPRequest(
            *(reader, read, read.target.decode(), "a.test", 443), scheme="https"
        )
        judged = made.exactly()
    except (ValueError, h11.ProtocolError, EgressError):
        return
    sent = h11.Connection(h11.CLIENT).send(made.head())
    (verb, path, version), headers = read_plainly(sent or b"")

    assert (verb, version, headers["host"]) == (judged["method"], "HTTP/1.1", "a.test")
    assert path.partition("?")[0] == judged["path"]
    query = path.partition("?")[2]
    assert parse_qs(query, keep_blank_values=True) == judged["query"]
    length = judged["content_length"]
    frames = {"content-length", "transfer-encoding"} & headers.keys()
    assert frames <= {"transfer-encoding" if length is None else "content-length"}
    assert int(headers.get("content-length", 0)) == (length or 0)
    assert not {"connection", "keep-alive", "upgrade", "te"} & headers.keys()
    nominated = any("X-Own," in line for line in lines)
    assert ("x-own" in headers) == ("X-Own: 1" in lines and not nominated)


A, AB = ["a.test:443"], ["a.test:443", "b.test:443"]


@pytest.mark.promise("boundary-1")
@pytest.mark.parametrize(
    ("own", "other", "found"),
    [
        (Network.guarded(), Network.allow(A), Network.guarded(A)),
        (Network.guarded(AB), Network.guarded(), Network.guarded(AB)),
        (Network.guarded(AB), Network.allow(A), Network.guarded(A)),
        (Network.guarded(), Network.allow([]), Network.allow([])),
        (Network.guarded(), Network.none, Network.none),
        (Network.allow(AB), Network.guarded(), Network.guarded(AB)),
        (Network.allow(AB), Network.guarded(A), Network.guarded(A)),
        (Network.allow([]), Network.guarded(), Network.none),
        (Network.guarded(A), Network.guarded(AB), None),
        (Network.none, Network.guarded(), None),
        (Network.guarded(), Network.allow(["169.254.169.254:80"]), None),
        (Network.guarded(), Network.guarded(["[::1]:80"]), None),
        (Network.guarded(AB), Network.guarded(AB).to(A), Network.guarded(A)),
        (Network.allow(AB), Network.allow(AB).to(A), Network.allow(A)),
        (Network.guarded(AB), Network.guarded(AB).to([]), Network.none),
    ],
)
def test_a_network_within_a_guarded_one_is_guarded(
    own: Network, other: Network, found: Network | None
) -> None:
    if found is None:
        with pytest.raises(InvalidInputError, match="narrow"):
            own.narrowed_by(other)
    else:
        assert own.narrowed_by(other) == found
