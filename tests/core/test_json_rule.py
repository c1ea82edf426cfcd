"""JSON of models, of MCP clients and of programs is read by one rule."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from toolcell.core import InvalidInputError, ToolCall
from toolcell.core.text.strict_json import read_json
from toolcell.host.http.bodies import BodyError, Bounds
from toolcell.sandbox import HostCalls
from toolcell.sandbox.cell.wire.frames import strict_json
from toolcell.sandbox.client.host_calls import CallServer
from toolcell.sandbox.network.run_clock import RunClock
from toolcell.tools import tool

from ..support.corpora import records
from ..support.mcp.by_hand import INITIALIZED, OPEN, receive, request, send, server
from ..support.mcp.served_hosts import CONFIG, INITIALIZE, http_served, written

pytestmark = pytest.mark.anyio

REFUSED = "refused"
_PLACE = b'"here"'

# Of what the corpus leaves to parsers all else is refused.
_READ = {
    "i_number_double_huge_neg_exp.json",
    "i_number_too_big_neg_int.json",
    "i_number_very_big_negative_int.json",
}
_TWICE = {
    "y_object_duplicated_key.json",
    "y_object_duplicated_key_and_value.json",
}


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


INSIDE = {
    b'{"a":1,"a":1}': REFUSED,
    b'{"a":1,"\\u0061":2}': REFUSED,
    b"NaN": REFUSED,
    b"Infinity": REFUSED,
    b"-Infinity": REFUSED,
    b"1e999": REFUSED,
    b"-1e999": REFUSED,
    b"1" * 5000 + b".0": REFUSED,
    b"1" * 4301: REFUSED,
    b"-" + b"1" * 4301: REFUSED,
    b"1" * 4300: "1" * 4300,
    b"-" + b"1" * 4300: "-" + "1" * 4300,
    b'"' + b"1" * 4301 + b'"': f"'{'1' * 4301}'",
    b"1e-999": "0.0",
    b"0." + b"1" * 5000: "0.1111111111111111",
    b"1e" + b"0" * 5000 + b"1": "10.0",
    b"9007199254740993": "9007199254740993",
    b"9007199254740993.0": "9007199254740992.0",
    b"-0": "0",
    b"-0.0": "-0.0",
    b"2.0": "2.0",
    b'"\\ud800"': REFUSED,
    b'"\\udc00\\ud800"': REFUSED,
    b'{"\\ud800":1}': REFUSED,
    b'"\\ud83d\\ude00"': repr("\U0001f600"),
    b'"\\\\ud800"': repr("\\ud800"),
    b'"\xed\xa0\x80"': REFUSED,
    b'"\xff"': REFUSED,
    b'"\\u0000"': repr("\0"),
    b'"\0"': REFUSED,
    b"\xef\xbb\xbf1": REFUSED,
    b"\t 1 \t": "1",
    b"\x0b1": REFUSED,
    b"\xc2\xa01": REFUSED,
    b"": REFUSED,
    b"1 2": REFUSED,
    b"1}}}": REFUSED,
    nested(120): nested(120).decode(),
    b'"' + nested(200) + b'"': f"'{nested(200).decode()}'",
    nested(129): REFUSED,
    nested(180): REFUSED,
    nested(240): REFUSED,
    nested(500): REFUSED,
    nested(990): REFUSED,
    b"[" * 5_000: REFUSED,
}
"""JSON inside of a message, and what it is read as."""

WHOLE = {
    **INSIDE,
    b"\r\n\t 1 \r\n\t ": "1",
    b"\xef\xbb\xbf{}": REFUSED,
    b"{}\0": REFUSED,
    b"\0": REFUSED,
    "{}".encode("utf-16"): REFUSED,
    "{}".encode("utf-16-be"): REFUSED,
    nested(128): nested(128).decode(),
    b'{"a":' * 127 + b"[]" + b"}" * 127: "{'a': " * 127 + "[]" + "}" * 127,
    b'{"a":' * 128 + b"[]" + b"}" * 128: REFUSED,
    b"[" + b"[]," * 300 + b"0]": "[" + "[], " * 300 + "0]",
    b'"\\"' + nested(200) + b'"': repr('"' + nested(200).decode()),
    b'["' + b"]" * 200 + b'",' + nested(128) + b"]": REFUSED,
    b'["\\\\",' + nested(127) + b"]": "['\\\\', " + nested(127).decode() + "]",
    b'["\\\\",' + nested(128) + b"]": REFUSED,
}
"""The same of whole texts."""


def corpus() -> dict[bytes, str]:
    """Return what others wrote, and what it is read as."""
    found = {}
    for case in records("json_parsing/cases.jsonl"):
        data = base64.b64decode(case["b64"])
        taken = case["expect"] == "accept" and case["id"] not in _TWICE
        taken = taken or case["id"] in _READ
        found[data] = repr(json.loads(data)) if taken else REFUSED
    assert len(found) > 140
    return found


def outcome(read: Callable[[bytes], Any], data: bytes) -> str:
    try:
        return repr(read(data))
    except (ValueError, InvalidInputError, BodyError):
        return REFUSED


def as_text(data: bytes) -> str:
    """Return bytes as the text of a model, which may be as broken."""
    return data.decode("utf-8", "surrogateescape")


READERS: dict[str, Callable[[bytes], Any]] = {
    "core": read_json,
    "text": lambda data: read_json(as_text(data)),
    "http": lambda data: Bounds(10_000_000, 100_000).parse(data),
    "cell": strict_json,
}


@pytest.mark.promise("E-92")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "cases", [pytest.param(corpus, marks=pytest.mark.corpus), WHOLE.copy]
)
def test_all_readers_read_by_one_rule(
    reader: str, cases: Callable[[], dict[bytes, str]]
) -> None:
    wanted = cases()
    got = {data: outcome(READERS[reader], data) for data in wanted}

    assert got == wanted


@pytest.mark.parametrize("reader", READERS)
def test_how_deep_the_caller_is_does_not_count(reader: str) -> None:
    def below(calls: int, data: bytes) -> str:
        return below(calls - 1, data) if calls else outcome(READERS[reader], data)

    assert below(500, nested(128)) == nested(128).decode()
    assert below(500, nested(129)) == REFUSED


def test_nothing_is_finalized_where_there_is_no_room_for_calls() -> None:
    """A text of untrusted origin chooses how deep its parser is when that happens."""
    code = """
