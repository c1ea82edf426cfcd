"""Sees requests for approval come and go, and delivers messages about them.

Requests are seen in the store, so it does not matter which process asks or answers.
Messages are written to a file first, and sent by tasks and threads of their own: a
receiver that is slow or gone delays no call. What a host that ends has not delivered,
the next one delivers.
"""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from anyio.abc import TaskGroup
from pydantic import SecretStr

from toolcell.core import ConfigError, StoreUnavailableError, ToolError
from toolcell.core.egress import EgressRules
from toolcell.core.http_exchange import NoAnswerError, Request, exchange
from toolcell.guard import Approvals, Redactor
from toolcell.guard.spi import ApprovalRecord

from ..config.host_config import HostConfig
from ..config.webhooks import WebhookConfig, WebhookEvent
from .messages import Signer, event_of, message
from .queue import MAX_WAITING, MessageQueue, WaitingMessage

LOOK_SECONDS = 1.0
"""Seconds between two looks at the requests, and at the messages that are due."""

ATTEMPT_SECONDS = 5.0
"""Seconds for one attempt. When it is reached the attempt has failed. A host that ends
waits for the attempt that runs, and for one more."""

LAST_PAUSE_SECONDS = 3_600.0
"""Longest pause between two attempts; the first is 5 s, and each is twice the one
before."""

GIVE_UP_SECONDS = 86_400.0
"""Seconds after the event at which a message that was not delivered is dropped, with a
warning in the log."""

_FIRST_PAUSE_SECONDS = 5.0
_LEASE_SECONDS = 60.0
_PAGE = 20
_LOOPBACK = ("127.0.0.0/8", "::1/128")
_log = logging.getLogger("toolcell.host")


class Receiver:
    """One webhook: its URL, and its messages' signatures.

    Args:
        webhook: Its configuration.
        secret: The secret that messages are signed with.

    Raises:
        ConfigError: The secret cannot be used.
    """

    def __init__(self, webhook: WebhookConfig, secret: SecretStr) -> None:
        self.webhook = webhook
        self._signer = Signer(webhook.name, secret)
        parts = urlsplit(webhook.url)
        port = parts.port or (80 if webhook.is_loopback else 443)
        networks = [str(network) for network in webhook.networks]
        self._rules = EgressRules.of(
            f"the webhook {webhook.name}",
            [parts.hostname or ""],
            [port],
            _LOOPBACK if webhook.is_loopback else networks,
        )
        # A receiver that hangs takes one thread of its own, and no other's.
        self._threads = CapacityLimiter(1)

    async def deliver(self, waiting: WaitingMessage, now: float) -> str | None:
        """Try once to deliver a message; return why it failed, or None."""
        send = partial(self._send, waiting, int(now))
        return await anyio.to_thread.run_sync(send, limiter=self._threads)

    def _send(self, waiting: WaitingMessage, timestamp: int) -> str | None:
        headers = self._signer.headers(waiting.id, timestamp, waiting.body)
        headers["Content-Type"] = "application/json"
        request = Request("POST", headers, waiting.body)
        try:
            target = self._rules.target(self.webhook.url)
            status = exchange(target, self._rules, request, ATTEMPT_SECONDS, _status)
        except NoAnswerError:
            return "there was no answer"
        except ToolError as error:
            return error.message
        return None if 200 <= status < 300 else f"the answer was status {status}"


def _status(response: http.client.HTTPResponse) -> int:
    return response.status


