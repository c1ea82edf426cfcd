"""Installs packages of npm in a separate cell; other cells see the files.

npm runs in a cell that reaches the registry alone, and starts no script of a package.
Its cell hands back an archive and a lock. The archive is taken apart here, plain files
and folders alone, into a layer as those of other packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import socket
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

import anyio
import anyio.to_thread
from pydantic import Field, TypeAdapter, ValidationError

from toolcell.core import InvalidInputError, PackageError, SandboxUnavailableError

from ..cell.wire import trust
from ..client.download import create_local, make_local
from ..client.tar_entries import entries_of
from ..client.types import CellTraits
from ..client.workdir import checked_path
from ..config.host_rules import write_authority
from ..config.mount_rules import NODE_MODULES, Bind
from ..config.network import Network
from ..config.package_rules import npm_dependency, npm_origin
from ..config.settings import Limits, SandboxConfig
from ..results.result import ExecutionResult
from .distributions import BuildSession, OpenBuilder
from .layer_files import too_large
from .layer_store import LayerStore
from .npm_lock import NpmLock

_MAX_ARCHIVE_BYTES = 256 * 1024 * 1024
_MAX_LOCK_BYTES = 16 * 1024 * 1024
_MAX_MESSAGE_CHARACTERS = 1500
_MAX_ADDRESSES = 32
_SECONDS = 86_400.0
_ROOM = Limits(
    memory_mib=2048, disk_mib=1024, pids=256, open_files=4096, connections=100_000
)

_ASK = """\
import platform, shutil, subprocess
facts = "[process.platform, process.arch, process.versions.modules].join('-')"
absent = [each for each in ("node", "npm") if shutil.which(each) is None]
said = ""
if not absent:
    done = subprocess.run(["node", "-p", facts], stdout=subprocess.PIPE, check=True)
    said = done.stdout.decode().strip()
[absent, said + "-" + (platform.libc_ver()[0] or "musl")]
"""
_INSTALL = """\
import os, subprocess, sys, tarfile
# Node has its own store; that of the system knows the registries of companies.
store = next(filter(os.path.exists, stores), None)
env = {**os.environ, "NODE_EXTRA_CA_CERTS": store} if store else None
argv = ["npm", command, "--ignore-scripts", "--no-audit", "--no-fund"]
argv += ["--no-update-notifier", "--loglevel=error", "--cache=/tmp/npm"]
argv += ["--git=/bin/false", "--package-lock=true", "--install-strategy=hoisted"]
argv += ["--omit-lockfile-registry-resolved=false"]
argv += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--registry=" + registry]
quiet = subprocess.DEVNULL
done = subprocess.run(argv, stdin=quiet, stdout=quiet, env=env)
if done.returncode:
    sys.exit(done.returncode)
with tarfile.open("layer.tar", "w") as archive:
    keep = lambda each: each if each.isfile() or each.isdir() else None
    archive.add("node_modules", filter=keep)
