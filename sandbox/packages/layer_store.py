"""Installed packages on disk: one folder per set, kept until it is pruned.

A layer is a folder with a name that cannot be guessed, in a folder that cannot be
listed. All cells see that folder, read-only, so each reaches exactly the layers whose
names it gets. A layer is built elsewhere and moved into place whole. Its entry in the
index holds a hash over the state of its files, with change times, which no user can set
back. If the state differs, the content is compared: a copied folder has the same.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from toolcell.core import SandboxUnavailableError
from toolcell.core.storage.file_locks import lock, try_lock

from ..config.mount_rules import Bind
from ..config.settings import SandboxConfig
from .layer_files import content, remove_tree, settle, signature, too_large

TARGET = "/packages"
"""The path of the folder of layers in cells."""

_DAY_SECONDS = 86_400.0
UNLISTED = 0o311
"""The mode of that folder. No program can list it, not even as its owner: only the name
opens a layer."""
_PASSABLE = 0o711


class PackageLayer(BaseModel):
    """A set of packages that is installed, as `toolcell packages list` shows it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    key: str
    """A hash over interpreter, platform, and exact versions with their hashes."""

    python: str
    """The interpreter, such as `cpython-311`, or `node`."""

    platform: str
    """The platform that its wheels are for, such as `x86_64-manylinux_2_36`."""

    packages: tuple[str, ...]
    """Names and exact versions, such as `numpy==2.1.3`, of npm `lodash@4.17.21`."""

    size_bytes: int
    """Bytes of its files on disk."""

    last_used: float
    """The time of the last request for it, in seconds since 1970."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    folder: str
    python: str
    platform: str
    packages: tuple[str, ...]
    size_bytes: int
    signature: str
    content: str = ""
    """A hash over the content of all files, to recognize a copy."""


class LayerStore:
    """The folder of one user's layers.

    Args:
        folder: Its path; None takes the user's cache folder.

    Raises:
        SandboxUnavailableError: The folder cannot be made, or others may write there.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.root = Path(folder) if folder else _default_folder()
        self.layers = self.root / "layers"
        self.building = self.root / "building"
        self.resolved = self.root / "resolved"
        self.wheels = self.root / "wheels"
        self.built = self.root / "built"
        self._index = self.root / "index"
        self._locks = self.root / "locks"
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(self.root)
            # Users of cells pass through it where nothing is mounted.
            self.root.chmod(_PASSABLE)
            own = (self.building, self.resolved, self.built, self._index, self._locks)
            for path in (*own, self.wheels):
                path.mkdir(mode=0o700, exist_ok=True)
            self.layers.mkdir(exist_ok=True)
            self.layers.chmod(UNLISTED)
        except OSError as error:
            raise SandboxUnavailableError(
                f"the folder of packages {self.root} cannot be used: {error.strerror}",
                hint="set package_rules.folder to one that this user may write",
            ) from None

    @property
    def bind(self) -> Bind:
        """The mount by which cells see the layers."""
        return Bind(str(self.layers.resolve()), TARGET, read_only=True)

    def find(self, key: str) -> str | None:
        """Return the name of an undamaged layer, and mark it as used, or None."""
        entry = self._read(key)
        if entry is None:
            return None
        if not entry.folder or not self._is_whole(key, entry):
            return None
        with contextlib.suppress(OSError):
            os.utime(self._index / f"{key}.json")
        return entry.folder

    def _is_whole(self, key: str, entry: _Entry) -> bool:
        """Return True if a layer's files are the installed ones, or a copy of them."""
        place = self.layers / entry.folder
        found = signature(place)[0]
        if found == entry.signature:
            return True
        # The state again: a file may have changed while others were read.
        if not entry.content or content(place) != entry.content:
            return False
        if not found or signature(place)[0] != found:
            return False
        self._enter(key, entry.model_copy(update={"signature": found}))
        return True

    def begin(self) -> Path:
        """Return a new folder to build a layer in."""
        path = self.building / secrets.token_hex(16)
        path.mkdir(mode=0o755)
        return path

    def publish(self, path: Path, max_bytes: int) -> Path:
        """Move a built layer to the folder that cells see, under a secret name.

        Raises:
            PackageError: It holds something else than files and folders, or more than
                `max_bytes` bytes.
        """
        # It would show programs a path of this machine.
        for note in path.glob("*.dist-info/direct_url.json"):
            note.unlink()
        size = settle(path)
        if size > max_bytes:
            raise too_large(size, max_bytes)
        # A mark for `prune`, in case this process dies before the index has it.
        path.with_suffix(".mark").touch()
        return path.rename(self.layers / path.name)

    def finish(
        self, key: str, place: Path, python: str, platform: str, packages: list[str]
    ) -> None:
        """Enter a layer in the index; a damaged one of the same key is replaced."""
        settle(place)
        old = self._read(key)
        mark, size = signature(place)
        entry = _Entry(
            folder=place.name,
            python=python,
            platform=platform,
            packages=tuple(packages),
            size_bytes=size,
            signature=mark,
            content=content(place),
        )
        self._enter(key, entry)
        (self.building / f"{place.name}.mark").unlink(missing_ok=True)
        if old is not None:
            remove_tree(self.layers / old.folder)

    def _enter(self, key: str, entry: _Entry) -> None:
        draft = self.building / f"{entry.folder}.json"
        draft.write_text(entry.model_dump_json())
        draft.rename(self._index / f"{key}.json")

    def abandon(self, path: Path) -> None:
        """Remove an unfinished layer, wherever it lies."""
        for folder in (self.layers / path.name, *self.building.glob(f"{path.name}*")):
            remove_tree(folder)

    def _read(self, key: str) -> _Entry | None:
        try:
            return _Entry.model_validate_json(
                (self._index / f"{key}.json").read_bytes()
            )
        except (OSError, ValidationError):
            return None

    def try_lock(self, name: str, *, shared: bool = False) -> int | None:
        """Return a descriptor that holds a lock until it is closed; None if taken."""
        return try_lock(self._locks / name, shared=shared)

    @asynccontextmanager
    async def alone(self, name: str, *, shared: bool = False) -> AsyncIterator[None]:
        """Hold a lock that other tasks, threads and processes may want."""
        held = await self.lock(name, shared=shared)
        try:
            yield
        finally:
            os.close(held)

    async def lock(self, name: str, *, shared: bool = False) -> int:
        """Wait for a lock; return a descriptor that holds it until it is closed."""
        return await lock(self._locks / name, shared=shared)

    def entries(self) -> Iterator[PackageLayer]:
        """Yield the installed layers, the last used one first."""
        found = [(path.stat().st_mtime, path.stem) for path in self._index.iterdir()]
        for used, key in sorted(found, reverse=True):
            entry = self._read(key)
            if entry is not None:
                members = entry.model_dump(exclude={"folder", "signature", "content"})
                yield PackageLayer(key=key, last_used=used, **members)

    def prune(self, unused_days: float) -> list[PackageLayer]:
        """Remove layers that no manager has open or has asked for in so many days.

        Returns:
            The layers that were removed.
        """
        before = time.time() - unused_days * _DAY_SECONDS
        old = [entry for entry in self.entries() if entry.last_used <= before]
        removed = [layer for layer in old if self._remove(layer.key)]
        # A set of npm has its lock under its own key, and needs it while it is there.
        needed = {f"{layer.key}.json" for layer in self.entries()}
        for path in (*self.resolved.iterdir(), *self.built.iterdir()):
            if path.name not in needed and path.stat().st_mtime <= before:
                remove_tree(path)
        self._remove_leftovers()
        if unused_days == 0:
            shutil.rmtree(self.wheels, ignore_errors=True)
        return removed

    def _remove(self, key: str) -> bool:
        held = self.try_lock(f"{key}.use")
        if held is None:
            return False
        try:
            entry = self._read(key)
            (self._index / f"{key}.json").unlink(missing_ok=True)
            if entry is not None:
                remove_tree(self.layers / entry.folder)
        finally:
            os.close(held)
        return True

    def _remove_leftovers(self) -> None:
        """Remove unfinished layers of dead processes; builders hold a lock."""
        held = self.try_lock("building")
        if held is None:
            return
        try:
            entries = (self._read(path.stem) for path in self._index.iterdir())
            known = {entry.folder for entry in entries if entry is not None}
            for path in self.building.iterdir():
                if path.stem in known:
                    remove_tree(path)
                else:
                    self.abandon(path.with_suffix(""))
                    remove_tree(path)
        finally:
            os.close(held)


