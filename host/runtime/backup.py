"""Copies the state of a host to a folder while it runs, and brings it back.

The state is every SQLite file of `state.folder`, the audit log, and the approved
definitions of tools by others. Each file is copied as of one moment. The moments
differ, in an order that errs to the safe side: ids of calls are copied after all else
that knows of calls, since one id too many refuses a call, and one too few makes it
twice. The files of the audit log are last, so that they have every decision that the
others know of. Configuration, policies and secrets are no part of it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field

from toolcell.core import AuditError, ConfigError
from toolcell.guard import audit_parts
from toolcell.guard.spi import AuditPart

from ..config.base import Model
from ..config.host_config import HostConfig

MANIFEST = "manifest.json"
_LOG = "audit.jsonl"
_IDS = "idempotency.db"
_COPY_BYTES = 1 << 20
_Kind = Literal["state", "audit", "pins"]


class BackupFile(Model):
    """One file of a backup."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$")]
    """Its name in the backup's folder, and for `state` in `state.folder`."""

    kind: _Kind
    """`state`: a SQLite file; `audit`: a file of the log; `pins`: approved
    definitions of tools."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The hash of its content, in hexadecimal."""


class Backup(Model):
    """The list of a backup, `manifest.json`."""

    format: Literal[1] = 1
    """The format of the backup. One of a newer toolcell is refused."""

    made_at: datetime
    """The time at which the backup was begun, UTC."""

    files: tuple[BackupFile, ...]
    """Its files, in the order in which they were copied."""


def back_up(config: HostConfig, folder: Path) -> Backup:
    """Copy the state of a host, which may run, to a new folder.

    Args:
        config: The configuration of the host.
        folder: The folder to make, with mode 0700. It is there when all of it is.

    Raises:
        ConfigError: The folder exists or cannot be made, a file cannot be read, or
            there is no state.
    """
    if folder.exists():
        raise ConfigError(f"{folder} is there already", hint="name a new folder")
    sources, log = list(_sources(config)), config.audit.path
    if not sources and (log is None or not log.exists()):
        raise ConfigError(
            "there is no state to copy",
            hint="name state.folder or audit.path of the host, and start it once",
        )
    made_at = datetime.now(UTC)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(mode=0o700, parents=True)
        try:
            files = [_copied(partial, *source) for source in sources]
            if log is not None and log.exists():
                files += _copied_log(partial, log)
            backup = Backup(made_at=made_at, files=tuple(files))
            _write(partial / MANIFEST, backup.model_dump_json(indent=2))
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (OSError, sqlite3.Error, AuditError) as error:
        raise ConfigError(
            f"the backup {folder} cannot be made: {error}",
            hint="name a folder that this user may write, on a disk with room",
        ) from error
    return backup


def restore(config: HostConfig, folder: Path) -> Backup:
    """Bring a backup to the places that a configuration names.

    Args:
        config: The configuration of a host that does not run.
        folder: The folder that `back_up` made.

    Raises:
        ConfigError: The backup was changed or is not whole, a file that it would bring
            is there already, or a place is missing in the configuration. Nothing is
            changed then.
    """
    backup = _read(folder)
    config.state.make_folder()
    moves = [(folder / file.name, _target(config, file)) for file in backup.files]
    for _, target in moves:
        if target.exists():
            raise ConfigError(
                f"{target} is there already",
                hint="end the host, and move what is left of its state away",
            )
    made: list[Path] = []
    try:
        for source, target in moves:
            made.append(target)
            _copy(source, target)
    except OSError as error:
        _remove(made)
        raise ConfigError(
            f"{folder} cannot be brought back: {error}",
            hint="make room, and let this user write where the configuration says",
        ) from error
    return backup


def take_back(config: HostConfig, backup: Backup) -> None:
    """Remove what a restore brought, and what SQLite has put beside it since.

    Args:
        config: The configuration that it was brought back with.
        backup: The backup.
    """
    _remove(_target(config, file) for file in backup.files)


def _remove(targets: Iterable[Path]) -> None:
    for target in targets:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                os.unlink(f"{target}{end}")


def _sources(config: HostConfig) -> Iterator[tuple[Path, str, _Kind]]:
    """Yield path, name and kind of each file, in the order in which to copy."""
    state = config.state.folder
    if state is not None:
        names = [path.name for path in state.glob("*.db")]
        for name in sorted(names, key=lambda name: (name == _IDS, name)):
            yield state / name, name, "state"
    for name, path in _pins(config).items():
        if path.exists():
            yield path, name, "pins"


def _pins(config: HostConfig) -> dict[str, Path]:
    """Return the files of approved definitions, by their names in a backup."""
    tools = config.tools
    return {"mcp_pins.json": tools.mcp_pins, "openapi_pins.json": tools.openapi_pins}


def _copied(folder: Path, source: Path, name: str, kind: _Kind) -> BackupFile:
    target = folder / name
    if kind == "state":
        _copy_database(source, target)
    else:
        _copy(source, target)
    return BackupFile(name=name, kind=kind, sha256=_hash(target))


def _copy_database(source: Path, target: Path) -> None:
    _write(target, "")
    with (
        closing(
            sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
        ) as old,
        closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)
        # One file, without a log beside it.
        new.execute("PRAGMA journal_mode = DELETE")


def _copied_log(folder: Path, log: Path) -> Iterator[BackupFile]:
    """Copy the files of the audit log, as of one moment, oldest first."""
    with audit_parts(log) as parts:
        for part in parts:
            target = folder / f"{_LOG}{part.path.name.removeprefix(log.name)}"
            _copy_part(part, target)
            yield BackupFile(name=target.name, kind="audit", sha256=_hash(target))


def _copy_part(part: AuditPart, target: Path) -> None:
    left = part.size
    with _created(target) as copy:
        while left > 0 and (data := part.file.read(min(left, _COPY_BYTES))):
            copy.write(data)
            left -= len(data)
        copy.flush()
        os.fsync(copy.fileno())


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as old, _created(target) as new:
        shutil.copyfileobj(old, new, _COPY_BYTES)
        new.flush()
        os.fsync(new.fileno())


def _write(path: Path, text: str) -> None:
    with _created(path) as file:
        file.write(text.encode())


def _created(path: Path) -> BinaryIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Backup:
    """Return the list of a backup. Raises ConfigError if there is none to read."""
    try:
        return Backup.model_validate_json((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise _not_whole(folder, error) from None


def _read(folder: Path) -> Backup:
    """Return the list of a backup whose files are what it says."""
    backup = read_manifest(folder)
    try:
        for file in backup.files:
            if _hash(folder / file.name) != file.sha256:
                raise ConfigError(
                    f"{folder / file.name} is not what was copied",
                    hint="take another backup",
                )
    except OSError as error:
        raise _not_whole(folder, error) from None
    return backup


def _not_whole(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{folder} is no whole backup: {error}",
        hint="name a folder that `toolcell backup` made",
    )


def _target(config: HostConfig, file: BackupFile) -> Path:
    if file.kind == "pins":
        return _pins(config)[file.name]
    place = config.audit.path if file.kind == "audit" else config.state.folder
    if place is None:
        key = "audit.path" if file.kind == "audit" else "state.folder"
        raise ConfigError(
            f"the backup has {file.name}, and the configuration has no {key}",
            hint=f"set {key}",
        )
    if file.kind == "audit":
        return place.with_name(f"{place.name}{file.name.removeprefix(_LOG)}")
    return place / file.name
