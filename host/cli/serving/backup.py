"""`toolcell backup` and `toolcell restore`: the state of a host."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json, print_notice
from ...terminal.signals import run_async
from ..base.audit_event import record_event
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from ...console.accounts.people import Person
    from ...http.tokens import Token
    from ...runtime.backup import Backup

Folder = Annotated[
    Path, typer.Argument(readable=False, help="The folder of the backup.")
]


def backup(
    folder: Folder, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Copy the state of a host, which may run.

    It is limits, approvals, records, ids, tokens and the audit log.

    The configuration, policies and secrets are not copied.
    """
    from ...config.host_config import HostConfig
    from ...runtime.backup import back_up

    settings = HostConfig.from_file(config)
    _print(back_up(settings, folder), "copied", {} if as_json else None)
    if settings.state.redis_url is not None:
        print_notice("counters in Redis are not part of it", as_json=as_json)


def restore(
    folder: Folder,
    audit: Annotated[
        Path | None,
        typer.Option(
            readable=False, help="The last audit log: its revoked tokens stay revoked."
        ),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Bring a backup back; the host must not run.

    It lists the tokens and people that count again. The configuration names the places.

    A file that is there already is never replaced.
    """
    from ...config.host_config import HostConfig
    from ...runtime import backup as backups
    from . import revived

    settings = HostConfig.from_file(config)
    revoked = frozenset[str]()
    if audit is not None:
        made = backups.read_manifest(folder).made_at
        revoked = revived.revoked_tokens(audit, made)
    restored = backups.restore(settings, folder)
    again = revived.revoke_again(settings, revoked)
    made_at = f"{restored.made_at:%Y-%m-%d %H:%M:%S} UTC"
    facts = {"folder": str(folder), "made_at": made_at, "revoked": " ".join(again)}
    run_async(partial(record_event, settings, "restored", **facts))
    tokens, people = revived.live_tokens(settings), revived.people(settings)
    back = {
        "revoked": again,
        "tokens": [token.to_json() for token in tokens],
        "people": [{"id": person.id, "role": person.role} for person in people],
    }
    _print(restored, "restored", back if as_json else None)
    if not as_json:
        _print_revived(again, tokens, people)
    since = "people and approvals" if audit else "tokens, people and approvals"
    print_notice(
        f"{since} are as they were at {made_at}: what was revoked since counts again",
        as_json=as_json,
    )


def _print_revived(
    revoked: list[str], tokens: list[Token], people: list[Person]
) -> None:
    for token_id in revoked:
        print(f"revoked again token {token_id}")
    for token in tokens:
        label = f", {token.label}" if token.label else ""
        print(escaped_line(f"counts again token {token.id} of {token.agent_id}{label}"))
    for person in people:
        print(f"counts again person {person.id}, {person.role}")


def _print(backup: Backup, verb: str, more: dict[str, Any] | None) -> None:
    """Print the files of a backup; with `more` as JSON, with these members too."""
    if more is not None:
        print_json({**backup.model_dump(mode="json"), **more})
        return
    for file in backup.files:
        print(f"{verb} {file.name}")
