"""A directory that Ray keeps: a node on each machine of a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from toolcell.core import ConfigError, SandboxUnavailableError

from ..directory.records import TOLD_SECONDS, NodeRecord
from .connection import RayConnection, imported_ray
from .keeper import KEEPER, Keeper
from .settings import NodeSettings

_START_SECONDS = 60.0


class RayDirectory:
    """The nodes of a Ray cluster; needs the extra `cluster-ray`.

    This process becomes a driver of Ray when the directory is first asked. So it runs
    on a machine of Ray, with the same Python and Ray; other processes use a directory
    in Redis. Runs, files and secrets go over links, never through Ray. Ray has to ask
    for a token (`RAY_AUTH_MODE=token`), from which that of the links is derived.

    Args:
        address: `host:port` of the head of Ray, or `auto`.
        name: The cluster, so that several can share a Ray.
        seconds: Seconds to wait for Ray; default 5. When they are over the operation
            fails as `directory_unavailable`.

    Raises:
        ConfigError: The address is not valid, or there is no token of Ray.
        SandboxUnavailableError: There is no Ray cluster on this machine.
    """

    def __init__(
        self, address: str = "auto", *, name: str = "toolcell", seconds: float = 5.0
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
            raise ConfigError(
                f"{name!r} cannot be the name of a cluster",
                hint="use 1 to 64 letters, digits and `_.-`",
            )
        self._name = name
        self._ray = RayConnection(address, name, seconds)
        self._keeper: Any = None

    @property
    def token(self) -> str:
        """The token of links, 64 hex digits."""
        return self._ray.link_token

    async def nodes(self) -> Sequence[NodeRecord]:
        found: list[str] = await self._ask("nodes")
        if not found and (problems := await self.problems()):
            raise SandboxUnavailableError(
                f"no machine has a sandbox: {problems[0]}",
                hint="see `toolcell cluster status`",
                details={"reason": "directory_unavailable"},
            )
        return [NodeRecord.model_validate_json(text) for text in found]

    async def tell(self, driver: str, waiting: int) -> None:
        await self._ask("tell", driver, waiting, TOLD_SECONDS)

    async def waiting(self) -> int:
        return int(await self._ask("waiting"))

    async def problems(self) -> tuple[str, ...]:
        """Return why machines have no node, each with the machine's name.

        Raises:
            SandboxUnavailableError: Ray does not answer.
        """
        return tuple(await self._ask("problems"))

    async def start(self, settings: NodeSettings) -> None:
        """Have a node on each machine with the resource `toolcell`, from now on.

        Again, with the same settings: nothing.

        Raises:
            ConfigError: They were started with other settings.
            SandboxUnavailableError: Ray does not answer.
        """
        await self._ray.open()
        digest = settings.digest(self._ray.ray_token)
        sealed = settings.sealed(self._ray.ray_token)

        def start() -> str:
            ray = imported_ray()
            options = ray.remote(Keeper).options(
                name=KEEPER,
                namespace=self._name,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=8,
            )
            keeper = options.remote(sealed, digest, self._name)
            return str(ray.get(keeper.digest.remote(), timeout=_START_SECONDS))

        if await self._ray.call(start, seconds=_START_SECONDS) != digest:
            raise ConfigError(
                "the nodes run with other settings",
                hint="`toolcell cluster down`, then `up`",
            )

    async def stop(self) -> None:
        """End all nodes at once, and start no more; Ray itself is left alone.

        Raises:
            SandboxUnavailableError: Ray does not answer.
        """
        await self._ask("stop")

        def stop() -> None:
            keeper = self._ray.actor(KEEPER)
            if keeper is not None:
                imported_ray().kill(keeper, no_restart=True)

        await self._ray.call(stop)
        self._keeper = None

    def close(self) -> None:
        """Leave Ray, if nobody had joined it in this process before."""
        self._ray.close()

    async def _ask(self, method: str, *arguments: object) -> Any:
        await self._ray.open()

        return await self._ray.call(lambda: self._answer(method, arguments))

    def _answer(self, method: str, arguments: tuple[object, ...]) -> Any:
        """Return the keeper's answer. In a thread."""
        ray = imported_ray()
        if self._keeper is not None:
            try:
                return ray.get(getattr(self._keeper, method).remote(*arguments))
            except ray.exceptions.ActorDiedError:
                # It was ended, and another one may be there.
                self._keeper = None
        self._keeper = self._ray.actor(KEEPER)
        if self._keeper is None:
            raise SandboxUnavailableError(
                "nobody has started nodes in this Ray cluster",
                hint="`toolcell cluster up`",
                details={"reason": "directory_unavailable"},
            )
        return ray.get(getattr(self._keeper, method).remote(*arguments))