"""
_ANSWER = TypeAdapter(
    tuple[
        Annotated[list[Literal["node", "npm"]], Field(max_length=2)],
        Annotated[str, Field(max_length=200)],
    ]
)
_UNFIT = (
    InvalidInputError,
    OSError,
    OverflowError,
    RecursionError,
    ValueError,
    tarfile.TarError,
)
"""Errors that the archive of a cell may lead to."""

_SHIM = "#!/bin/sh\nexec '{}/{}' \"$@\"\n"

_CAUSES = (
    ("not_found", re.compile(r"code (E404|ETARGET|ENOVERSIONS)\b")),
    ("conflict", re.compile(r"code (ERESOLVE|EBADENGINE)\b")),
    ("refused", re.compile(r"code (E401|E403|EAUTH\w*)\b")),
    ("too_large", re.compile(r"code ENOSPC\b")),
    (
        "unreachable",
        re.compile(r"code (ECONN\w+|EAI_AGAIN|ENOTFOUND|E5\d\d|\w*TIMEDOUT|ERR_\w+)\b"),
    ),
)
_HINTS = {
    "not_found": "check the spelling and the version",
    "conflict": "ask for versions that go together",
    "refused": "npm's cell reaches package_rules.npm_registry alone, and has no "
    "password",
    "too_large": "a set has 1 GiB at most, with all that npm writes",
    "unreachable": "set package_rules.npm_registry to a registry that answers",
    "timeout": "raise package_rules.seconds",
}


class InstalledConfig(SandboxConfig):
    """A configuration whose packages of npm are installed."""

    node_modules: str
    """Their folder on this machine."""

    made_by: str
    """The backend, and the id of the image if it has one, that installed them."""


def npm_binds(config: SandboxConfig) -> list[Bind]:
    """Return the mount of installed packages of npm; empty if there are none."""
    if not isinstance(config, InstalledConfig):
        return []
    return [Bind(config.node_modules, NODE_MODULES, read_only=True)]


@asynccontextmanager
async def with_npm(
    config: SandboxConfig, open_builder: OpenBuilder
) -> AsyncIterator[SandboxConfig]:
    """Yield a configuration whose cells see its packages of npm.

    They are not pruned until it is left.

    Args:
        config: Names the packages.
        open_builder: Opens the sandbox in which npm runs.

    Raises:
        PackageError: A package is refused, missing or unfit.
        SandboxUnavailableError: There is no cell, or it has no node or npm.
    """
    installer = _NpmInstaller(config)
    with contextlib.ExitStack() as stack:
        async with (
            open_builder(await installer.cell()) as builder,
            builder.session() as session,
        ):
            traits = builder.traits
            folder, held = await installer.install(session, traits)
            stack.callback(os.close, held)
        yield InstalledConfig.model_construct(
            config.model_fields_set,
            **dict(config),
            node_modules=str(folder),
            made_by=_maker(traits),
        )


def require_maker(config: SandboxConfig, traits: CellTraits) -> None:
    """Refuse cells of another backend or image than the one that installed a set.

    Args:
        config: Has the set, if there is one.
        traits: Those of the cells that are to see it.

    Raises:
        SandboxUnavailableError: `auto` chose another backend, or the image is new.
    """
    maker = _maker(traits)
    if isinstance(config, InstalledConfig) and config.made_by != maker:
        raise SandboxUnavailableError(
            f"packages of npm were installed by {config.made_by}, and {maker} "
            "makes the cells now",
            hint="open the sandbox again, or name the backend",
        )


def _maker(traits: CellTraits) -> str:
    return f"{traits.backend} {traits.image}".strip()


class _NpmInstaller:
    """Installs the packages of npm of one configuration."""

    def __init__(self, config: SandboxConfig) -> None:
        self._rules = config.package_rules
        self._wanted = dict(sorted(map(npm_dependency, config.npm)))
        self._store = LayerStore(self._rules.folder)
        self._config = config

    async def cell(self) -> SandboxConfig:
        """Return the configuration of the cell that npm runs in."""
        rules = self._rules
        network = Network.allow(await _rules_for(rules.npm_registry))
        return self._config.model_copy(
            update={
                "npm": (),
                "packages": (),
                "package_rules": rules.model_copy(update={"allow": (), "build": ()}),
                "network": network,
                "credentials": (),
                "mounts": (),
                "env": {},
                "code_policy": None,
                "pool": 0,
                "programs_per_cell": 1,
                "session_idle_seconds": _SECONDS,
                "session_lifetime_seconds": _SECONDS,
                "limits": _ROOM.model_copy(update={"wall_seconds": rules.seconds}),
            }
        )

    async def install(
        self, session: BuildSession, traits: CellTraits
    ) -> tuple[Path, int]:
        """Return the packages' folder, and a descriptor that holds it.

        Args:
            session: The session that npm runs in.
            traits: Those of its cell.
        """
        platform = await _platform(session)
        # Lock and files are what the image's npm says, so they serve that image alone.
        maker = (traits.backend, traits.image, self._config.runtime)
        facts = json.dumps([self._wanted, self._rules.npm_registry, platform, *maker])
        key = hashlib.sha256(f"npm {facts}".encode()).hexdigest()[:32]
        store = self._store
        held = await store.lock(f"{key}.use", shared=True)
        try:
            async with store.alone(f"{key}.build"):
                name = await anyio.to_thread.run_sync(store.find, key)
                if name is None:
                    name = await self._build(session, key, platform)
                with contextlib.suppress(OSError):
                    os.utime(self._lock_file(key))
        except BaseException:
            os.close(held)
            raise
        return (store.layers / name / "node_modules").resolve(), held

    async def _build(self, session: BuildSession, key: str, platform: str) -> str:
        store = self._store
        kept = self._lock_file(key)
        async with store.alone("building", shared=True):
            path = store.begin()
            try:
                known = b""
                with contextlib.suppress(FileNotFoundError):
                    known = kept.read_bytes()
                data, archive = await self._run_npm(session, known)
                lock = NpmLock.read(data, self._rules.npm_registry)
                names = await anyio.to_thread.run_sync(
                    self._unpack, archive, lock, path
                )
                limit = self._rules.layer_mib << 20
                place = await anyio.to_thread.run_sync(store.publish, path, limit)
                draft = path.with_suffix(".lock")
                draft.write_bytes(data)
                await anyio.to_thread.run_sync(
                    store.finish, key, place, "node", platform, names
                )
                draft.rename(kept)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(store.abandon, path)
                raise
        return path.name

    def _lock_file(self, key: str) -> Path:
        return self._store.resolved / f"{key}.json"

    async def _run_npm(self, session: BuildSession, lock: bytes) -> tuple[bytes, bytes]:
        """Return the lock and an archive of the packages.

        Args:
            session: The session that npm runs in.
            lock: The lock of an earlier time; empty if there is none.
        """
        manifest = {"private": True, "dependencies": self._wanted}
        await session.write_file("package.json", json.dumps(manifest))
        if lock:
            await session.write_file("package-lock.json", lock)
        inputs = {
            "command": "ci" if lock else "install",
            "registry": self._rules.npm_registry,
            "stores": [*trust.STORES],
        }
        result = await session.run(_INSTALL, fresh=True, inputs=inputs)
        if not result.ok:
            raise _failure(result)
        try:
            return (
                await session.read_file("package-lock.json", _MAX_LOCK_BYTES),
                await session.read_file("layer.tar", _MAX_ARCHIVE_BYTES),
            )
        except InvalidInputError as error:
            raise _failed(error.message, "too_large") from None

    def _unpack(self, archive: bytes, lock: NpmLock, path: Path) -> list[str]:
        """Write the files of a set; return names and versions of its packages."""
        try:
            _extract(archive, path, self._rules.layer_mib << 20)
            # It would show programs the address of the registry.
            (path / "node_modules" / ".package-lock.json").unlink(missing_ok=True)
            lock.require_no_builds(path)
            self._write_commands(lock, path)
            return lock.names(path)
        except _UNFIT as error:
            raise _failed(f"the archive of its cell: {error}", "failed") from None

    def _write_commands(self, lock: NpmLock, path: Path) -> None:
        folder = path / "node_modules" / ".bin"
        folder.mkdir(exist_ok=True)
        for command in lock.commands(path, self._wanted):
            (path / command.file).chmod(0o755)
            shim = folder / command.name
            file = command.file.removeprefix("node_modules/")
            shim.write_text(_SHIM.format(NODE_MODULES, file))
            shim.chmod(0o755)


async def _platform(session: BuildSession) -> str:
    """Return the platform of a cell's node, `linux-x64-127-glibc`."""
    result = await session.run(_ASK, fresh=True, inputs={})
    if not result.ok:
        raise _failure(result)
    try:
        absent, said = _ANSWER.validate_python(result.value)
    except ValidationError:
        raise _failed("their cell does not say which node it has", "failed") from None
    if absent:
        raise SandboxUnavailableError(
            f"packages of npm need {' and '.join(absent)} in cells",
            hint="use an image that has node and npm; subprocess cells find those "
            "below /usr of this machine",
        )
    return said


