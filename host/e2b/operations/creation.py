"""`sandbox.create`: a new sandbox, empty or with the files of a snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import Field

from ..protocol.errors import APIError
from ..state.sandbox import Lifecycle, Sandbox
from ..state.snapshots import Snapshot
from .act import Act, Scene
from .metering import meter
from .networks import NetworkArguments


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
            404, f"there is no template {name!r}; there are {', '.join(known)}"
        )


CREATE = Act("sandbox.create", CreateArguments, _create)
