"""This process as a driver of Ray, for membership alone: no run is a call of Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.core.text.install_hint import install_hint

from .ray_cluster import link_token, ray_address, ray_token, require_guarded

_T = TypeVar("_T")
RECONNECT_SECONDS = 86_400
"""Seconds that a process goes on without the head of Ray. Ray's default is 60; then it
ends the whole process, with all links."""

_THREADS = 8
_joining = threading.Lock()


class RayConnection:
    """A connection to a Ray cluster, made when it is first used.

    Args:
        address: `host:port` of its head, or `auto`.
        namespace: The namespace of our actors, so that several clusters of nodes can
            share a Ray.
        seconds: Seconds for an answer of Ray. When they are over it counts as away.

    Raises:
        ConfigError: The address is not valid, or there is no token of Ray.
        SandboxUnavailableError: There is no cluster on this machine.
    """

    def __init__(self, address: str, namespace: str, seconds: float) -> None:
        self.address = ray_address(address)
        """`host:port` of its head."""

        self.ray_token = ray_token()
        """The token of Ray; never shown."""

        self._namespace = namespace
        self._seconds = seconds
        self._limiter: anyio.CapacityLimiter | None = None
        self._is_ours = False
        self._is_open = False

    @property
    def link_token(self) -> str:
        """The token of links."""
        return link_token(self.ray_token)

    async def open(self) -> None:
        """Become a driver of Ray; again: nothing.

        Raises:
            ConfigError: The cluster lets everybody in, the token does not fit, or it
                has another version of Ray or Python.
            SandboxUnavailableError: It is away.
        """
        if not self._is_open:
            await require_guarded(self.address, self.ray_token, self._seconds)
            await self.call(self._join, seconds=4 * self._seconds)
            self._is_open = True

    async def call(self, work: Callable[[], _T], *, seconds: float | None = None) -> _T:
        """Do something with Ray in a thread, which is left alone if it takes too long.

        Raises:
            SandboxUnavailableError: It took too long, or Ray failed.
            ConfigError: `work` raised it.
        """
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS)
        try:
            with anyio.fail_after(self._seconds if seconds is None else seconds):
                return await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=self._limiter
                )
        except (ConfigError, SandboxUnavailableError):
            raise
        except Exception as error:
            raise SandboxUnavailableError(
                f"Ray does not answer: {type(error).__name__}",
                hint="look after its head: `ray status`; open links go on",
                details={"reason": "directory_unavailable"},
            ) from error

    def actor(self, name: str) -> Any:
        """Return one of our actors; None if there is no such one. In a thread."""
        try:
            return imported_ray().get_actor(name, namespace=self._namespace)
        except ValueError:
            return None

    def close(self) -> None:
        """Leave Ray, if nobody had joined it in this process before."""
        if self._is_ours and self._is_open:
            with contextlib.suppress(Exception):
                imported_ray().shutdown()
        self._is_open = False

    def _join(self) -> None:
        ray = imported_ray()
        with _joining:
            if ray.is_initialized():
                found = ray.get_runtime_context().gcs_address
                if found != self.address:
                    raise ConfigError(
                        f"this process belongs to the Ray cluster at {found} already",
                        hint="one process can have one cluster",
                    )
                return
            try:
                ray.init(
                    address=self.address,
                    namespace=self._namespace,
                    log_to_driver=False,
                    # Else it warns that it cannot handle signals in this thread.
                    logging_level=logging.ERROR,
                )
            except RuntimeError as error:
                # Another version of Ray or Python, in Ray's words.
                raise ConfigError(
                    f"this process cannot join Ray: {error}",
                    hint="use its versions here, or a directory in Redis",
                ) from None
        self._is_ours = True


def imported_ray() -> Any:
    """Return Ray, with the settings that count when it is first imported.

    Raises:
        ConfigError: It is not installed.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault(
        "RAY_gcs_rpc_server_reconnect_timeout_s", str(RECONNECT_SECONDS)
    )
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "the ray package is missing", hint=install_hint("cluster-ray")
        ) from None
    return ray