def _default_folder() -> Path:
    home = Path.home()
    cache = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    if os.geteuid() == 0 and not home.stat().st_mode & 0o001:
        # The users of root's cells cannot enter it.
        cache = os.environ.get("XDG_CACHE_HOME") or "/var/cache"
    return Path(cache) / "toolcell" / "packages"


def _require_own(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SandboxUnavailableError(
            f"others may write to the folder of packages {path}",
            hint=f"`chmod 700 {path}`, or set package_rules.folder to another one",
        )


def store_binds(config: SandboxConfig) -> list[Bind]:
    """Return the mount for packages in the cells of a backend, if they have any.

    Raises:
        SandboxUnavailableError: The folder of packages cannot be used.
    """
    if not config.wants_packages:
        return []
    return [LayerStore(config.package_rules.folder).bind]


def list_packages(folder: str | None = None) -> tuple[PackageLayer, ...]:
    """Return the sets of packages that are installed for cells.

    Args:
        folder: The folder of `PackageRules`; None takes the user's cache folder.

    Raises:
        SandboxUnavailableError: The folder cannot be used.
    """
    return tuple(LayerStore(folder).entries())


def prune_packages(
    unused_days: float = 30.0, folder: str | None = None
) -> tuple[PackageLayer, ...]:
    """Remove the sets that no manager has open, and return them.

    Args:
        unused_days: Days without use after which a set goes; default 30. 0 removes
            every set, and the wheels that were kept for the next one.
        folder: As in `list_packages`.

    Raises:
        SandboxUnavailableError: The folder cannot be used.
    """
    return tuple(LayerStore(folder).prune(unused_days))