class WebhookSender:
    """Tells receivers of requests for approval, inside `async with`.

    Args:
        approvals: The approvals.
        receivers: The receivers.
        queue: The messages that wait; closed when this is left.
        redactor: Hides likely secrets in messages.
        public_url: The address of the console, for links.
        clock: Returns seconds since 1970 (UTC).
        look_seconds: Seconds between two looks.
    """

    def __init__(
        self,
        approvals: Approvals,
        receivers: list[Receiver],
        queue: MessageQueue,
        *,
        redactor: Redactor,
        public_url: str | None = None,
        clock: Callable[[], float] = time.time,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._approvals = approvals
        self._receivers = receivers
        self._queue = queue
        self._redactor = redactor
        self._public_url = public_url
        self._clock = clock
        self._look_seconds = look_seconds
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._watch)
        for receiver in self._receivers:
            self._tasks.start_soon(self._deliver, receiver)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            # The caller's error is not the group's: it goes on as it is.
            await tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            await self._look()
            async with anyio.create_task_group() as last:
                for receiver in self._receivers:
                    last.start_soon(self._deliver_due, receiver)
        self._queue.close()

    async def _watch(self) -> None:
        while True:
            await self._look()
            await anyio.sleep(self._look_seconds)

    async def _look(self) -> None:
        """Put in messages of requests that came or went."""
        try:
            await self._tell_new()
            waiting = set(await self._approvals.waiting())
            await self._tell_again(waiting)
            await self._tell_ended(waiting)
        except StoreUnavailableError as error:
            _log.warning("webhooks do not see requests for approval: %s", error)

    async def _tell_new(self) -> None:
        new: list[ApprovalRecord] = []
        before: int | None = None
        while True:
            page = await self._approvals.recent(before=before, limit=_PAGE)
            ids = [record.request.id for record in page]
            known = await anyio.to_thread.run_sync(self._queue.known, ids)
            unknown = [
                record
                for record in page
                if record.request.id not in known
                and record.request.asked_at >= self._queue.start
            ]
            new += unknown
            if len(unknown) < _PAGE:
                break
            before = page[-1].number
        # The oldest first: one that is known shows that those before it are.
        for record in reversed(new):
            request = record.request
            make = partial(self._messages, "approval.asked", record, request.asked_at)
            # To look for secrets in a large request takes long.
            messages = await anyio.to_thread.run_sync(make)
            put = partial(self._queue.add_asked, request.id, request.asked_at, messages)
            await anyio.to_thread.run_sync(put)

    async def _tell_again(self, waiting: set[str]) -> None:
        """Report requests that have ended and wait again, after a withdrawal."""
        if not waiting:
            return
        again = await anyio.to_thread.run_sync(self._queue.ended_requests, waiting)
        for request_id, turn in again.items():
            record = await self._approvals.find(request_id)
            if record is not None and event_of(record, self._clock()) is None:
                await self._tell_next("approval.asked", record, turn + 1)

    async def _tell_ended(self, waiting: set[str]) -> None:
        unended = await anyio.to_thread.run_sync(self._queue.open_requests)
        for request_id, turn in unended.items():
            if request_id in waiting:
                continue
            record = await self._approvals.find(request_id)
            if record is None:
                forget = partial(self._queue.add_next, request_id, turn + 1, [])
                await anyio.to_thread.run_sync(forget)
                continue
            event = event_of(record, self._clock())
            if event is not None:
                await self._tell_next(event, record, turn + 1)

    async def _tell_next(
        self, event: WebhookEvent, record: ApprovalRecord, turn: int
    ) -> None:
        make = partial(self._messages, event, record, self._clock(), turn)
        messages = await anyio.to_thread.run_sync(make)
        put = partial(self._queue.add_next, record.request.id, turn, messages)
        await anyio.to_thread.run_sync(put)

    def _messages(
        self, event: WebhookEvent, record: ApprovalRecord, now: float, turn: int = 0
    ) -> list[WaitingMessage]:
        times = turn // 2 + 1
        name = f"{record.request.id}-{event.partition('.')[2]}"
        return [
            WaitingMessage(
                id=name if times == 1 else f"{name}-{times}",
                webhook=receiver.webhook.name,
                body=message(
                    event,
                    record,
                    now,
                    receiver.webhook,
                    self._redactor,
                    self._public_url,
                ),
                made_at=now,
            )
            for receiver in self._receivers
            if event in receiver.webhook.events
        ]

    async def _deliver(self, receiver: Receiver) -> None:
        while True:
            await self._deliver_due(receiver)
            await anyio.sleep(self._look_seconds)

    async def _deliver_due(self, receiver: Receiver) -> None:
        """Deliver the messages that are due, until one of them is not."""
        try:
            while await self._deliver_one(receiver):
                pass
        except StoreUnavailableError as error:
            _log.warning("webhooks are not delivered: %s", error)

    async def _deliver_one(self, receiver: Receiver) -> bool:
        """Try the next message that is due; return True if it was delivered."""
        name, now = receiver.webhook.name, self._clock()
        dropped = await anyio.to_thread.run_sync(self._queue.drop_excess, name)
        if dropped:
            _log.warning(
                "%d messages of the webhook %s are dropped: more than %d wait",
                *(dropped, name, MAX_WAITING),
            )
        claim = partial(self._queue.claim, name, now, _LEASE_SECONDS)
        waiting = await anyio.to_thread.run_sync(claim)
        if waiting is None:
            return False
        problem = await receiver.deliver(waiting, now)
        if problem is not None:
            await self._failed(waiting, problem)
            return False
        await anyio.to_thread.run_sync(self._queue.remove, waiting)
        return True

    async def _failed(self, waiting: WaitingMessage, problem: str) -> None:
        pause = min(_FIRST_PAUSE_SECONDS * 2.0**waiting.tries, LAST_PAUSE_SECONDS)
        next_at = self._clock() + pause
        level, then = logging.INFO, f"it is tried again in {pause:g} s"
        if next_at - waiting.made_at > GIVE_UP_SECONDS:
            level, then = logging.WARNING, "it is dropped"
            await anyio.to_thread.run_sync(self._queue.remove, waiting)
        else:
            postpone = partial(self._queue.postpone, waiting, next_at)
            await anyio.to_thread.run_sync(postpone)
        _log.log(
            level,
            "the message %s of the webhook %s is not delivered: %s; %s",
            *(waiting.id, waiting.webhook, problem, then),
        )


WEBHOOKS_FILE = "webhooks.db"


def make_webhooks(
    config: HostConfig,
    secrets: Mapping[str, Any],
    approvals: Approvals,
    redactor: Redactor,
) -> WebhookSender | None:
    """Return the sender of messages; None: there are no webhooks.

    Raises:
        ConfigError: A secret or the file of messages cannot be used.
    """
    folder = config.state.folder
    if not config.webhooks:
        return None
    if folder is None:
        raise ConfigError("webhooks need state.folder", hint="set it to a folder")
    receivers = [
        Receiver(webhook, secrets[webhook.secret]) for webhook in config.webhooks
    ]
    return WebhookSender(
        approvals,
        receivers,
        MessageQueue(folder / WEBHOOKS_FILE, time.time()),
        redactor=redactor,
        public_url=config.console.public_url,
    )
