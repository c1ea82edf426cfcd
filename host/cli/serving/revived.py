"""Tokens and people that count again after a restore, and tokens that must not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from toolcell.core import AuditError, ConfigError
from toolcell.guard import audit_parts

from ...config.host_config import HostConfig
from ...console.accounts.people import People, Person
from ...console.accounts.people_file import PEOPLE_FILE, open_people
from ...http.tokens import TOKENS_FILE, Token, open_tokens


class _Record(NamedTuple):
    """The part of a record of an audit log that is read here."""

    seq: int
    time: datetime
    revoked: str | None
    """The id of the token that it says was revoked."""


def revoked_tokens(log: Path, made_at: datetime) -> frozenset[str]:
    """Return the ids of all tokens that were revoked, as an audit log says.

    Args:
        log: The log, with its rotated files beside it.
        made_at: The time of a backup: what is older may be missing in the log.

    Raises:
        ConfigError: It cannot be read, one of its lines but the last cannot, or
            records are missing.
    """
    found: set[str] = set()
    last = 0
    for where, record in _records(log):
        is_begin = not last and record.time < made_at
        if record.seq != last + 1 and not is_begin:
            raise _missing(f"{where} is record {record.seq}, not {last + 1}", log)
        last = record.seq
        if record.revoked is not None:
            found.add(record.revoked)
    if not last:
        raise _missing(f"{log} has no record", log)
    return frozenset(found)


def _records(log: Path) -> Iterator[tuple[str, _Record]]:
    try:
        with audit_parts(log) as parts:
            for part in parts:
                for number, line in enumerate(part.file, 1):
                    where = f"{part.path}: line {number}"
                    if line.endswith(b"\n"):  # A crash leaves another.
                        yield where, _record(line, where)
    except (OSError, AuditError) as error:
        raise ConfigError(
            f"{log} cannot be read: {error}", hint="name the log of the host"
        ) from None


def _record(line: bytes, where: str) -> _Record:
    try:
        record = json.loads(line)
        time = datetime.fromisoformat(record["time"]).astimezone(UTC)
        is_revoked = record["event"] == "token_revoked"
        revoked = str(record["id"]) if is_revoked else None
        return _Record(int(record["seq"]), time, revoked)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ConfigError(
            f"{where} is no record, so that it may be of a token that was revoked",
            hint="see `toolcell audit verify --file`; restore without --audit, and"
            " revoke by hand",
        ) from None


def _missing(why: str, log: Path) -> ConfigError:
    return ConfigError(
        f"{why}: those before it may be of tokens that were revoked",
        hint=f"move the rotated files along with it, as {log.name}.NUMBER; or restore"
        " without --audit, and revoke by hand",
    )


def revoke_again(config: HostConfig, revoked: frozenset[str]) -> list[str]:
    """Revoke those of some tokens that a restore brought back; return their ids."""
    again = [token.id for token in live_tokens(config) if token.id in revoked]
    if again:
        with open_tokens(config) as tokens:
            for token_id in again:
                tokens.revoke(token_id)
    return again


def live_tokens(config: HostConfig) -> list[Token]:
    """Return the tokens that are accepted."""
    if not _has(config, TOKENS_FILE):
        return []
    with open_tokens(config) as tokens:
        return [each for each in tokens.all() if tokens.is_valid(each.id)]


def people(config: HostConfig) -> list[Person]:
    """Return the people of the console."""
    if not _has(config, PEOPLE_FILE):
        return []
    with open_people(config) as file:
        return People(file).all()


def _has(config: HostConfig, name: str) -> bool:
    folder = config.state.folder
    return folder is not None and (folder / name).exists()
