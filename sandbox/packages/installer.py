"""Packages for programs: checks requests and finds the one layer that holds a set.

A set is resolved once and keeps its versions until it is pruned, so it is the same for
every run. For a set that is installed, a request costs one dictionary lookup.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import anyio
import anyio.to_thread
from pydantic import SecretStr, TypeAdapter, ValidationError

from toolcell.core import InvalidInputError, PackageError

from ..client.backend import Backend
from ..config.package_rules import Requirement
from ..config.settings import SandboxConfig
from . import target_interpreter
from .distributions import (
    BuiltWheel,
    OnStep,
    OpenBuilder,
    built_file,
    canonical,
)
from .index import PackageIndex
from .layer_files import remove_tree
from .layer_store import TARGET, LayerStore
from .source_builder import SourceBuilder
from .target_interpreter import Interpreter
from .uv import Uv

_MAX_REQUIREMENTS = 64


class PackageInstaller:
    """The packages of one manager.

    Args:
        config: Its configuration; `packages` and `package_rules` count.
        backend: Makes its cells.
        open_builder: Opens the sandbox in which a package is built; None if
            `package_rules.build` is empty.
        index_password: That of the index of packages, if it wants one.
    """

    def __init__(
        self,
        config: SandboxConfig,
        backend: Backend,
        open_builder: OpenBuilder | None = None,
        index_password: SecretStr | None = None,
    ) -> None:
        self._config = config
        self._backend = backend
        self._open_builder = open_builder
        self._rules = config.package_rules
        self._index = PackageIndex(self._rules.index_url, index_password)
        self._always = _sorted(config.packages)
        self._store = LayerStore(self._rules.folder) if config.wants_packages else None
        self._target: Interpreter | None = None
        self._layers: dict[tuple[str, ...], str] = {(): ""}
        self._held: dict[str, int] = {}

    async def layer(
        self, requirements: Iterable[str] = (), on_step: OnStep | None = None
    ) -> str:
        """Return the path in cells of these packages and the manager's own.

        Args:
            requirements: Packages, in the form that pip takes.
            on_step: Called with each line that uv prints, if there is work to do.

        Raises:
            InvalidInputError: A requirement is not written as one.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: uv is not installed, or a cell cannot be made.
        """
        wanted = self._require_allowed(requirements)
        found = self._layers.get(wanted)
        if found is None:
            found = await self._ensure(wanted, on_step)
            self._layers[wanted] = found
        return found

    def _require_allowed(self, requirements: Iterable[str]) -> tuple[str, ...]:
        """Return the packages with the manager's own, sorted. Raises as `layer`."""
        asked = tuple(requirements)
        if not asked:
            return self._always
        if isinstance(requirements, str) or len(asked) > _MAX_REQUIREMENTS:
            raise InvalidInputError(
                f"packages must be a list of at most {_MAX_REQUIREMENTS} packages",
                hint='write packages=["numpy"], or make a set of packages in an image',
            )
        try:
            TypeAdapter(tuple[Requirement, ...]).validate_python(asked, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InvalidInputError(
                f"the package {str(asked[int(first['loc'][0])])[:100]!r} is not "
                f"written as one: {first['msg']}",
                hint='write it like "numpy" or "numpy==2.3.1"',
            ) from None
        allowed = {
            canonical(package) for package in (*self._rules.allow, *self._always)
        }
        refused = sorted({canonical(package) for package in asked} - allowed)
        if refused and "*" not in self._rules.allow:
            raise PackageError(
                f"not allowed here: the package {', '.join(refused)}",
                hint="name it in package_rules.allow of SandboxConfig "
                "([sandbox.package_rules] in toolcell.toml)",
                details={"reason": "not_allowed", "packages": refused},
            )
        return _sorted({*self._always, *asked})

    async def _ensure(self, wanted: tuple[str, ...], on_step: OnStep | None) -> str:
        store = self._store
        assert store is not None
        if self._target is None:
            self._target = await target_interpreter.ask(self._backend)
        target = self._target
        lock = await self._resolve(wanted, target, on_step)
        key = _key(target.tag, target.platform, lock)
        await self._hold(key)
        async with store.alone(f"{key}.build"):
            folder = await anyio.to_thread.run_sync(store.find, key)
            if folder is None:
                folder = await self._build(key, lock, target, on_step)
            await self._backend.show_layer(store.layers / folder, finished=True)
        return self._path_in_cells(folder)

    def _path_in_cells(self, folder: str) -> str:
        """Return the path of a layer in cells."""
        assert self._store is not None
        confined = self._backend.traits.level == "confined"
        place = self._store.bind.source if confined else TARGET
        return f"{place}/{folder}"

    async def _resolve(
        self, wanted: tuple[str, ...], target: Interpreter, on_step: OnStep | None
    ) -> str:
        """Return the lock of these packages: the stored one, if there is one."""
        store = self._store
        assert store is not None
        rules, bounds = self._rules, _bounds(self._rules.allow)
        facts = [wanted, bounds, target.model_dump(), rules.index_url]
        name = _key(json.dumps([*facts, sorted(map(canonical, rules.build))]))
        lock_file = store.resolved / f"{name}.txt"
        async with store.alone(f"{name}.resolve"):
            with contextlib.suppress(OSError):
                os.utime(lock_file)
                lock = lock_file.read_text()
                for line in lock.splitlines():
                    if path := built_file(line):
                        path.stat()
                        os.utime(path.parent)
                return lock
            async with store.alone("building", shared=True):
                folder = store.begin()
                try:
                    lock = await self._resolve_anew(
                        wanted, bounds, target, folder, on_step
                    )
                    (folder / "lock.txt").rename(lock_file)
                finally:
                    remove_tree(folder)
        return lock

    async def _resolve_anew(
        self,
        wanted: tuple[str, ...],
        bounds: list[str],
        target: Interpreter,
        folder: Path,
        on_step: OnStep | None,
    ) -> str:
        """Return a new lock; packages without a wheel are built for it."""
        uv = self._uv(on_step)
        waiting = {canonical(package) for package in self._rules.build}
        built: dict[str, BuiltWheel] = {}
        while waiting:
            sources = await uv.sources(wanted, bounds, target, folder, built, waiting)
            if not sources:
                break
            assert self._store is not None
            assert self._open_builder is not None
            builder = SourceBuilder(
                self._config,
                self._backend.traits,
                self._store,
                self._index,
                target,
                self._open_builder,
                on_step,
            )
            for source in sources:
                made = built[source.name] = await builder.build(source)
                bounds = [*bounds, f"{source.name} @ {made.wheel.as_uri()}"]
                waiting.remove(source.name)
        return await uv.resolve(wanted, bounds, target, folder, built)

    def _uv(self, on_step: OnStep | None) -> Uv:
        assert self._store is not None
        rules = self._rules
        limit = rules.layer_mib << 20
        return Uv(self._store.wheels, self._index, rules.seconds, limit, on_step)

    async def _build(
        self, key: str, lock: str, target: Interpreter, on_step: OnStep | None
    ) -> str:
        store = self._store
        assert store is not None
        async with store.alone("building", shared=True):
            path = store.begin()
            try:
                await self._uv(on_step).install(lock, target, path)
                limit = self._rules.layer_mib << 20
                place = await anyio.to_thread.run_sync(store.publish, path, limit)
                await self._backend.show_layer(place, finished=False)
                await target_interpreter.compile_layer(
                    self._backend,
                    place,
                    self._path_in_cells(path.name),
                    target.tag,
                    self._config.limits,
                )
                facts = (target.tag, target.platform, _names(lock))
                await anyio.to_thread.run_sync(store.finish, key, place, *facts)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(store.abandon, path)
                raise
        return path.name

    async def _hold(self, key: str) -> None:
        """Keep a layer from being pruned until this is closed."""
        if key not in self._held:
            assert self._store is not None
            held = await self._store.lock(f"{key}.use", shared=True)
            if self._held.setdefault(key, held) != held:
                # Another task got it first.
                os.close(held)

    def close(self) -> None:
        """Let the layers be pruned."""
        while self._held:
            os.close(self._held.popitem()[1])


def _names(lock: str) -> list[str]:
    """Return names and exact versions of the packages in a lock."""
    names = []
    for line in lock.splitlines():
        if path := built_file(line):
            names.append("==".join(path.name.split("-")[:2]))
        elif "==" in line:
            names.append(line.split()[0])
    return names


def _bounds(allowed: Iterable[str]) -> list[str]:
    """Return the requirements that bind versions, without their extras."""
    plain = (re.sub(r"\[.*?\]", "", each) for each in allowed)
    return sorted(each for each in plain if re.search("[=<>~!]", each))


def _sorted(requirements: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(requirements)))


def _key(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:32]
