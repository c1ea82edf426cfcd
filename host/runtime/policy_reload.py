"""Replaces the policies of a running server when their files change.

A server started with `open_watched` looks at `toolcell.toml` and its policy files once
a second, and also reads them at SIGHUP. Either all policies are replaced, in one step
and recorded, or none: a file that cannot be used, or that programs could change, is
logged, recorded and shown by a metric, and the policies in force stay. Calls that are
running keep what they were admitted with.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from toolcell.core import AuditError, PolicyError, ToolcellError
from toolcell.core.gauges import Gauges
from toolcell.guard import ActionGuard, AuditLog

from ..config.host_config import HostConfig
from ..config.mounted import why_not_mounted
from .host import Host

LOOK_SECONDS = 1.0
"""Seconds between two looks at the files. A changed file is read when the next look
finds it unchanged again, so that no half-written file is read."""

MAX_FILES = 20
"""Changed files that a record names. When it is reached the others are left out."""

_log = logging.getLogger("toolcell.host")
_Stamps = Mapping[Path, tuple[int, ...] | None]


class PolicyReloader:
    """Reads the policies of a configuration again, all of them or none.

    Other keys of the configuration take effect at the next start.

    Args:
        guard: The guard whose policies are replaced; it records the change.
        config: The configuration as it was read at the start.
        path: Its file.
        audit: Records that files cannot be used; None: another process does.
        look_seconds: Seconds between two looks at the files.
    """

    def __init__(
        self,
        guard: ActionGuard,
        config: HostConfig,
        path: Path,
        *,
        audit: AuditLog | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.stale = False
        """True while other policies are in force than files have, as one cannot be
        used."""

        self._guard = guard
        self._audit = audit
        self._config = config
        self._running = config
        self._path = path
        self._look_seconds = look_seconds
        self._reloading = anyio.Lock()
        self._read = self._stamps(config)
        self._changed: set[Path] = set()

    async def watch(self) -> None:
        """Read the files whenever one of them has changed, until cancelled."""
        before = self._read
        with _reloaders.watched(self):
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
            before = self._read
            self._read = await anyio.to_thread.run_sync(self._stamps, self._config)
            self._changed |= {path for path, _ in before.items() ^ self._read.items()}
            try:
                version = await anyio.to_thread.run_sync(self._replace)
            except ToolcellError as error:
                self.stale = True
                _log.error("policies stay as they are: %s", error)
                await anyio.to_thread.run_sync(self._record_stale, error)
            else:
                self.stale = False
                self._changed.clear()
                _log.warning("policies of version %s are in force", version)

    def _record_stale(self, error: ToolcellError) -> None:
        if self._audit is not None:
            with suppress(AuditError):  # it may be the reason
                self._audit.append(
                    "policies_stale",
                    version=self._guard.policy_version,
                    problem=error.message,
                    files=self._changed_files(),
                )

    def _changed_files(self) -> list[str]:
        return sorted(map(str, self._changed))[:MAX_FILES]

    def _replace(self) -> str:
        fresh = HostConfig.from_file(self._path)
        # Cells have the mounts of the start, whatever the file says by now.
        if why := why_not_mounted(self._running.mounted(), (), fresh.policy_paths()):
            raise PolicyError(
                why, hint="or restart, to change mounts and files at once"
            )
        version = self._guard.replace_policies(
            fresh.all_policies(), files=self._changed_files()
        )
        if _others(fresh) != _others(self._config):
            _log.warning("changes of %s other than policies need a restart", self._path)
        if fresh.policy_files != self._config.policy_files:
            self._read = self._stamps(fresh)
        self._config = fresh
        return version

    def _stamps(self, config: HostConfig) -> _Stamps:
        """Return facts of the files that change when a file does."""
        return {path: _stamp(path) for path in (self._path, *config.policy_paths())}


_reloaders = Gauges[PolicyReloader]("toolcell.host")
_reloaders.add_sum(
    "toolcell.policies.stale",
    lambda reloader: reloader.stale,
    description="1 while a file of policies has changed and cannot be used.",
)


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
            reload = PolicyReloader(host.guard, config, path, audit=host.audit)
            tasks = await anyio.create_task_group().__aenter__()
            tasks.start_soon(reload.watch)
            tasks.start_soon(reload.reload_at, hangups)
            try:
                yield host
            finally:
                tasks.cancel_scope.cancel()
                # Without arguments, so that the caller's error is not put in a group.
                await tasks.__aexit__(None, None, None)