import gc, sys
from toolcell.core.text.strict_json import read_json
from toolcell.sandbox.cell.wire.frames import strict_json

gc.freeze()
failures = []
sys.unraisablehook = failures.append

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        self.call()
    def call(self):
        pass

for read in (read_json, strict_json):
    for objects in range(950, 1000):
        gc.collect()
        gc.set_threshold(0)
        Cycle()
        gc.set_threshold(objects)
        try:
            read(b"[" * 2_000)
        except ValueError:
            pass
print(len(failures))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "0\n"


@pytest.mark.parametrize("limit", ["0", "640", "100000"])
def test_what_python_is_told_of_long_numbers_does_not_let_more_in(limit: str) -> None:
    code = """
from toolcell.core.text.strict_json import read_json
from toolcell.sandbox.cell.wire.frames import strict_json
for read in (read_json, strict_json):
    for digits in (640, 4301, 50_000):
        try:
            read(b"-" + b"1" * digits)
            print("read", end=" ")
        except ValueError:
            print("refused", end=" ")
"""
    told = subprocess.check_output(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONINTMAXSTRDIGITS": limit},
        text=True,
    )

    assert told.split() == ["read", "refused", "refused"] * 2


def test_a_refusal_says_what_is_wrong() -> None:
    for text, told in {
        '{"x":1,"x":2}': "a key is given twice",
        '{"x":NaN}': "NaN is not JSON",
        '{"x":1e999}': "a number is out of range",
        '{"x":' + nested(200).decode() + "}": "nested too deeply",
    }.items():
        call = ToolCall(id="1", name="t", arguments=text)  # type: ignore[arg-type]
        assert told in call.why_malformed


TOOL = '''
from typing import Any

from toolcell.tools import tool


@tool(name="own_echo")
def echo(x: Any) -> str:
    """Tell what came."""
    return repr(x)
'''


