"""Opens the webhooks of the configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from toolcell.core import ConfigError
from toolcell.guard import Approvals, Redactor

from ..config.host_config import HostConfig
from .queue import MessageQueue
from .sender import Receiver, WebhookSender

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
    receivers = [Receiver(each, secrets[each.secret]) for each in config.webhooks]
    return WebhookSender(
        approvals,
        receivers,
        MessageQueue(folder / WEBHOOKS_FILE, time.time()),
        redactor=redactor,
        public_url=config.console.public_url,
    )
