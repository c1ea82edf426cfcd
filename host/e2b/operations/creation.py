"""`sandbox.create`: a new sandbox, empty or with the files of a snapshot."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from pydantic import Field

from toolcell.core import InvalidInputError, SandboxError, ToolCall, ToolcellError
from toolcell.guard import ActionGuard, CallFacts

from ..protocol.errors import APIError
from ..state.sandbox import Lifecycle, Sandbox
from ..state.snapshots import Snapshot
from .action import Action, Scene
from .commands import NOTHING
from .networks import NetworkArguments

LOOK_SECONDS = 1.0
"""Seconds between two looks at what a sandbox has used."""

_LAST_SECONDS = 5.0
_log = logging.getLogger("toolcell.host")


async def meter(sandbox: Sandbox, guard: ActionGuard) -> None:
    """Charge what processes use that no command waits for, until a sandbox ends.

    While commands or code run, what is held for them covers the whole cell; what
    others have used meanwhile is charged after that. A sandbox whose agent has used a
    budget up ends.
    """
    try:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if not await _charge(sandbox, guard):
                _log.warning("sandbox %s ends: a budget is used up", sandbox.id)
                sandbox.end("budget")
    finally:
        # Commands end with their sandbox, and charge first.
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            for command in list(sandbox.commands.values()):
                await command.ended.wait()
        with anyio.move_on_after(_LAST_SECONDS, shield=True):
            await _charge(sandbox, guard)


async def _charge(sandbox: Sandbox, guard: ActionGuard) -> bool:
    if sandbox.is_busy or sandbox.opened is None or sandbox.state == "paused":
        return True
    try:
        used = (await sandbox.opened.usage()).cpu_ms
        owed = int(used - sandbox.accounted_ms)
        if owed < 1 or sandbox.is_busy:
            return True
        sandbox.accounted_ms += owed
        call = ToolCall(id="usage", name="sandbox.command", agent_id=sandbox.agent_id)
        facts = CallFacts(cost=NOTHING, run_id=sandbox.id)
        return await guard.charge(call, facts, {**NOTHING, "cpu_ms": owed})
    except (APIError, InvalidInputError, SandboxError):
        # Its cell is gone, or measures nothing.
        return True
    except ToolcellError:
        _log.exception("what sandbox %s used is not charged", sandbox.id)
        return True


class CreateArguments(NetworkArguments):
    """A sandbox to make."""

    template: str
    snapshot: str | None = None
    """The id of the snapshot whose files it begins with."""

    timeout: int | None = None
    auto_pause: bool = False
    auto_resume: bool = False
    env: dict[str, str] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)


@asynccontextmanager
async def _create(scene: Scene, arguments: CreateArguments) -> AsyncIterator[Sandbox]:
    seconds, snapshot = arguments.timeout, _snapshot(scene, arguments)
    archive = None if snapshot is None else scene.snapshots.archive(snapshot)
    sandbox = await scene.sandboxes.create(
        scene.token,
        template=arguments.template,
        lifecycle=Lifecycle(
            scene.settings.timeout_seconds if seconds is None else seconds,
            pauses=arguments.auto_pause,
            wakes_up=arguments.auto_resume,
        ),
        env={**({} if snapshot is None else snapshot.env), **arguments.env},
        metadata=arguments.metadata,
        network=arguments.network(),
        archive=archive,
    )
    if scene.guard is not None:
        sandbox.work.start_soon(meter, sandbox, scene.guard)
    yield sandbox


def _snapshot(scene: Scene, arguments: CreateArguments) -> Snapshot | None:
    name = arguments.snapshot
    if name is None:
        check_template(scene.settings.templates, arguments.template)
        return None
    if (found := scene.snapshots.find(scene.token, name)) is None:
        raise APIError(404, f"snapshot {name[:64]} not found")
    return found


def check_template(known: tuple[str, ...], name: str) -> None:
    """Raise APIError 404 if there is no such template."""
    if name not in known:
        raise APIError(
            404, f"there is no template {name[:64]!r}; there are {', '.join(known)}"
        )


CREATE = Action("sandbox.create", CreateArguments, _create)
