"""Texts of agents are text: they run nothing, hide nothing and change no page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from toolcell.core.text.printable import escaped
from toolcell.tools import Tool

from ...conftest import missing
from ...support.console.browser import Browser
from ...support.console.hostile import hostile_texts
from ...support.console.served import Service, served
from ...support.corpora import CORPORA

MORE = """
[[policies]]
agent_id = "hostile"
ask = ["take"]
"""


class Take(Tool):
    """Takes texts."""

    name = "take"
    description = "Takes texts."
    parameters = {  # noqa: RUF012 - as tools declare them
        "type": "object",
        "additionalProperties": {"type": "string"},
    }

    async def execute(self, **texts: str) -> str:
        return " ".join(texts.values())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("console"), MORE) as made:
        made.host.registry.register(Take())
        yield made


def naughty_strings() -> list[str]:
    path = CORPORA / "naughty_strings" / "blns.json"
    if not path.is_file():
        missing("there are no naughty strings")
    found: list[str] = json.loads(path.read_text())
    return found


def shown(service: Service, anna: Browser, texts: dict[str, str]) -> Any:
    """Return the arguments of a request as its page has them; deny it."""
    request, call = service.asked("take", agent="hostile", **texts)
    anna.open(f"{service.url}/approvals/{request.id}")
    found = anna.script(
        "const text = (css) => [...document.querySelectorAll(css)]"
        "  .map((each) => each.textContent);"
        "return [text('.arguments dt > code'), text('.arguments dd > pre'),"
        "  document.forms.length, document.querySelectorAll("
        "    'script, iframe, img, svg, style, base, link, meta').length]"
    )
    anna.click("#why-" + request.id)
    anna.write("#reason-" + request.id, "<img src=x onerror=hacked=1>")
    anna.press("Deny")
    anna.reads("Reason: <img src=x onerror=hacked=1>")
    hacked = anna.script("return window.hacked")
    assert call.result(timeout=60).status == "denied"
    assert hacked is None
    return found


@pytest.mark.corpus
@pytest.mark.parametrize("source", [naughty_strings, hostile_texts])
def test_texts_are_shown_as_they_are(
    service: Service, anna: Browser, source: Any
) -> None:
    texts = source()
    plain = shown(service, anna, {"text0": "plain"})
    named = {f"text{number:03}": text for number, text in enumerate(texts)}
    names, values, *elements = shown(service, anna, named)

    assert len(texts) >= 500
    assert names == list(named)
    assert values == [escaped(text) for text in texts]
    assert elements == plain[2:]
    assert anna.complaints() == []


@pytest.mark.corpus
@pytest.mark.parametrize("source", [naughty_strings, hostile_texts])
def test_names_are_shown_as_they_are(
    service: Service, anna: Browser, source: Any
) -> None:
    texts = [*dict.fromkeys(source())]
    plain = shown(service, anna, {"text0": "plain"})
    names, values, *elements = shown(service, anna, dict.fromkeys(texts, "x"))

    assert sorted(names) == sorted(escaped(text) for text in texts)
    # Some are names of secrets, such as those that have the word token.
    assert set(values) <= {"x", "[hidden: 1 characters]"}
    # There is no form to edit what is hidden.
    assert elements[1:] == plain[3:]
    assert anna.complaints() == []
