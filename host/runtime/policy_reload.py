"""Replaces the policies of a running server when their files change.

A server started with `open_watched` looks at `toolcell.toml` and its policy files once
a second, and also reads them at SIGHUP. Either all policies are replaced, in one step
and recorded, or none: a file that cannot be used is logged, and the policies in force
stay. Calls that are running keep what they were admitted with.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from toolcell.core import ToolcellError
from toolcell.guard import ActionGuard

from ..config.host_config import HostConfig
from .host import Host

LOOK_SECONDS = 1.0
"""Seconds between two looks at the files. A changed file is read when the next look
finds it unchanged again, so that no half-written file is read."""

_log = logging.getLogger("toolcell.host")
_Stamps = Mapping[Path, tuple[int, ...] | None]


class PolicyReloader:
    """Reads the policies of a configuration again, all of them or none.

    Other keys of the configuration take effect at the next start.

    Args:
        guard: The guard whose policies are replaced; it records the change.
        config: The configuration as it was read at the start.
        path: Its file.
        look_seconds: Seconds between two looks at the files.
    """

    def __init__(
        self,
        guard: ActionGuard,
        config: HostConfig,
        path: Path,
        *,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._guard = guard
        self._config = config
        self._path = path
        self._look_seconds = look_seconds
        self._reloading = anyio.Lock()
        self._read = self._stamps(config)

    async def watch(self) -> None:
        """Read the files whenever one of them has changed, until cancelled."""
        before = self._read
        while True:
            await anyio.sleep(self._look_seconds)
            now = await anyio.to_thread.run_sync(self._stamps, self._config)
            if now == before and now != self._read:
                await self.reload()
            before = now

    async def reload_at(self, hangups: AsyncIterator[signal.Signals]) -> None:
        """Read the files at each SIGHUP."""
        async for _ in hangups:
            await self.reload()

    async def reload(self) -> None:
        """Read the files now."""
        async with self._reloading:
            self._read = await anyio.to_thread.run_sync(self._stamps, self._config)
            try:
                version = await anyio.to_thread.run_sync(self._replace)
            except ToolcellError as error:
                _log.error("policies stay as they are: %s", error)
            else:
                _log.warning("policies of version %s are in force", version)

    def _replace(self) -> str:
        fresh = HostConfig.from_file(self._path)
        version = self._guard.replace_policies(fresh.all_policies())
        if _others(fresh) != _others(self._config):
            _log.warning("changes of %s other than policies need a restart", self._path)
        if fresh.policy_files != self._config.policy_files:
            self._read = self._stamps(fresh)
        self._config = fresh
        return version

    def _stamps(self, config: HostConfig) -> _Stamps:
        """Return facts of the files that change when a file does."""
        return {path: _stamp(path) for path in (self._path, *config.policy_files)}


def _others(config: HostConfig) -> HostConfig:
    return config.model_copy(update={"policies": (), "policy_files": ()})


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns


@asynccontextmanager
async def open_watched(config: HostConfig, path: Path) -> AsyncIterator[Host]:
    """Open a host whose policies follow their files, and are read again at SIGHUP.

    Args:
        config: The configuration.
        path: Its file.
    """
    with anyio.open_signal_receiver(signal.SIGHUP) as hangups:
        async with Host(config) as host:
            reload = PolicyReloader(host.guard, config, path)
            tasks = await anyio.create_task_group().__aenter__()
            tasks.start_soon(reload.watch)
            tasks.start_soon(reload.reload_at, hangups)
            try:
                yield host
            finally:
                tasks.cancel_scope.cancel()
                # Without arguments, so that the caller's error is not put in a group.
                await tasks.__aexit__(None, None, None)
