"""Snapshots: the files of sandboxes, kept in `state.folder` until they are deleted."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, ValidationError

from toolcell.core import ConfigError

from ...config.host_config import HostConfig
from ...config.sandbox_api import SandboxAPIConfig
from ...http.tokens import Token
from ..protocol.errors import APIError
from .sandbox import Sandbox
from .sandboxes import new_id


class Snapshot(BaseModel):
    """One snapshot: a description beside an archive of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    id: str
    token_id: str
    """Its owner, the only one that finds it."""

    sandbox_id: str
    """The sandbox that it was taken of."""

    name: str | None
    template: str
    env: dict[str, str]
    made_at: float
    """Seconds since 1970 (UTC)."""


class Snapshots:
    """The snapshots of all tokens. Each has the work dir of a sandbox, and no process.

    A snapshot is there when its description is: the archive is written first, and
    removed last.

    Args:
        folder: The folder of the archives; it is made.
        settings: The limits.

    Raises:
        ConfigError: The folder cannot be used, or a description in it is of another
            version.
    """

    def __init__(self, folder: Path, settings: SandboxAPIConfig) -> None:
        self._folder = folder
        self._settings = settings
        self._all: dict[str, Snapshot] = {}
        self._turn = anyio.Lock()
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            for path in sorted(folder.iterdir()):
                self._read(path)
        except OSError as error:
            raise ConfigError(
                f"snapshots cannot be read: {error}",
                hint="set state.folder to one that this user may read",
            ) from None
        self._drop_old()

    def _read(self, path: Path) -> None:
        if path.suffix == ".json":
            try:
                found = Snapshot.model_validate_json(path.read_bytes())
            except ValidationError:
                raise ConfigError(
                    f"{path} is no snapshot of this version",
                    hint="move it away, or use the version that wrote it",
                ) from None
            self._all[found.id] = found
        elif not path.with_suffix(".json").exists():
            path.unlink(missing_ok=True)

    async def take(self, sandbox: Sandbox, name: str | None) -> Snapshot:
        """Write the work dir of a sandbox into an archive; it stands still meanwhile.

        Raises:
            APIError: Its token has as many as it may.
            InvalidInputError: The files are too large, or cannot be written.
            CellLostError: The sandbox has ended.
        """
        snapshot = Snapshot(
            id=new_id("s"),
            token_id=sandbox.token.id,
            sandbox_id=sandbox.id,
            name=name,
            template=sandbox.template,
            env=sandbox.env,
            made_at=time.time(),
        )
        # Two at once would both find the last free place.
        async with self._turn:
            self._drop_old()
            if len(self.all_of(sandbox.token)) >= self._settings.max_snapshots:
                raise APIError(
                    429,
                    f"you have {self._settings.max_snapshots} snapshots already",
                    reason="too_many_snapshots",
                )
            archive = self.archive(snapshot)
            await sandbox.session.save(
                archive, max_bytes=self._settings.max_snapshot_bytes
            )
            try:
                await anyio.to_thread.run_sync(self._describe, snapshot)
            except BaseException:
                archive.unlink(missing_ok=True)
                raise
            self._all[snapshot.id] = snapshot
        return snapshot

    def _describe(self, snapshot: Snapshot) -> None:
        path = self._description(snapshot)
        partial = path.with_suffix(".partial")
        partial.write_text(snapshot.model_dump_json())
        partial.replace(path)

    def find(self, token: Token, name: str) -> Snapshot | None:
        """Return the snapshot with an id, or the latest with a name, of a token."""
        mine = self.all_of(token)
        by_id = [snapshot for snapshot in mine if snapshot.id == name]
        return next(
            iter(by_id or [snapshot for snapshot in mine if snapshot.name == name]),
            None,
        )

    def all_of(self, token: Token) -> list[Snapshot]:
        """Return the snapshots of a token, the newest first."""
        mine = [
            snapshot for snapshot in self._all.values() if snapshot.token_id == token.id
        ]
        return sorted(mine, key=lambda each: each.made_at, reverse=True)

    def archive(self, snapshot: Snapshot) -> Path:
        """Return the path of a snapshot's files."""
        return self._folder / f"{snapshot.id}.tar"

    def _description(self, snapshot: Snapshot) -> Path:
        return self._folder / f"{snapshot.id}.json"

    def remove(self, snapshot: Snapshot) -> None:
        """Delete a snapshot; sandboxes that were made from it stay."""
        self._all.pop(snapshot.id, None)
        self._description(snapshot).unlink(missing_ok=True)
        self.archive(snapshot).unlink(missing_ok=True)

    def _drop_old(self) -> None:
        oldest = time.time() - self._settings.snapshot_days * 86_400
        for snapshot in [each for each in self._all.values() if each.made_at < oldest]:
            with suppress(OSError):
                self.remove(snapshot)


def open_snapshots(config: HostConfig) -> Snapshots:
    """Return the snapshots of a configuration.

    Raises:
        ConfigError: No state folder is configured, or it cannot be used.
    """
    folder = config.state.folder_for("snapshots")
    return Snapshots(folder / "snapshots", config.sandbox_api)
