"""Records in the audit log what a command does."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ...terminal.user_name import account_name

if TYPE_CHECKING:
    from ...config.host_config import HostConfig


async def record_event(settings: HostConfig, event: str, **fields: str) -> None:
    """Write a record, with the name of the account that runs the command.

    Without a configured log nothing is written.

    Raises:
        AuditError: It cannot be written.
    """
    from toolcell.core.secrets import read_secret
    from toolcell.guard import Redactor

    from ...runtime.assembly import open_audit

    key = settings.audit.key
    secrets = {} if key is None else {key: read_secret(key, os.environ)}
    async with AsyncExitStack() as stack:
        log = open_audit(settings, secrets, Redactor(), stack)
        if log is not None:
            log.append(event, **fields, by=account_name())
