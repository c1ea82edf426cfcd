"""The largest messages of strangers hold the event loop for a moment, on each door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.host.config.server import API

from ...support.web.loop_steps import SECONDS, TRIES, steps
from .served_doors import APIS, BYTES, RESULT, RESULTS, filled, message, served

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R2", "R41", "R53", "R66")]

READ = {"mcp": [200], "rest": [200], "e2b": [400, 403]}
"""The answers to what was read whole: results, or a refusal of what it says."""

VALUES = 9_000
RESULT_SECONDS = 0.1
"""The same for a result of a tool: one of 130,000 values is copied in one step."""


def values(part: str, count: int) -> list[str]:
    return [filled(part)[: BYTES // len(part.encode()) * len(part) // count]] * count


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


WORST: dict[str, Any] = {
    "one text": filled("lorem ipsum, "),
    "letters": filled("日本"),
    "marks": filled("\u0301\u0323"),
    "dots": filled("a."),
    "quotes": filled("a 'b' "),
    "secrets": filled("token=abcdef "),
    "tokens": filled("-eyJ"),
    "many texts": values("lorem ipsum tok ", VALUES),
    "many secrets": values("token=abc secret ", VALUES),
    "many names of hosts": values("日本.jp 1.2.3.4 ", VALUES),
    "long texts": values("a.b 'c' ", 42),
    "names": {text + str(n): n for n, text in enumerate(values("k", VALUES // 2))},
    "numbers": list(range(VALUES)),
    "long numbers": [int("7" * 1_000)] * 90,
    "deep": [deep(60) for _ in range(VALUES // 62)],
}


@pytest.mark.promise("R42", "R76")
@pytest.mark.parametrize("door", APIS)
async def test_no_message_holds_the_loop(tmp_path: Path, door: API) -> None:
    async with served(tmp_path) as http:
        # The first call also makes what later ones use.
        await http.post(**message(door, "x"))
        for kind, value in WORST.items():
            sent = message(door, value)
            body = json.dumps(sent.pop("json"), ensure_ascii=False).encode()
            longest: list[float] = []
            while len(longest) < TRIES:
                with steps() as taken:
                    answer = await http.post(content=body, **sent)
                assert answer.status_code in READ[door], (kind, answer.text)
                longest.append(max(taken))
                if longest[-1] < SECONDS:
                    break
            assert min(longest) < SECONDS, (kind, longest)


@pytest.mark.parametrize("door", ["mcp", "rest"])
async def test_no_result_holds_the_loop(tmp_path: Path, door: API) -> None:
    slow: dict[str, float] = {}
    async with served(tmp_path) as http:
        for kind in ["", *RESULTS]:
            sent = message(door, kind, "give", "kind")
            longest: list[float] = []
            while len(longest) < TRIES:
                with steps() as taken:
                    answer = await http.post(**sent)
                assert len(answer.content) > RESULT // 2 or not kind, answer.text
                longest.append(max(taken))
                if longest[-1] < RESULT_SECONDS:
                    break
            else:
                slow[kind] = min(longest)
    assert not slow


@pytest.mark.promise("R51")
async def test_no_request_that_waits_holds_the_loop(tmp_path: Path) -> None:
    kinds = {
        "long texts": values("lorem ipsum, ", 45)[:10],
        "secrets": values("token=abcdef ", 45)[:2],
        "many texts": values("x y z ", 20 * VALUES)[:VALUES],
    }
    parked, slow = 0, []
    async with served(tmp_path, "b") as http:
        for kind, value in kinds.items():
            sent = message("rest", value, "hold")
            longest: list[float] = []
            while len(longest) < TRIES:
                with steps() as taken:
                    call = (
                        await http.post("/v1/calls?wait=0", json=sent["json"])
                    ).json()
                    while call["state"] != "parked":
                        assert call["state"] != "ended", call["result"]
                        await anyio.sleep(0.05)
                        path = f"/v1/calls/{call['id']}?wait=0"
                        call = (await http.get(path)).json()
                parked += 1
                longest.append(max(taken))
                if longest[-1] < SECONDS:
                    break
            else:
                slow.append(kind)
        looks = []
        for _ in range(TRIES):
            with steps() as shown:
                found = (await http.get("/v1/approvals")).json()["approvals"]
            looks.append(max(shown))
            if looks[-1] < SECONDS and len(found) == parked:
                break
    assert len(found) == parked
    assert max(len(each["hidden"]) for each in found) > 1_000
    assert not slow
    assert min(looks) < SECONDS
