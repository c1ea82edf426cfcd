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
            readable=False,
            help="The last audit log: what it ended since the backup stays ended.",
        ),
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Bring a backup back; the host must not run.

    It lists what counts again. The configuration names the places.

    A file that is there already is never replaced.
    """
    from ...config.host_config import HostConfig
    from ...runtime import backup as backups
    from .ended_again import end_again
    from .last_log import last_acts
    from .revived import revived

    settings = HostConfig.from_file(config)
    made = backups.read_manifest(folder).made_at
    acts = [] if audit is None else last_acts(audit, made)
    restored = backups.restore(settings, folder)
    try:
        ended = end_again(settings, acts)
    except BaseException:
        # What was revoked would count, and a second restore be refused.
        backups.take_back(settings, restored)
        raise
    made_at = f"{made:%Y-%m-%d %H:%M:%S} UTC"
    names = ", ".join(f"{each.kind} {each.id}" for each in ended)
    facts = {"folder": str(folder), "made_at": made_at, "ended": names}
    run_async(partial(record_event, settings, "restored", **facts))
    again = revived(settings)
    back = {
        "ended": [each._asdict() for each in ended],
        "counts_again": [each._asdict() for each in again],
    }
    _print(restored, "restored", back if as_json else None)
    if not as_json:
        for gone in ended:
            print(escaped_line(f"ended again {gone.kind} {gone.id}"))
        for each in again:
            print(escaped_line(f"counts again {each.kind} {each.id}: {each.what}"))
    if audit is None:
        print_notice(
            f"tokens, people and approvals are as they were at {made_at}: what was"
            " revoked since counts again",
            as_json=as_json,
        )


def _print(backup: Backup, verb: str, more: dict[str, Any] | None) -> None:
    """Print the files of a backup; with `more` as JSON, with these members too."""
    if more is not None:
        print_json({**backup.model_dump(mode="json"), **more})
        return
    for file in backup.files:
        print(f"{verb} {file.name}")
