"""The store of threads, opened without the code of their graphs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...terminal.output import print_notice
from ...terminal.signals import run_async

if TYPE_CHECKING:
    from toolcell.flow import StoredThreads

    from ...config.host_config import HostConfig

T = TypeVar("T")


def with_threads(
    path: Path,
    work: Callable[[StoredThreads], Awaitable[T]],
    *,
    with_approvals: bool = False,
    as_json: bool = False,
) -> T:
    """Return what was done in the store of threads of a configuration.

    Args:
        path: The configuration.
        work: Does it.
        with_approvals: True: questions that it ends leave the approvals, too. Where
            the guard cannot be opened they stay, and a notice says so.
        as_json: True: the notice is JSON.
    """
    from ...config.host_config import HostConfig

    config = HostConfig.from_file(path)
    found: T = run_async(_opened, config, work, with_approvals, as_json)
    return found


async def _opened(
    config: HostConfig,
    work: Callable[[StoredThreads], Awaitable[T]],
    with_approvals: bool = False,
    as_json: bool = False,
) -> T:
    from toolcell.core import ToolcellError
    from toolcell.flow import StoredThreads

    from ...runtime.assembly import APPROVALS_FILE, open_guard
    from ...runtime.flows import open_threads

    async with AsyncExitStack() as stack:
        store, approvals = await open_threads(config, os.environ, stack), None
        if with_approvals and config.state.has(APPROVALS_FILE):
            try:
                approvals = open_guard(config, os.environ, stack).approvals
            except ToolcellError as error:
                # A thread can be ended all the same.
                reason = f"its requests stay among the approvals: {error.message}"
                print_notice(reason, as_json=as_json)
        return await work(StoredThreads(store, approvals=approvals))


async def prune_old(config: HostConfig) -> None:
    """Delete the threads that `flows.history_days` keeps no longer."""
    days = config.flows.history_days
    if days is not None:
        await _opened(config, lambda threads: threads.prune(days_ago(days)))


def days_ago(days: float) -> datetime:
    """Return the time so many days ago, or the earliest one that a date can be."""
    try:
        return datetime.now(UTC) - timedelta(days=days)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
