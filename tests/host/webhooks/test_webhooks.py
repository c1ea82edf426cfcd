"""Webhooks: what is told, how it is proven, and receivers that are slow or gone."""

from __future__ import annotations

import base64
import json
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import SecretStr
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from toolcell.core import ConfigError, ToolCall
from toolcell.core.text.printable import has_hidden
from toolcell.guard import (
    Approvals,
    ApprovalStore,
    Approve,
    CallFacts,
    Redactor,
    Reject,
)
from toolcell.host import Host, HostConfig
from toolcell.host.config.webhooks import WebhookConfig
from toolcell.host.webhooks.messages import Signer
from toolcell.host.webhooks.queue import MAX_WAITING, MessageQueue, WaitingMessage
from toolcell.host.webhooks.sender import GIVE_UP_SECONDS, Receiver, WebhookSender
from toolcell.tools import tool

from ...support.hidden_text import ATTACKS
from ...support.web.api import Sent, WebAPI, web_api

pytestmark = pytest.mark.anyio
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef" * 2).decode()
START = 1_000_000.0


class Clock:
    """The time, which tests move on."""

    now = START

    def __call__(self) -> float:
        return self.now


class Place:
    """Approvals, and senders for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.store = ApprovalStore(folder / "approvals.db")
        self.approvals = Approvals(
            self.store,
            answered_elsewhere=True,
            expiry_seconds=100.0,
            clock=self.clock,
        )

    async def ask(self, call_id: str, **arguments: Any) -> str:
        """Ask for a call; return the request's id."""
        given = {"number": call_id, **arguments}
        call = ToolCall(id=call_id, name="pay", arguments=given, agent_id="a")
        await self.approvals.put(call, CallFacts())
        return (await self.approvals.pending())[-1].id

    @asynccontextmanager
    async def sending(
        self, *urls: str, redactor: Redactor | None = None, **options: Any
    ) -> AsyncIterator[MessageQueue]:
        receivers = [
            Receiver(
                WebhookConfig(name=f"w{n}", url=url, secret="env:X", **options),
                SecretStr(SECRET),
            )
            for n, url in enumerate(urls)
        ]
        queue = MessageQueue(self.folder / "webhooks.db", self.clock())
        async with WebhookSender(
            self.approvals,
            receivers,
            queue,
            redactor=redactor or Redactor(),
            public_url="https://console.example.com",
            clock=self.clock,
            look_seconds=0.02,
        ):
            yield queue


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each attempt more time than a test has."""
    monkeypatch.setattr("toolcell.host.webhooks.sender.ATTEMPT_SECONDS", 150.0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path)
    yield found
    found.store.close()


@pytest.fixture
def api() -> Iterator[WebAPI]:
    with web_api() as found:
        yield found


async def until(condition: Any) -> None:
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.01)


def failures(caplog: pytest.LogCaptureFixture) -> int:
    """Return how many failures are noted: from then on the clock may go on."""
    return caplog.text.count("; it is tried again in ")


def data(sent: Sent) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sent.body)
    return found


def verified(sent: Sent) -> dict[str, Any]:
    """Verify a message as a receiver does, with the library of Standard Webhooks."""
    found: dict[str, Any] = Webhook(SECRET).verify(sent.body, dict(sent.headers))
    return found


@pytest.mark.promise("JA8")
async def test_a_host_tells_of_a_call_that_waits_and_of_its_answer(
    tmp_path: Path, api: WebAPI
) -> None:
    """The whole way, by the configuration and in real time."""
    path = tmp_path / "toolcell.toml"
    path.write_text(
        f"""
        [state]
        folder = "state"
        [console]
        public_url = "https://console.example.com"
        [[webhooks]]
        name = "chat"
        url = "{api.url}/hook?room=1"
        secret = "env:HOOK"
        [[policies]]
        agent_id = "a"
        ask = ["pay"]
        """
    )

    @tool
    async def pay(to: str) -> str:
        """Pay."""
        return "paid"

    async with Host.from_config(path, environ={"HOOK": SECRET}) as host:
        host.registry.register(pay)
        async with anyio.create_task_group() as tasks:
            results: list[Any] = []

            async def call() -> None:
                arguments = {"to": "secret-friend"}
                results.append(await host.call("pay", arguments, agent_id="a"))

            tasks.start_soon(call)
            await until(lambda: len(api.requests) == 1)
            [asked] = await host.approvals.pending()
            await host.approvals.answer(asked.id, Approve(approver="Ann"))
        await until(lambda: len(api.requests) == 2)
    first, second = (verified(request) for request in api.requests)

    assert results[0].content == "paid"
    assert first["type"] == "approval.asked" and second["type"] == "approval.answered"
    assert first["data"]["url"] == f"https://console.example.com/approvals/{asked.id}"
    assert first["data"]["tool"] == "pay" and first["data"]["agent_id"] == "a"
    assert second["data"]["status"] == "approved"
    assert second["data"]["approver"] == "Ann"
    assert (first["data"]["approvers"], first["data"]["approved_by"]) == (1, [])
    assert second["data"]["approved_by"] == ["Ann"]
    assert {request.target for request in api.requests} == {"/hook?room=1"}
    assert all(request.method == "POST" for request in api.requests)
    assert b"secret-friend" not in api.requests[0].body + api.requests[1].body


@pytest.mark.promise("E-131")
@pytest.mark.parametrize("spoil", ["body", "id", "timestamp", "secret"])
def test_a_message_that_was_changed_is_not_proven(spoil: str) -> None:
    now = int(datetime.now(UTC).timestamp())
    headers = Signer("w", SecretStr(SECRET)).headers("msg-1", now, b'{"a":1}')
    assert Webhook(SECRET).verify(b'{"a":1}', headers) == {"a": 1}
    secret, body = SECRET, b'{"a":1}'
    if spoil == "body":
        body = b'{"a":2}'
    elif spoil == "secret":
        secret = "whsec_" + base64.b64encode(b"x" * 32).decode()
    else:
        headers[f"webhook-{spoil}"] = str(now + 1)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body, headers)


async def test_each_end_is_told_once(place: Place, api: WebAPI) -> None:
    async with place.sending(f"{api.url}/hook"):
        names = {each: await place.ask(each) for each in ("yes", "no", "over", "late")}
        await until(lambda: len(api.requests) == 4)
        await place.approvals.answer(names["yes"], Approve(approver="Ann"))
        reply = Reject(approver="Ann", reason="hidden words")
        await place.approvals.answer(names["no"], reply)
        await place.approvals.end(names["over"], reason="hidden words")
        await until(lambda: len(api.requests) == 7)
        place.clock.now += 101
        await until(lambda: len(api.requests) == 8)
    told = [
        (data(request)["type"], data(request)["data"]["id"]) for request in api.requests
    ]

    assert told[:4] == [("approval.asked", name) for name in names.values()]
    assert sorted(told[4:7]) == sorted(
        [
            *(("approval.answered", names[each]) for each in ("yes", "no")),
            ("approval.expired", names["over"]),
        ]
    )
    assert told[7:] == [("approval.expired", names["late"])]
    statuses = [data(request)["data"].get("status") for request in api.requests]
    assert sorted(filter(None, statuses[:7])) == ["approved", "ended", "rejected"]
    assert statuses[7] == "expired"
    assert len({request.header("webhook-id") for request in api.requests}) == 8
    assert all(b"hidden words" not in request.body for request in api.requests)


async def test_a_request_that_waits_again_is_told_again(
    place: Place, api: WebAPI
) -> None:
    async with place.sending(f"{api.url}/hook"):
        request = await place.ask("again")
        await until(lambda: len(api.requests) == 1)
        for count in (2, 4):
            await place.approvals.answer(request, Approve(approver="Ann"))
            await until(lambda count=count: len(api.requests) == count)
            await place.approvals.withdraw("Ann", by="Eva")
            await until(lambda count=count: len(api.requests) == count + 1)
    told = [data(each)["type"].partition(".")[2] for each in api.requests]
    ids = [each.header("webhook-id") for each in api.requests]

    assert told == ["asked", "answered", "asked", "answered", "asked"]
    assert ids == [
        *(f"{request}-asked", f"{request}-answered", f"{request}-asked-2"),
        *(f"{request}-answered-2", f"{request}-asked-3"),
    ]


@pytest.mark.promise("R40")
async def test_no_letter_of_an_agent_is_hidden(place: Place, api: WebAPI) -> None:
    note = "".join(attack for attack, _ in ATTACKS.values() if attack.isascii())
    async with place.sending(f"{api.url}/hook", arguments=("note",)):
        await place.ask("1\u200b", note=f"\u202e{note}")
        await until(lambda: api.requests)
    told = data(api.requests[0])["data"]

    assert told["call_id"] == r"1\u{200b}"
    assert told["arguments"]["note"].startswith(r"\u{202e}")
    assert not has_hidden(json.dumps(told, ensure_ascii=False))


@pytest.mark.promise("E-131")
async def test_arguments_are_told_by_name_alone_and_redacted(
    place: Place, api: WebAPI
) -> None:
    url, redactor = f"{api.url}/hook", Redactor(secrets=[SecretStr("s3cr3t-words")])
    chosen = ("to", "note", "password", "absent")
    async with place.sending(url, redactor=redactor, arguments=chosen):
        await place.ask(
            "1", to="Bob", note="say s3cr3t-words", password="hunter22", other="x"
        )
        await until(lambda: api.requests)
    told = data(api.requests[0])["data"]["arguments"]

    assert set(told) == {"to", "note", "password"} and told["to"] == "Bob"
    assert "s3cr3t-words" not in str(told) and "hunter22" not in str(told)


async def test_a_webhook_is_told_of_its_own_events_alone(
    place: Place, api: WebAPI
) -> None:
    async with place.sending(f"{api.url}/hook", events=("approval.expired",)):
        await place.ask("1")
        await anyio.sleep(0)
        place.clock.now += 101
        await until(lambda: api.requests)

    assert [data(request)["type"] for request in api.requests] == ["approval.expired"]


async def test_a_failed_message_is_tried_again_with_growing_pauses(
    place: Place, api: WebAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.answer("/hook", b"no", 500)
    async with place.sending(f"{api.url}/hook") as queue:
        await place.ask("1")
        for tries, pause in enumerate((5, 10, 20, 40), 2):
            await until(lambda tries=tries: failures(caplog) == tries - 1)
            place.clock.now += pause - 1
            await anyio.sleep(0.1)
            assert len(api.requests) == tries - 1
            place.clock.now += 1
            if tries == 5:
                api.answers.clear()
            await until(lambda tries=tries: len(api.requests) == tries)
        await until(lambda: queue.waiting("w0") == 0)
    ids = {request.header("webhook-id") for request in api.requests}
    times = [request.header("webhook-timestamp") for request in api.requests]

    assert len(ids) == 1
    assert times == [str(int(START) + each) for each in (0, 5, 15, 35, 75)]


async def test_a_message_that_nobody_takes_is_dropped_after_a_day(
    place: Place, api: WebAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.answer("/hook", b"", 302, Location=f"{api.url}/elsewhere")
    async with place.sending(f"{api.url}/hook", events=("approval.asked",)) as queue:
        await place.ask("1")
        await until(lambda: failures(caplog) == 1)
        place.clock.now += GIVE_UP_SECONDS
        await until(lambda: len(api.requests) == 2)
        await until(lambda: queue.waiting("w0") == 0)

    assert {request.target for request in api.requests} == {"/hook"}


async def test_a_dead_receiver_delays_nobody(place: Place, api: WebAPI) -> None:
    """It takes connections and never answers; the calls and the other one go on."""
    async with place.sending(f"{api.url}/hold", f"{api.url}/hook"):
        with anyio.fail_after(60):
            for number in range(20):
                await place.ask(str(number))
            await until(lambda: api.targets.count("/hook") == 20)
        assert api.targets.count("/hold") == 1
        api.held.set()


async def test_what_was_not_delivered_survives_a_restart(
    place: Place, api: WebAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.answer("/hook", b"", 503)
    async with place.sending(f"{api.url}/hook"):
        request = await place.ask("1")
        await until(lambda: failures(caplog) == 1)
    # Answered while no host runs.
    await place.approvals.answer(request, Approve(approver="Ann"))
    api.answers.clear()
    api.requests.clear()
    place.clock.now += 10
    async with place.sending(f"{api.url}/hook") as queue:
        await until(lambda: len(api.requests) == 2)
        await until(lambda: queue.waiting("w0") == 0)

    assert sorted(data(each)["type"] for each in api.requests) == [
        "approval.answered",
        "approval.asked",
    ]


async def test_two_hosts_of_one_folder_deliver_once(place: Place, api: WebAPI) -> None:
    url = f"{api.url}/hook"
    async with place.sending(url) as queue, place.sending(url):
        for number in range(50):
            await place.ask(str(number))
        await until(lambda: len(api.requests) >= 50 and queue.waiting("w0") == 0)

    assert len({request.header("webhook-id") for request in api.requests}) == 50
    assert len(api.requests) == 50


async def test_requests_from_before_the_first_start_are_not_told(
    place: Place, api: WebAPI
) -> None:
    await place.ask("old")
    place.clock.now += 1
    async with place.sending(f"{api.url}/hook"):
        new = await place.ask("new")
        await until(lambda: api.requests)

    assert [data(request)["data"]["id"] for request in api.requests] == [new]


def test_the_messages_that_wait_are_bounded(tmp_path: Path) -> None:
    queue = MessageQueue(tmp_path / "webhooks.db", START)
    for number in range(MAX_WAITING + 3):
        made = WaitingMessage(f"m{number}", "w", b"", START + number)
        queue.add_asked(str(number), START, [made])
    assert queue.drop_excess("w") == 3
    oldest = queue.claim("w", START + 10_000, 60)

    assert oldest is not None and oldest.id == "m3"
    assert queue.waiting("w") == MAX_WAITING
    queue.close()


async def test_a_store_that_fails_is_looked_at_again(place: Place, api: WebAPI) -> None:
    async with place.sending(f"{api.url}/hook"):
        with closing(sqlite3.connect(place.folder / "webhooks.db")) as other, other:
            other.execute("BEGIN EXCLUSIVE")
            await place.ask("1")
            await anyio.sleep(0.1)
            other.rollback()
        other.close()
        await until(lambda: api.requests)


def configured(folder: Path, text: str) -> HostConfig:
    path = folder / "toolcell.toml"
    path.write_text(text)
    return HostConfig.from_file(path, environ={})


HOOK = "[[webhooks]]\nname = 'w'\nsecret = 'env:X'\n"
STATE = "[state]\nfolder = 'state'\n"


@pytest.mark.promise("E-131")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{STATE}{HOOK}url = 'http://example.com/x'", "https"),
        (f"{STATE}{HOOK}url = 'ftp://example.com/x'", "webhooks.0.url"),
        (f"{STATE}{HOOK}url = 'https://u:p@example.com/x'", "webhooks.0.url"),
        (f"{STATE}{HOOK}url = 'https://x/'\nevents = ['other']", "webhooks.0.events"),
        (f"{STATE}{HOOK}url = 'https://x/'\nevents = []", "webhooks.0.events"),
        (f"{STATE}{HOOK}url = 'https://x/'\n{HOOK}url = 'https://y/'", "one name"),
        (f"{HOOK}url = 'https://x/'", "state.folder"),
        (
            f"{STATE}[[webhooks]]\nname = 'w'\nsecret = 'hunter22'\nurl = 'https://x/'",
            "never written",
        ),
    ],
)
def test_a_webhook_is_described_in_one_clear_way(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, text)

    assert problem in str(caught.value)
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize(
    "secret",
    ["hunter22", "whsec_aHVudGVyMjI=", "whsec_hunter22!", SECRET[6:]],
)
async def test_a_secret_of_another_form_is_refused(tmp_path: Path, secret: str) -> None:
    config = configured(tmp_path, f"{STATE}{HOOK}url = 'https://example.com/x'")
    with pytest.raises(ConfigError, match="Standard Webhooks") as caught:
        async with Host(config, environ={"X": secret}):
            pass

    assert secret not in str(caught.value)


@pytest.mark.promise("E-68")
async def test_a_message_goes_to_no_inner_address(place: Place) -> None:
    """`https` leads to public addresses, plain HTTP to the loopback address."""
    config = WebhookConfig(name="w", url="https://localhost:1/x", secret="env:X")
    waiting = WaitingMessage("m", "w", b"{}", START)
    problem = await Receiver(config, SecretStr(SECRET)).deliver(waiting, START)

    assert problem is not None and "not on the public internet" in problem
