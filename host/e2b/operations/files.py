"""`sandbox.read` and `sandbox.write`: files and folders of sandboxes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from toolcell.sandbox.spi import SandboxProcess

from ..protocol.errors import APIError
from ..state.sandbox import Sandbox, Watcher
from .action import Action, SandboxArguments, Scene
from .cell_files import CellFiles, resolved

MAX_DEPTH = 64


class PathArguments(SandboxArguments):
    """One file or folder; its path is absolute, without `.` and `..`."""

    path: str


class ReadArguments(PathArguments):
    """A file to read."""

    operation: Literal["read"] = "read"


class StatArguments(PathArguments):
    """An entry to describe."""

    operation: Literal["stat"] = "stat"


class ListArguments(PathArguments):
    """A folder to list."""

    operation: Literal["list"] = "list"
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 1


class WatchArguments(PathArguments):
    """A folder to watch."""

    operation: Literal["watch"] = "watch"
    recursive: bool = False
    entries: bool = False
    """True: its events describe the entries as well."""


class WriteArguments(PathArguments):
    """A file to write."""

    operation: Literal["write"] = "write"
    metadata: dict[str, str] = Field(default_factory=dict)


class MakeFolderArguments(PathArguments):
    """A folder to make."""

    operation: Literal["make_folder"] = "make_folder"


class MoveArguments(PathArguments):
    """An entry to move to `path`."""

    operation: Literal["move"] = "move"
    source: str


class RemoveArguments(PathArguments):
    """An entry to remove, with all in it."""

    operation: Literal["remove"] = "remove"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is being written."""

    path: str
    metadata: dict[str, str]
    process: SandboxProcess
    """Its input becomes the file."""


def _place(scene: Scene, arguments: PathArguments) -> tuple[Sandbox, CellFiles, str]:
    sandbox = scene.sandbox(arguments)
    path = resolved(arguments.path, sandbox.home)
    return sandbox, CellFiles(sandbox.session), path


@asynccontextmanager
async def _read(
    scene: Scene, arguments: ReadArguments
) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    _, files, path = _place(scene, arguments)
    async with aclosing(files.read(path, scene.settings.max_file_bytes)) as data:
        yield data


@asynccontextmanager
async def _stat(
    scene: Scene, arguments: StatArguments
) -> AsyncIterator[dict[str, Any]]:
    sandbox, _, path = _place(scene, arguments)
    yield await _described(sandbox, path)


@asynccontextmanager
async def _list(
    scene: Scene, arguments: ListArguments
) -> AsyncIterator[list[dict[str, Any]]]:
    _, files, path = _place(scene, arguments)
    entries = await files.below(path, arguments.depth)
    yield await files.with_metadata(entries)


@asynccontextmanager
async def _watch(scene: Scene, arguments: WatchArguments) -> AsyncIterator[Watcher]:
    """Yield a watcher, whose watch lasts until its owner closes it."""
    sandbox, _, path = _place(scene, arguments)
    watch = await sandbox.session.watch(path, recursive=arguments.recursive)
    yield Watcher(watch, path if arguments.entries else None)


@asynccontextmanager
async def _write(scene: Scene, arguments: WriteArguments) -> AsyncIterator[Written]:
    """Yield what the bytes go to; then write the metadata in place of what it had."""
    sandbox, files, path = _place(scene, arguments)
    metadata = arguments.metadata
    async with files.writing(path) as process:
        yield Written(path, metadata, process)
    if metadata or sandbox.has_metadata:
        await files.set_metadata(path, metadata)
        sandbox.has_metadata = True


@asynccontextmanager
async def _make_folder(
    scene: Scene, arguments: MakeFolderArguments
) -> AsyncIterator[dict[str, Any]]:
    sandbox, files, path = _place(scene, arguments)
    await files.make_folder(path)
    yield await _described(sandbox, path)


@asynccontextmanager
async def _move(
    scene: Scene, arguments: MoveArguments
) -> AsyncIterator[dict[str, Any]]:
    sandbox, files, path = _place(scene, arguments)
    await files.move(resolved(arguments.source, sandbox.home), path)
    yield await _described(sandbox, path)


@asynccontextmanager
async def _remove(scene: Scene, arguments: RemoveArguments) -> AsyncIterator[None]:
    sandbox, files, path = _place(scene, arguments)
    if path in ("/", sandbox.home):
        raise APIError(400, f"{path} cannot be removed")
    await files.remove(path)
    yield


async def _described(sandbox: Sandbox, path: str) -> dict[str, Any]:
    files = CellFiles(sandbox.session)
    [entry] = await files.with_metadata([await files.stat(path)])
    return entry


async def entries_of(
    sandbox: Sandbox, paths: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the entries at absolute paths, of those that are there."""
    files = CellFiles(sandbox.session)
    entries = await files.with_metadata(await files.some(paths))
    return {entry["path"]: entry for entry in entries}


READ = Action("sandbox.read", ReadArguments, _read)
STAT = Action("sandbox.read", StatArguments, _stat)
LIST = Action("sandbox.read", ListArguments, _list)
WATCH = Action("sandbox.read", WatchArguments, _watch)
WRITE = Action("sandbox.write", WriteArguments, _write)
MAKE_FOLDER = Action("sandbox.write", MakeFolderArguments, _make_folder)
MOVE = Action("sandbox.write", MoveArguments, _move)
REMOVE = Action("sandbox.write", RemoveArguments, _remove)
