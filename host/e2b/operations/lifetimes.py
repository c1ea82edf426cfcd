"""`sandbox.pause` and `sandbox.timeout`: how long a sandbox lives, and runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Literal

from ..state.sandbox import Sandbox, StartedCommand
from .action import Action, SandboxArguments, Scene
from .commands import NOTHING, command_cost


class PauseArguments(SandboxArguments):
    """A sandbox to pause."""

    operation: Literal["pause"] = "pause"


class ResumeArguments(SandboxArguments):
    """A paused sandbox that goes on."""

    operation: Literal["resume"] = "resume"
    timeout: int | None = None
    """Seconds from then at which it ends; None: those of the configuration."""


class TimeoutArguments(SandboxArguments):
    """A sandbox that ends at another time."""

    timeout: int
    """Seconds from now."""


@asynccontextmanager
async def _pause(scene: Scene, arguments: PauseArguments) -> AsyncIterator[None]:
    await scene.sandboxes.pause(scene.sandbox(arguments))
    yield


@asynccontextmanager
async def _resume(scene: Scene, arguments: ResumeArguments) -> AsyncIterator[None]:
    await scene.sandboxes.resume(scene.sandbox(arguments), arguments.timeout)
    yield


@asynccontextmanager
async def _set_timeout(
    scene: Scene, arguments: TimeoutArguments
) -> AsyncIterator[None]:
    """Move the end; hold what running commands may use until then, while they run."""
    sandbox = scene.sandbox(arguments)
    sandbox.set_end(scene.sandboxes.end_at(arguments.timeout))
    yield
    for command in _unlimited(sandbox):
        await command.ended.wait()
    # Each command is charged by itself.
    await scene.operation.settle(usage=NOTHING)


def _unlimited(sandbox: Sandbox) -> list[StartedCommand]:
    """Return the commands that run until the end of their sandbox."""
    return [command for command in sandbox.commands.values() if not command.has_limit]


def _cost(sandbox: Sandbox, arguments: TimeoutArguments) -> Mapping[str, int]:
    longer = max(time.time() + arguments.timeout - sandbox.end_at, 0.0)
    cost = command_cost(sandbox, longer * len(_unlimited(sandbox)))
    # A command holds all that it may send and receive from its start on.
    return {**cost, "bytes": 0}


PAUSE = Action("sandbox.pause", PauseArguments, _pause)
RESUME = Action("sandbox.pause", ResumeArguments, _resume)
SET_TIMEOUT = Action("sandbox.timeout", TimeoutArguments, _set_timeout, _cost)
