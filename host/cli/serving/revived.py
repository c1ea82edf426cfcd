"""Tokens and people that count again after a restore, and tokens that must not."""

from __future__ import annotations

import json
from pathlib import Path

from toolcell.core import AuditError, ConfigError
from toolcell.guard import audit_parts

from ...config.host_config import HostConfig
from ...console.accounts.people import People, Person
from ...console.accounts.people_file import PEOPLE_FILE, open_people
from ...http.tokens import TOKENS_FILE, Token, open_tokens


def revoked_tokens(log: Path) -> frozenset[str]:
    """Return the ids of all tokens that were revoked, as an audit log says.

    Raises:
        ConfigError: It cannot be read, or one of its lines but the last cannot.
    """
    found: set[str] = set()
    try:
        with audit_parts(log) as parts:
            for part in parts:
                for number, line in enumerate(part.file, 1):
                    found |= _revoked(line, f"{part.path}: line {number}")
    except (OSError, AuditError) as error:
        raise ConfigError(
            f"{log} cannot be read: {error}", hint="name the log of the host"
        ) from None
    return frozenset(found)


def _revoked(line: bytes, where: str) -> set[str]:
    if not line.endswith(b"\n"):
        return set()  # what a crash left
    try:
        record = json.loads(line)
        revoked = record["event"] == "token_revoked"
        return {str(record["id"])} if revoked else set()
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ConfigError(
            f"{where} is no record, so that it may be of a token that was revoked",
            hint="see `toolcell audit verify --file`; restore without --audit, and"
            " revoke by hand",
        ) from None


def revoke_again(config: HostConfig, revoked: frozenset[str]) -> list[str]:
    """Revoke those of some tokens that a restore brought back; return their ids."""
    again = [each.id for each in live_tokens(config) if each.id in revoked]
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
