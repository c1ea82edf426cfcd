"""Output that arrives while somebody looks: by script, as text, until the call ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import anyio
import pytest

from toolcell.core import ToolResult
from toolcell.core.text.printable import escaped
from toolcell.tools import tool

from ...support.console.browser import Browser
from ...support.console.hostile import hostile_texts
from ...support.console.served import Service, runs_programs, served

CODE = runs_programs("coder", "gate", seconds=600)
PROGRAM = """
import sys
def say(text):
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\\n")
    sys.stdout.flush()
say("begun")
tools.gate(number=0)
say("\\x1b[32m50%\\r\\x1b[32m100%\\x1b[0m")
for text in {texts!r}:
    say(text)
say("all said")
tools.gate(number=1)
"""


COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def gates() -> list[anyio.Event]:
    return [anyio.Event(), anyio.Event()]


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, gates: list[anyio.Event]
) -> Iterator[Service]:
    @tool
    async def gate(number: int) -> None:
        await gates[number].wait()

    with served(tmp_path_factory.mktemp("console"), CODE) as made:
        made.host.registry.register(gate)
        yield made


def lines() -> list[str]:
    """Return hostile texts, each as one line."""
    return [text.replace("\n", " ").replace("\r", " ") for text in hostile_texts()]


def test_a_run_is_followed_as_text_and_ended(
    service: Service, anna: Browser, gates: list[anyio.Event]
) -> None:
    texts = lines()
    anna.open(f"{service.url}/runs")
    anna.reads("No call runs")
    call: Future[ToolResult] = service.call(
        "run_python", agent="coder", code=PROGRAM.format(texts=texts)
    )
    # The page hears of it, and of the call inside it.
    anna.reads("run_python")
    anna.reads("gate")
    anna.click("#live a")
    anna.reads("begun")
    others = "return document.querySelectorAll(':not([data-lines] span)').length"
    before = anna.script(others)
    service.portal.call(gates[0].set)
    anna.reads("all said")
    shown = anna.script("return document.querySelector('[data-lines]').textContent")

    said = ["begun", "100%", *(escaped(COLOURS.sub("", text)) for text in texts)]
    assert shown == "\n".join([*said, "all said", ""])
    assert anna.script(others) == before
    assert anna.script("return document.querySelector('.ansi-2').textContent") == "100%"
    assert anna.script("return window.hacked") is None
    anna.press("End the call")
    anna.reads("No call runs")
    assert call.result(60).status == "cancelled"
    anna.open(f"{service.url}/runs")
    anna.until(lambda: "cancelled" in anna.text)
    assert anna.complaints() == []


def test_pages_work_without_scripts(service: Service, anna: Browser) -> None:
    service.call("note", text="<img src=x onerror=hacked=1>").result(60)
    anna.allow_scripts(False)
    try:
        found: dict[str, Any] = {}
        for path in ("runs", "sessions", "agents", "audit", "policies", "health"):
            anna.open(f"{service.url}/{path}")
            found[path] = anna.find("h1").text
        anna.open(f"{service.url}/audit")
        anna.press("Check it now")
        anna.reads("The log verifies")
        anna.press("Keep the present head")
        anna.reads("anna")
    finally:
        anna.allow_scripts(True)

    assert set(found.values()) == {
        *("Runs", "Sessions", "Agents", "Audit", "Policies and tools", "Health")
    }
