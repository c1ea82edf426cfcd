"""`sandbox.pause` and `sandbox.timeout`: how long a sandbox lives, and runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from .act import Act, SandboxArguments, Scene


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

    timeout: int | None = None
    """Seconds from now; None: those of the configuration."""


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
    scene.sandbox(arguments).set_end(scene.sandboxes.end_at(arguments.timeout))
    yield


PAUSE = Act("sandbox.pause", PauseArguments, _pause)
RESUME = Act("sandbox.pause", ResumeArguments, _resume)
SET_TIMEOUT = Act("sandbox.timeout", TimeoutArguments, _set_timeout)
