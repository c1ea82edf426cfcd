"""The parts that people at a host share: a check of the log, kept heads, the doctor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from toolcell.guard import AuditLog

from ..config.host_config import HostConfig
from .audit_check import AuditCheck
from .doctor import Doctor
from .heads import HEADS_FILE, HeadFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The parts, all of them open."""

    audit_check: AuditCheck | None
    """The check of the audit log; None: there is no log."""

    heads: HeadFile | None
    """The heads of the log that were kept; None: there is no place for them."""

    doctor: Doctor


@contextmanager
def open_desk(config: HostConfig, audit: AuditLog | None) -> Iterator[Desk]:
    """Open the parts while the block runs.

    Args:
        config: The configuration.
        audit: The audit log; None: there is none.

    Raises:
        ConfigError: The kept heads cannot be opened.
    """
    with ExitStack() as stack:
        check = heads = None
        if audit is not None:
            check = AuditCheck(audit)
            stack.callback(check.close)
            if config.state.folder is not None:
                heads = stack.enter_context(HeadFile(config.state.folder / HEADS_FILE))
        yield Desk(audit_check=check, heads=heads, doctor=Doctor(config.sandbox))
