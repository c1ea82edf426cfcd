"""The largest that agents and strangers write holds the console for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx2
import pytest

from toolcell.host.console.web.gate import MAX_STRANGERS_BYTES

from ....support.console.served import Service
from ....support.web.loop_steps import SECONDS, TRIES, steps

pytestmark = pytest.mark.promise("R1", "R3")

BYTES = 1_000_000
TEXTS = {
    "one text": "lorem ipsum, ",
    "letters": "日本",
    "hidden letters": "\u200b",
    "secrets": "token=abcdef ",
    "lines": "\n",
    "marks": "<&>",
}
OURS = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}


@pytest.fixture
def http(service: Service) -> Iterator[httpx2.Client]:
    """A person who is signed in."""
    cookies, token = service.signed_in()
    headers = {**OURS, "Origin": service.url, "X-Form-Token": token}
    with httpx2.Client(
        base_url=service.url, cookies=cookies, headers=headers, timeout=300
    ) as client:
        yield client


def longest_step(act: Callable[[], object]) -> float:
    """Return the longest step of the loop, of the best of several tries."""
    longest: list[float] = []
    while len(longest) < TRIES:
        with steps() as taken:
            act()
        longest.append(max(taken))
        if longest[-1] < SECONDS:
            break
    return min(longest)


@pytest.mark.parametrize("kind", TEXTS)
def test_no_arguments_hold_the_loop(
    service: Service, http: httpx2.Client, kind: str
) -> None:
    text = TEXTS[kind]
    script = text * (BYTES // len(text.encode()))
    request, _ = service.asked("run_script", script=script)

    def look(path: str) -> float:
        return longest_step(lambda: http.get(path).raise_for_status())

    taken = {path: look(path) for path in ("/", f"/approvals/{request.id}")}
    service.deny(request)

    assert max(taken.values()) < SECONDS, taken


@pytest.mark.parametrize("part", ["a", "%41", "%E6%97%A5", "a=b&"])
def test_no_form_holds_the_loop(
    service: Service, http: httpx2.Client, part: str
) -> None:
    token = http.headers["X-Form-Token"]
    body = f"form_token={token}&a=" + part * (4_000_000 // len(part))
    sent = {"Content-Type": "application/x-www-form-urlencoded"}

    def send() -> None:
        answer = http.post("/grants/x/revoke", content=body, headers=sent)
        assert answer.status_code == (400 if part.endswith("&") else 404)

    assert longest_step(send) < SECONDS


def test_a_stranger_sends_no_large_form(service: Service) -> None:
    headers = {**OURS, "Origin": service.url}
    answers = [
        httpx2.post(
            f"{service.url}/login", data={"a": "b" * size}, headers=headers, timeout=60
        ).status_code
        for size in (MAX_STRANGERS_BYTES - 2, MAX_STRANGERS_BYTES)
    ]

    assert answers == [403, 413]
