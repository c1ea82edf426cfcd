"""Packages for programs: which are allowed, and the one layer that holds them.

What was resolved once stays resolved until it is pruned, so a set of packages is
the same for every run, and one that is installed costs a look into a dictionary.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from pydantic import TypeAdapter, ValidationError

from toolcell.core import InvalidInputError, PackageError

from . import interpreter
from .cell_client import Backend
from .config import Requirement, SandboxConfig
from .interpreter import Interpreter
from .layers import TARGET, LayerStore, remove_tree, wants_packages
from .uv import OnStep, Uv

_POLL_SECONDS = 0.05
_MAX_REQUIREMENTS = 64
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Packages:
    """The packages of one manager.

    Args:
        config: Its `packages` and `package_rules`.
        backend: Makes its cells.
    """

    def __init__(self, config: SandboxConfig, backend: Backend) -> None:
        self._config = config
        self._backend = backend
        self._rules = config.package_rules
        self._always = _sorted(config.packages)
        self._store = LayerStore(self._rules.folder) if wants_packages(config) else None
        self._target: Interpreter | None = None
        self._layers: dict[tuple[str, ...], str] = {(): ""}
        self._held: dict[str, int] = {}

    async def layer(
        self, requirements: Iterable[str] = (), on_step: OnStep | None = None
    ) -> str:
        """Return where cells find these packages and the manager's own.

        Args:
            requirements: Packages, as pip is told.
            on_step: Called with each line that uv says, if there is work to do.

        Raises:
            InvalidInputError: A requirement is not written as one.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: uv is not installed, or a cell cannot be made.
        """
        wanted = self._check(requirements)
        found = self._layers.get(wanted)
        if found is None:
            found = await self._ensure(wanted, on_step)
            self._layers[wanted] = found
        return found

    def _check(self, requirements: Iterable[str]) -> tuple[str, ...]:
        """Return what is wanted, in one order. Raises as `layer`."""
        asked = tuple(requirements)
        if not asked:
            return self._always
        if isinstance(requirements, str) or len(asked) > _MAX_REQUIREMENTS:
            raise InvalidInputError(
                f"packages must be a list of at most {_MAX_REQUIREMENTS} packages"
            )
        try:
            TypeAdapter(tuple[Requirement, ...]).validate_python(asked, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InvalidInputError(
                f"the package {str(asked[int(first['loc'][0])])[:100]!r} is not "
                f"written as one: {first['msg']}"
            ) from None
        allowed = {canonical(each) for each in (*self._rules.allow, *self._always)}
        refused = sorted({canonical(each) for each in asked} - allowed)
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
            self._target = await interpreter.ask(self._backend)
        target = self._target
        uv = Uv(store.wheels, self._rules.index_url, self._rules.seconds, on_step)
        lock = await self._resolve(uv, wanted, _bounds(self._rules.allow), target)
        key = _key(target.tag, target.platform, lock)
        await self._hold(key)
        async with self._alone(f"{key}.build"):
            folder = await anyio.to_thread.run_sync(store.find, key)
            if folder is None:
                folder = await self._build(uv, key, lock, target)
        return f"{TARGET}/{folder}"

    async def _resolve(
        self, uv: Uv, wanted: tuple[str, ...], bounds: list[str], target: Interpreter
    ) -> str:
        """Return the lock of these packages: the kept one, if there is one."""
        store = self._store
        assert store is not None
        facts = [wanted, bounds, target.model_dump(), self._rules.index_url]
        name = _key(json.dumps(facts))
        kept = store.resolved / f"{name}.txt"
        async with self._alone(f"{name}.resolve"):
            with contextlib.suppress(OSError):
                os.utime(kept)
                return kept.read_text()
            async with self._alone("building", shared=True):
                folder = store.begin()
                try:
                    lock = await uv.resolve(wanted, bounds, target, folder)
                    (folder / "lock.txt").rename(kept)
                finally:
                    remove_tree(folder)
        return lock

    async def _build(self, uv: Uv, key: str, lock: str, target: Interpreter) -> str:
        store = self._store
        assert store is not None
        async with self._alone("building", shared=True):
            path = store.begin()
            try:
                await uv.install(lock, target, path)
                place = await anyio.to_thread.run_sync(store.place, path)
                await interpreter.compile_layer(
                    self._backend,
                    place,
                    f"{TARGET}/{path.name}",
                    target.tag,
                    self._config.limits,
                )
                names = [each.split()[0] for each in lock.splitlines() if "==" in each]
                facts = (target.tag, target.platform, names)
                await anyio.to_thread.run_sync(store.finish, key, place, *facts)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(store.abandon, path)
                raise
        return path.name

    async def _hold(self, key: str) -> None:
        """Keep a layer from being pruned until this is closed."""
        if key not in self._held:
            self._held[key] = await self._lock(f"{key}.use", shared=True)

    @asynccontextmanager
    async def _alone(self, name: str, *, shared: bool = False) -> AsyncIterator[None]:
        held = await self._lock(name, shared)
        try:
            yield
        finally:
            os.close(held)

    async def _lock(self, name: str, shared: bool) -> int:
        """Wait for a lock that other tasks, threads and processes may have."""
        store = self._store
        assert store is not None
        while (held := store.try_lock(name, shared=shared)) is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)
        return held

    def close(self) -> None:
        """Let go of the layers."""
        while self._held:
            os.close(self._held.popitem()[1])


def canonical(requirement: str) -> str:
    """Return the name in a requirement as indexes compare it."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else requirement


def _bounds(allowed: Iterable[str]) -> list[str]:
    """Return what binds versions; extras bind none."""
    plain = (re.sub(r"\[.*?\]", "", each) for each in allowed)
    return sorted(each for each in plain if re.search("[=<>~!]", each))


def _sorted(requirements: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(requirements)))


def _key(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:32]
