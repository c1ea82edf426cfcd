"""Builds packages from their source: fetched here, built in a cell.

The build of a source runs code of its author. It runs in a cell without network, mounts
and variables of the configuration. Only a wheel comes back, and it is treated like one
from an index.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import tomllib
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.error import HTTPError

import anyio.to_thread
from pydantic import BaseModel, Field

from toolcell.core import InvalidInputError, PackageError, SandboxUnavailableError
from toolcell.core.text.install_hint import install_hint

from ..client.types import CellTraits
from ..config.network import Network
from ..config.settings import Limits, SandboxConfig
from .distributions import (
    BuildSession,
    BuiltWheel,
    OnStep,
    OpenBuilder,
    SourceDistribution,
    canonical,
)
from .layer_files import remove_tree
from .wheel_metadata import WheelError, read_metadata

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from ..results.result import ExecutionResult
    from .index import PackageIndex
    from .layer_store import LayerStore
    from .target_interpreter import Interpreter

_WHEEL = re.compile(r"[A-Za-z0-9._+!-]{1,200}\.whl")
_CHUNK_BYTES = 262_144
_MAX_BYTES = 256 * 1024 * 1024
_MAX_MESSAGE_CHARACTERS = 1500
_MAX_LINE = 1000
_MAX_TOML = 100_000
_MAX_DOTS = 200
"""Characters of a `pyproject.toml`, and dots in one of its lines. When one is reached
the file is not read: a key of many parts takes cubic time."""

_ROOM = Limits(memory_mib=2048, disk_mib=1024, pids=256, open_files=1024)

_UNPACK = """\
import os, tarfile, zipfile
os.mkdir("source")
if zipfile.is_zipfile("archive"):
    zipfile.ZipFile("archive").extractall("source")
else:
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    tarfile.open("archive").extractall("source", **safely)
os.remove("archive")
[folder] = os.listdir("source")
os.rename(f"source/{folder}", "package")
settings = "package/pyproject.toml"
open(settings, encoding="utf-8").read(1_000_000) if os.path.exists(settings) else ""
"""
_BACKEND = """\
import importlib, os, sys
os.chdir(os.path.expanduser("~/package"))
sys.path[:0] = [os.path.abspath(each) for each in paths]
module, _, names = backend.partition(":")
hooks = importlib.import_module(module)
for each in filter(None, names.split(".")):
    hooks = getattr(hooks, each)
