"""`toolcell backup` and `toolcell restore`: the state of a host."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    _print(back_up(settings, folder), "copied", as_json=as_json)
    if settings.state.redis_url is not None:
        print_notice("counters in Redis are not part of it", as_json=as_json)


def restore(
    folder: Folder, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Bring a backup back; the host must not run.

    The configuration names the places.

    A file that is there already is never replaced.
    """
    from ...config.host_config import HostConfig
    from ...runtime import backup as backups

    settings = HostConfig.from_file(config)
    restored = backups.restore(settings, folder)
    made_at = f"{restored.made_at:%Y-%m-%d %H:%M:%S} UTC"
    facts = {"folder": str(folder), "made_at": made_at}
    run_async(partial(record_event, settings, "restored", **facts))
    _print(restored, "restored", as_json=as_json)
    print_notice(
        f"tokens, people and approvals are as they were at {made_at}: what was revoked"
        " since counts again; see `toolcell tokens list`",
        as_json=as_json,
    )


def _print(backup: Backup, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(backup.model_dump(mode="json"))
        return
    for each in backup.files:
        print(f"{verb} {each.name}")
