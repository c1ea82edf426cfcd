"""Signatures of Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from pydantic import SecretStr

from toolcell.core import ConfigError

_PREFIX = "whsec_"


class Signer:
    """Signs messages with one secret.

    Args:
        name: The webhook's name, for messages.
        secret: `whsec_` and 24 to 64 bytes in base64.

    Raises:
        ConfigError: It is none. The message does not repeat it.
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
