"""Messages about requests for approval: ids and words, and no contents but those that
the configuration names."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from datetime import UTC, datetime
from typing import Any

from pydantic import SecretStr

from toolcell.core import ConfigError
from toolcell.core.text.printable import escaped_json
from toolcell.guard import Redactor, ShownRequest
from toolcell.guard.spi import ApprovalRecord

from ..config.webhooks import WebhookConfig, WebhookEvent


def event_of(record: ApprovalRecord, now: float) -> WebhookEvent | None:
    """Return the event that ended a request; None: it waits."""
    if record.status != "pending":
        return "approval.answered"
    return "approval.expired" if record.request.expires_at <= now else None


def message(
    event: WebhookEvent,
    record: ApprovalRecord,
    now: float,
    webhook: WebhookConfig,
    redactor: Redactor,
    public_url: str | None,
) -> bytes:
    """Return the body of a message.

    Args:
        event: The event.
        record: The request with its answer.
        now: The time of the event, in seconds since 1970 (UTC).
        webhook: Names the arguments that are in it.
        redactor: Hides likely secrets in them.
        public_url: The address of the console; a link to the request is below it.
    """
    request = record.request
    data: dict[str, Any] = {
        "id": request.id,
        "agent_id": request.call.agent_id,
        "run_id": redactor(request.run_id),
        "call_id": redactor(request.call.id),
        "tool": request.call.name,
        "rule": request.rule,
        "shell_like": request.shell_like,
        "approvers": request.approvers,
        "approved_by": record.approved_by,
        "asked_at": _time(request.asked_at),
        "expires_at": _time(request.expires_at),
    }
    if webhook.arguments:
        shown = ShownRequest(request, redactor).arguments
        data["arguments"] = {
            name: shown[name] for name in webhook.arguments if name in shown
        }
    if event == "approval.answered":
        data["status"] = "rejected" if record.status == "rejected" else "approved"
        data["approver"] = record.approver
    elif event == "approval.expired":
        data["status"] = record.state(now)
    if public_url is not None:
        data["url"] = f"{public_url}/approvals/{request.id}"
    # A chat shows people what the receiver puts there: no letter of it is hidden.
    escaped = escaped_json(data)
    text = {"type": event, "timestamp": _time(now), "data": escaped}
    return json.dumps(text, ensure_ascii=False).encode()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


_PREFIX = "whsec_"


class Signer:
    """Signs messages with one secret, by Standard Webhooks (standardwebhooks.com).

    Args:
        name: The webhook's name, for messages.
        secret: `whsec_` and 24 to 64 bytes in base64.

    Raises:
        ConfigError: It is not valid. The message does not repeat it.
    """

    def __init__(self, name: str, secret: SecretStr) -> None:
        text = secret.get_secret_value()
        try:
            key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not text.startswith(_PREFIX) or not 24 <= len(key) <= 64:
            raise ConfigError(
                f"the secret of the webhook {name} is not one of Standard Webhooks",
                hint="write whsec_ and the output of `openssl rand -base64 32`",
            )
        self._key = key

    def headers(self, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """Return the headers that prove a message.

        Args:
            message_id: The same for each attempt to deliver the message.
            timestamp: The time of the attempt, in seconds since 1970 (UTC).
            body: The body.
        """
        signed = f"{message_id}.{timestamp}.".encode() + body
        digest = hmac.new(self._key, signed, hashlib.sha256).digest()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
        }