"""
_ASK = f"""{_BACKEND}
asked = getattr(hooks, "get_requires_for_build_wheel", lambda settings: [])(None)
[str(each) for each in asked]
"""
_BUILD = f"""{_BACKEND}
wheel = os.path.expanduser("~/wheel")
os.mkdir(wheel)
hooks.build_wheel(wheel)
os.listdir(wheel)
"""


_BackendText = Annotated[str, Field(max_length=400)]


class _BuildSystem(BaseModel):
    """The table of that name in a `pyproject.toml`; without one it is setuptools."""

    requires: Annotated[list[_BackendText], Field(max_length=64)] = ["setuptools"]
    backend: Annotated[str, Field(alias="build-backend", max_length=400)] = (
        "setuptools.build_meta:__legacy__"
    )
    paths: Annotated[
        list[_BackendText], Field(alias="backend-path", max_length=16)
    ] = []


class SourceBuilder:
    """Builds sources for one interpreter.

    Args:
        config: The configuration of the manager whose programs get the packages.
        traits: The traits of its cells; those that build are made in the same way.
        store: Keeps the wheels.
        index: Has the sources.
        target: The interpreter of the cells.
        open_builder: Opens the sandbox in which a source is built.
        on_step: Called when a build begins and ends.
    """

    def __init__(
        self,
        config: SandboxConfig,
        traits: CellTraits,
        store: LayerStore,
        index: PackageIndex,
        target: Interpreter,
        open_builder: OpenBuilder,
        on_step: OnStep | None,
    ) -> None:
        rules = config.package_rules
        self._config = config.model_copy(
            update={
                "backend": traits.backend,
                "network": Network.none,
                "mounts": (),
                "env": {},
                "packages": (),
                "package_rules": rules.model_copy(
                    update={"allow": (*rules.allow, "*"), "build": ()}
                ),
                "code_policy": None,
                "pool": 0,
                "limits": _ROOM.model_copy(update={"wall_seconds": rules.seconds}),
            }
        )
        self._max_bytes = min(rules.layer_mib << 20, _MAX_BYTES)
        self._store = store
        self._index = index
        self._target = target
        self._open_builder = open_builder
        self._on_step = on_step or (lambda line: None)

    async def build(self, source: SourceDistribution) -> BuiltWheel:
        """Return the wheel of a source: the stored one, or a new one.

        Raises:
            PackageError: It cannot be fetched or built.
            SandboxUnavailableError: No cell is available.
        """
        facts = (source.sha256, self._target.tag, self._target.platform)
        key = hashlib.sha256(" ".join(facts).encode()).hexdigest()[:32]
        folder = self._store.built / key
        async with self._store.alone(f"{key}.source"):
            for wheel in folder.glob("*.whl"):
                return await anyio.to_thread.run_sync(_read_wheel, source, wheel)
            title = f"{source.name} {source.version}"
            self._on_step(f"Building {title} in a cell")
            data = await anyio.to_thread.run_sync(self._fetch, source)
            name, wheel_data = await self._build(source, data)
            draft = self._store.building / secrets.token_hex(16)
            draft.mkdir(mode=0o700)
            try:
                wheel = draft / name
                await anyio.to_thread.run_sync(wheel.write_bytes, wheel_data)
                found = await anyio.to_thread.run_sync(_read_wheel, source, wheel)
            except BaseException:
                remove_tree(draft)
                raise
            draft.rename(folder)
            self._on_step(f"Built {title}")
        return found._replace(wheel=folder / name)

    def _fetch(self, source: SourceDistribution) -> bytes:
        """Return the bytes of a source, its hash checked. Raises PackageError."""
        deadline = time.monotonic() + self._config.package_rules.seconds
        if source.url.startswith("file:") and not self._index.is_folder:
            raise _not_fetched(source, "the index names a file of this machine")
        data = bytearray()
        try:
            seconds = min(30.0, self._config.package_rules.seconds)
            # The pattern of `url` allows http, https and file alone.
            with self._index.opener.open(source.url, timeout=seconds) as answer:
                while piece := answer.read(_CHUNK_BYTES):
                    data += piece
                    if len(data) > self._max_bytes:
                        size = self._max_bytes >> 20
                        raise _not_fetched(source, f"it has more than {size} MiB")
                    if time.monotonic() > deadline:
                        raise _not_fetched(source, "it takes too long", "timeout")
        except (OSError, HTTPException, ValueError) as error:
            # A ValueError is that of an address, such as one with port 99999.
            if isinstance(error, HTTPError):
                error.close()
            why = self._index.without_password(str(error))
            raise _not_fetched(source, why, "unreachable") from None
        if hashlib.sha256(data).hexdigest() != source.sha256:
            raise _not_fetched(source, "its hash is not the one that the index says")
        return bytes(data)

    async def _build(
        self, source: SourceDistribution, data: bytes
    ) -> tuple[str, bytes]:
        """Return the name and the bytes of a wheel. Raises as `build`."""
        async with (
            self._open_builder(self._config) as builder,
            builder.session() as session,
        ):
            await session.write_file("archive", data)
            settings = await _value(session, source, _UNPACK)
            system = await anyio.to_thread.run_sync(read_build_system, settings)
            inputs = {"backend": system.backend, "paths": system.paths}
            needs = _needed(source, system.requires, self._target)
            await session.install(needs, on_step=self._on_step)
            asked = await _value(session, source, _ASK, inputs)
            more = set(_needed(source, asked, self._target)) - set(needs)
            if more:
                await session.install(sorted(more), on_step=self._on_step)
            made = await _value(session, source, _BUILD, inputs)
            name = _wheel_name(source, made)
            try:
                return name, await session.read_file(f"wheel/{name}", self._max_bytes)
            except InvalidInputError as error:
                raise _not_built(source, error.message) from None


async def _value(
    session: BuildSession,
    source: SourceDistribution,
    code: str,
    inputs: dict[str, Any] | None = None,
) -> Any:
    """Run one step of a build. Raises PackageError if it fails."""
    result = await session.run(code, fresh=True, inputs=inputs or {})
    if not result.ok:
        raise _not_built(source, _reason(result))
    return result.value


def _reason(result: ExecutionResult) -> str:
    stderr = result.stderr.strip()[-_MAX_MESSAGE_CHARACTERS:]
    return f"{result.status}: {stderr}" if stderr else result.status


def read_build_system(text: Any) -> _BuildSystem:
    """Return the build system of a `pyproject.toml`. Raises PackageError."""
    try:
        if len(text) > _MAX_TOML:
            raise ValueError(f"it has more than {_MAX_TOML} characters")
        if any(line.count(".") > _MAX_DOTS for line in text.splitlines()):
            raise ValueError(f"a line has more than {_MAX_DOTS} dots")
        table = tomllib.loads(text).get("build-system", {})
        return _BuildSystem.model_validate(table)
    except (ValueError, TypeError, RecursionError) as why:
        raise PackageError(
            f"the source's pyproject.toml cannot be read: {why}",
            hint="ask for another version, or a wheel",
            details={"reason": "build_failed"},
        ) from None


def _needed(source: SourceDistribution, lines: Any, target: Interpreter) -> list[str]:
    """Return the packages of a list that apply to the interpreter, without markers.

    Raises:
        PackageError: One of them is an address, or no requirement.
    """
    places = {
        "python_version": target.version,
        "python_full_version": f"{target.version}.0",
        "platform_machine": target.platform.partition("-")[0],
    }
    found = []
    for line in lines if isinstance(lines, list) else ():
        need = _requirement(source, str(line))
        if _applies(source, need, places):
            extras = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
            found.append(f"{need.name}{extras}{need.specifier}")
    return found


def _requirement(source: SourceDistribution, text: str) -> Requirement:
    """Return a requirement that a source, or its wheel, names.

    Raises:
        PackageError: It is an address, or no requirement.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        raise SandboxUnavailableError(
            "building needs `packaging`, which is not installed",
            hint=install_hint("packages"),
        ) from None
    try:
        if len(text) > _MAX_LINE:
            raise InvalidRequirement(f"it has more than {_MAX_LINE} characters")
        need = Requirement(text)
    except (InvalidRequirement, RecursionError) as error:
        raise _not_built(source, f"{text!r:.100} is not a package: {error}") from None
    if need.url is not None:
        raise _not_built(source, f"it needs {need.name} from an address")
    return need