async def by_a_model(cases: list[bytes], folder: Path) -> dict[bytes, str]:
    def asked(data: bytes) -> Any:
        arguments: Any = as_text(b'{"x":%s}' % data)
        call = ToolCall(id="1", name="echo", arguments=arguments)
        if call.malformed is not None:
            raise ValueError(call.why_malformed)
        return call.arguments["x"]

    return {data: outcome(asked, data) for data in cases}


async def by_a_program(cases: list[bytes], folder: Path) -> dict[bytes, str]:
    async def echo(
        name: str, arguments: list[Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        return {"value": repr(options["x"])}

    answers: list[Any] = []

    async def tell(header: dict[str, Any], payload: bytes | memoryview = b"") -> None:
        answers.append(json.loads(bytes(payload)))

    calls = HostCalls(names=("echo",), handler=echo, max_calls=1_000)
    for number, data in enumerate(cases):
        async with CallServer(calls, tell, RunClock(anyio.sleep, 0)) as serving:
            text = b'{"name":"echo","args":[],"kwargs":{"x":%s}}' % data
            serving.serve(b"%08x" % number + text)
            with anyio.fail_after(60):
                while len(answers) <= number:
                    await anyio.lowlevel.checkpoint()
    assert [answer["id"] for answer in answers] == list(range(len(cases)))
    for answer in answers:
        assert answer.get("error", {"code": "invalid"})["code"] == "invalid"
    told = [answer.get("value", REFUSED) for answer in answers]
    return dict(zip(cases, told, strict=True))


async def by_stdio(cases: list[bytes], folder: Path) -> dict[bytes, str]:
    (folder / "echo_tool.py").write_text(TOOL)
    listed = 'python = ["echo_tool:echo"]\nfolders = ["."]\n'
    text = CONFIG.replace("[tools]\n", f"[tools]\n{listed}")
    got = {}
    with server(written(folder, text)) as process:
        send(process, INITIALIZE, INITIALIZED)
        assert receive(process)["id"] == 0
        for data in cases:
            send(process, line_of(call_of("own_echo"), data))
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 60)[0], data
            got[data] = told_by(receive(process))
    return got


async def by_http(cases: list[bytes], folder: Path) -> dict[bytes, str]:
    @tool(name="own_echo")
    def echo(x: Any) -> str:
        """Tell what came."""
        return repr(x)

    got = {}
    asked = request("own_echo", {"x": "here"})
    headers = {**asked["headers"], "Content-Type": "application/json"}
    async with (
        http_served(folder, echo, text=OPEN) as served,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        for data in cases:
            body = line_of(asked["json"], data)
            answer = await http.post(served.url, content=body, headers=headers)
            got[data] = told_by(answer.json())
    return got


def call_of(name: str) -> dict[str, Any]:
    params = {"name": name, "arguments": {"x": "here"}}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def line_of(message: dict[str, Any], data: bytes) -> bytes:
    return json.dumps(message).encode().replace(_PLACE, data)


def told_by(answer: Any) -> str:
    if "error" in answer:
        assert (answer["error"]["code"], answer["id"]) == (-32700, None)
        return REFUSED
    told: str = answer["result"]["structuredContent"]["result"]
    return told


DOORS = {each.__name__: each for each in (by_a_model, by_a_program, by_stdio, by_http)}


@pytest.fixture(params=[pytest.param("corpus", marks=pytest.mark.corpus), "ours"])
def inside(request: pytest.FixtureRequest) -> dict[bytes, str]:
    """JSON to put into messages. How many levels they have themselves differs, so
    nothing here is near the limit."""
    return corpus() if request.param == "corpus" else INSIDE


@pytest.mark.promise("E-92", "T25")
@pytest.mark.parametrize("door", DOORS)
async def test_all_doors_give_the_same_verdict_and_value(
    door: str, inside: dict[bytes, str], tmp_path: Path
) -> None:
    wanted = {
        data: told
        for data, told in inside.items()
        # There a line feed ends the message.
        if door != "by_stdio" or b"\n" not in data
    }
    got = await DOORS[door](list(wanted), tmp_path)

    assert got == wanted


async def test_a_line_feed_in_front_or_behind_is_white_space(tmp_path: Path) -> None:
    spaced = {b"\n1": "1", b"1\n": "1", b"\r\n[\n1\r]\n": "[1]"}
    for door in (by_a_model, by_a_program, by_http):
        assert await door(list(spaced), tmp_path) == spaced