def _extract(archive: bytes, folder: Path, max_bytes: int) -> None:
    """Write the files of an archive; no link is made, so that no path leads out."""
    left = max_bytes
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for entry in entries_of(tar):
            place = folder / checked_path(entry.name)
            if entry.isdir():
                make_local(place)
            elif entry.isreg() and (source := tar.extractfile(entry)):
                left -= entry.size
                if left < 0:
                    raise too_large(max_bytes - left, max_bytes)
                is_program = bool(entry.mode & 0o100)
                fd = create_local(place, is_program)
                with os.fdopen(fd, "wb") as file:
                    os.fchmod(fd, 0o755 if is_program else 0o644)
                    shutil.copyfileobj(source, file)


async def _rules_for(address: str) -> list[str]:
    """Return rules for a registry and its addresses, which need not be public."""
    _, host, port = npm_origin(address)
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        # npm says that it is not there.
        found = []
    names = dict.fromkeys([host, *(str(each[4][0]) for each in found[:_MAX_ADDRESSES])])
    return [write_authority(name, port) for name in names]


def _failure(result: ExecutionResult) -> PackageError:
    """Return the error for npm's failure."""
    said = result.stderr.strip()
    if result.status == "timeout":
        return _failed("they were not there in time", "timeout")
    if result.status in ("disk_limit", "out_of_memory"):
        return _failed(f"{result.status}: {said}", "too_large")
    found = (name for name, form in _CAUSES if form.search(said))
    lines = [re.sub(r"^npm (ERR!|error) ?", "", line) for line in said.splitlines()]
    text = " ".join(line for line in lines if line and "debug-0.log" not in line)
    return _failed(text or result.status, next(found, "failed"))


def _failed(why: str, reason: str) -> PackageError:
    return PackageError(
        f"packages of npm cannot be installed: {why[:_MAX_MESSAGE_CHARACTERS]}",
        hint=_HINTS.get(reason),
        details={"reason": reason},
    )
