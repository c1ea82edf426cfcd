"""`sandbox.snapshot`: files of sandboxes that outlive them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from pydantic import Field

from ..protocol.errors import APIError
from ..state.snapshots import Snapshot
from .action import Action, ActionArguments, SandboxArguments, Scene

MAX_COPIES = 100
SNAPSHOT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


class TakeArguments(SandboxArguments):
    """A snapshot to take."""

    operation: Literal["take"] = "take"
    name: Annotated[str, Field(pattern=SNAPSHOT_NAME)] | None = None


class ForkArguments(SandboxArguments):
    """Copies of a sandbox to make; each is a `sandbox.create` as well."""

    operation: Literal["fork"] = "fork"
    count: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 1


class RemoveSnapshotArguments(ActionArguments):
    """A snapshot to delete."""

    operation: Literal["remove"] = "remove"
    snapshot_id: str


@asynccontextmanager
async def _take(scene: Scene, arguments: TakeArguments) -> AsyncIterator[Snapshot]:
    yield await scene.snapshots.take(scene.sandbox(arguments), arguments.name)


@asynccontextmanager
async def _fork(
    scene: Scene, arguments: ForkArguments
) -> AsyncIterator[tuple[Snapshot, int]]:
    """Yield the files for the copies, and how many there are to be made."""
    snapshot = await scene.snapshots.take(scene.sandbox(arguments), None)
    try:
        yield snapshot, arguments.count
    finally:
        scene.snapshots.remove(snapshot)


@asynccontextmanager
async def _remove(
    scene: Scene, arguments: RemoveSnapshotArguments
) -> AsyncIterator[None]:
    found = scene.snapshots.find(scene.token, arguments.snapshot_id)
    if found is None:
        raise APIError(404, f"snapshot {arguments.snapshot_id[:64]} not found")
    scene.snapshots.remove(found)
    yield


TAKE_SNAPSHOT = Action("sandbox.snapshot", TakeArguments, _take)
FORK = Action("sandbox.snapshot", ForkArguments, _fork)
REMOVE_SNAPSHOT = Action("sandbox.snapshot", RemoveSnapshotArguments, _remove)