def _applies(
    source: SourceDistribution, need: Requirement, places: dict[str, str]
) -> bool:
    """Return True if the marker of a requirement holds. Raises PackageError."""
    try:
        return need.marker is None or need.marker.evaluate(places)
    except (ValueError, RecursionError) as error:
        raise _not_built(source, f"{need.name} cannot be judged: {error}") from None


def _wheel_name(source: SourceDistribution, names: Any) -> str:
    """Return the name of the only wheel. Raises PackageError."""
    name = names[0] if isinstance(names, list) and len(names) == 1 else ""
    if not isinstance(name, str) or not _WHEEL.fullmatch(name):
        raise _not_built(source, "the build did not produce exactly one wheel")
    if canonical(name.partition("-")[0]) != source.name:
        raise _not_built(source, f"it came to another package: {name}")
    return name


def _read_wheel(source: SourceDistribution, wheel: Path) -> BuiltWheel:
    """Return a wheel with its dependencies. Raises PackageError."""
    try:
        found = read_metadata(wheel)
    except WheelError as error:
        raise _not_built(source, str(error)) from None
    needs = [_requirement(source, need) for need in found.needs]
    return BuiltWheel(
        wheel, tuple(map(str, needs)), tuple(map(canonical, found.extras))
    )


def _not_fetched(
    source: SourceDistribution, why: str, reason: str = "failed"
) -> PackageError:
    return PackageError(
        f"the source of {source.name} {source.version} was not fetched: {why}",
        hint="look whether the index serves it, and try again",
        details={"reason": reason},
    )


def _not_built(source: SourceDistribution, why: str) -> PackageError:
    return PackageError(
        f"{source.name} {source.version} was not built: {why}",
        hint="put a wheel on an index, or make an image that has the package",
        details={"reason": "build_failed"},
    )
