"""The largest lists of a server are read in steps, between which the loop goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anyio import create_memory_object_stream

from toolcell.tools.external.definition import MAX_TOOLS
from toolcell.tools.mcp_client.kept_results import MAX_KEPT_BYTES, KeptResults
from toolcell.tools.mcp_client.list_parts import MAX_RESTS, ListParts, PartsOrServer
from toolcell.tools.mcp_client.odd_parts import SET_ASIDE
from toolcell.tools.spi import MCPDefinition, MCPPins

from ...support.mcp.servers import Scripted, definition
from ...support.sample_tools import call, executor
from ...support.web.loop_steps import SECONDS, TRIES, steps

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R19")]

TEXTS = {
    "type": "object",
    "properties": {f"p{n}": {"type": "string"} for n in range(9)},
}
MANY = {"type": "object", "properties": {f"p{n}": {} for n in range(3_000)}}
EMPTY = {"type": "object", "x": [[]] * 9_000}
LISTS: dict[str, Any] = {
    "long texts": [definition(f"t{n}", description="x y " * 900) for n in range(900)],
    "large tools": [definition(f"t{n}", description="a. " * 20_000) for n in range(60)],
    "many schemas": [
        definition(f"t{n}", inputSchema=TEXTS, outputSchema=TEXTS) for n in range(900)
    ],
    "large schemas": [definition(f"t{n}", inputSchema=MANY) for n in range(7)],
    "lists of nothing": [definition(f"t{n}", inputSchema=EMPTY) for n in range(2)],
    "one huge tool": [definition("t", inputSchema={**EMPTY, "y": [[]] * 13_000})],
    "many tools": [definition(f"t{n}") for n in range(6_000)],
    "no tools": [7] * 49_000,
}


def large(count: int) -> list[dict[str, Any]]:
    return [definition(f"t{n}", description="d" * 2_000) for n in range(count)]


async def test_a_large_page_is_asked_for_once_and_given_whole(tmp_path: Path) -> None:
    odd = {"name": "odd", "inputSchema": {"type": "array"}}
    huge = definition("huge", description="x" * 70_000)
    server = Scripted(tmp_path)
    server.tell([*large(60), odd, huge, definition("last")])
    async with server.toolset(startup_seconds=300) as toolset:
        names = [each.name for each in toolset.definitions]
        assert names == [*(f"t{n}" for n in range(60)), "last"]
        assert set(toolset.unusable) == {"odd", "huge"}

    assert server.log("listed") == [""]


def test_parts_are_small_and_end_as_the_page_does() -> None:
    parts, members = ListParts(), large(100)
    page: Any = parts.cut({"tools": members, "nextCursor": "theirs", "_meta": {}})
    found, sizes = list(page["tools"]), [len(page["tools"])]
    while (part := parts.following(page["nextCursor"])) is not None:
        page, before = part
        assert before == len(found)
        found += page["tools"]
        sizes.append(len(page["tools"]))

    assert page["nextCursor"] == "theirs"
    assert found == members
    assert max(sizes) < 40
    # What is not the page's list is checked once.
    assert "_meta" not in page


async def test_the_library_looks_at_a_thousand_tools_of_all_parts() -> None:
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCRequest

    tools = [definition(f"t{n}") for n in range(3_000)]
    parts = ListParts()
    page = parts.cut({"tools": tools})
    known, aside = list(page["tools"]), []
    to_session, answers = create_memory_object_stream[Any](1)
    to_server, asked = create_memory_object_stream[Any]()
    with to_session, answers, to_server, asked:
        way = PartsOrServer(parts, to_session.send, to_server, lambda: "2025-11-25")
        while parts.is_own(cursor := page.get("nextCursor", "")):
            request = JSONRPCRequest(
                jsonrpc="2.0", id=1, method="tools/list", params={"cursor": cursor}
            )
            await way.send(SessionMessage(request))
            page = (await answers.receive()).message.result
            known += page["tools"]
            aside += page["_meta"][SET_ASIDE]

    assert len(known) == MAX_TOOLS
    assert known + aside == tools


def test_a_cursor_of_a_part_leads_on_once_and_a_server_has_none() -> None:
    parts = ListParts()
    cut = [parts.cut({"prompts": large(40)}) for _ in range(MAX_RESTS + 1)]
    cursors = [each["nextCursor"] for each in cut]

    assert parts.following(cursors[0]) is None
    # It is the last part, which takes no other one's place.
    assert parts.following(cursors[1]) is not None
    assert parts.following(cursors[1]) is None
    assert not parts.is_own("theirs")
    assert ListParts().cut({"tools": large(40)})["nextCursor"] not in cursors


def test_a_large_result_is_kept_while_its_message_is_read() -> None:
    kept = KeptResults()
    message = {"jsonrpc": "2.0", "id": 7, "result": {"tools": large(60)}}
    text = json.dumps(message).encode()
    lines = json.dumps(message, indent=1).replace("\n", "\r\ndata:").encode()
    for small in (
        kept.keep(text),
        kept.keep_of_event(b"id: 3\ndata: " + text + b"\n\n").split(b"data: ")[1],
        kept.keep_of_event(b"data:" + lines + b"\r\n\r\n").split(b"data: ")[1],
        kept.keep_of_event(b"event\rdata:" + text + b"\r\r").split(b"data: ")[1],
    ):
        read = json.loads(small)
        assert len(small) < 200 and read["id"] == 7
        assert kept.take(read["result"]) == message["result"]
        # It is given once, and to nobody who guesses.
        assert kept.take(read["result"]) == read["result"]
    assert kept.keep_of_event(b"id: 3\ndata: " + text + b"\n\n").startswith(b"id: 3\n")
    for other in (b"{" * 70_000, b"[" + text + b"]", text[:200]):
        assert kept.keep(other) == other
        assert kept.keep_of_event(b"data: " + other + b"\n\n").endswith(other + b"\n\n")


def test_results_that_nobody_takes_are_kept_up_to_a_size() -> None:
    kept, half = KeptResults(), MAX_KEPT_BYTES // 2

    def keep(size: int) -> Any:
        message = json.dumps({"result": {"text": "x" * size}}).encode()
        return json.loads(kept.keep(message))["result"]

    def is_there(small: Any) -> bool:
        return "text" in kept.take(small)

    first, second, third = keep(half), keep(half - 100), keep(100_000)
    assert [is_there(each) for each in (first, second, third)] == [False, True, True]
    # What was taken leaves its room, and the newest is kept however large it is.
    stays = keep(100_000)
    assert all(is_there(keep(half)) for _ in range(4)) and is_there(stays)
    assert is_there(keep(3 * half))


def test_an_event_that_the_library_drops_leaves_no_result() -> None:
    data = b"data: " + json.dumps({"result": {"text": "x" * 70_000}}).encode() + b"\n\n"
    kept = KeptResults()
    for name in (b"event: x\n", b"event: message\nevent:x\n", b"event:  message\n"):
        assert kept.keep_of_event(name + data) == name + data
    for name in (b"", b"event: x\nevent\n", b"event: x\nevent: message\n"):
        assert len(kept.keep_of_event(name + data)) < 200


@pytest.mark.parametrize("kind", LISTS)
async def test_no_list_holds_the_loop(tmp_path: Path, kind: str) -> None:
    server = Scripted(tmp_path, "echo", "changed")
    pins = MCPPins({"test": [MCPDefinition(**definition("changed"))]})
    longest: list[float] = []
    async with server.toolset(pins, startup_seconds=300) as toolset:
        host = executor(*toolset.tools)
        assert (await host.call(call("test__changed"))).ok
        server.tell([definition("changed"), *LISTS[kind]])
        while len(longest) < TRIES:
            # Each call makes the next one list again.
            with steps() as taken:
                made = call("test__changed", f"call {len(longest)}")
                assert (await host.call(made)).ok
            longest.append(max(taken))
            if longest[-1] < SECONDS:
                break
    assert len(server.log("listed")) > 1
    assert min(longest) < SECONDS, longest
