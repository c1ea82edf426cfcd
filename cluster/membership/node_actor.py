"""The actor of one machine: an agent with a sandbox, in its own thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping

import anyio
from pydantic import BaseModel, ConfigDict

from toolcell.core import ToolcellError
from toolcell.sandbox import SandboxManager

from ..directory.records import NodeRecord
from ..node.agent import NodeAgent
from .connection import RECONNECT_SECONDS
from .ray_cluster import link_token, ray_token
from .settings import NodeSettings

_AGAIN_SECONDS = 5.0
_RECONNECT = "RAY_gcs_rpc_server_reconnect_timeout_s"
_log = logging.getLogger(__name__)


class ActorStatus(BaseModel):
    """An actor's account of its node."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    record: NodeRecord | None = None
    """Its address; None while it has no sandbox."""

    busy: int = 0
    state: str = "starting"
    problem: str = ""
    """The reason why it has no sandbox."""


class NodeActor:
    """Serves the sandbox of one machine until it is drained; Ray starts it anew.

    Ray's own threads block SIGINT, which what they start inherits, and anyio's scopes
    belong to one task: so it all runs in one task of a thread with its own loop.
    It has no `async` method, or Ray would give it a loop and ways to end of its own.

    Args:
        sealed: The `NodeSettings`.
        name: The name of the node.
        host: The address of the machine.
        slots: The cells that it may have at once.
    """

    def __init__(self, sealed: bytes, name: str, host: str, slots: int) -> None:
        token = ray_token()
        settings = NodeSettings.unsealed(sealed, token)
        self._served = _Served(settings, link_token(token), name, host, slots)
        threading.Thread(target=self._run, name="toolcell", daemon=True).start()

    def status(self) -> str:
        """Return an `ActorStatus` as JSON."""
        return self._served.status().model_dump_json()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        anyio.run(self._served.serve)


class _Served:
    """A sandbox and its agent, made again until there is one."""

    def __init__(
        self, settings: NodeSettings, token: str, name: str, host: str, slots: int
    ) -> None:
        self._settings = settings
        self._token = token
        self._name = name
        self._host = host
        self._slots = slots
        self._agent: NodeAgent | None = None
        self._problem = ""
        self._is_over = False

    def status(self) -> ActorStatus:
        """Return how it is; any thread may ask."""
        agent = self._agent
        if agent is None:
            state = "ended" if self._is_over else "starting"
            return ActorStatus(state=state, problem=self._problem)
        return ActorStatus(record=agent.record, busy=agent.busy, state=agent.state)

    async def serve(self) -> None:
        """Serve until the node is drained."""
        while not self._is_over:
            try:
                await self._serve_once()
                self._is_over = True
            except ToolcellError as error:
                self._problem = f"{error.message}; {error.hint}"
                _log.warning("this node has no sandbox: %s", self._problem)
                await anyio.sleep(_AGAIN_SECONDS)

    async def _serve_once(self) -> None:
        config = self._settings.sandbox
        config = config.model_copy(update={"max_concurrency": self._slots})
        async with (
            SandboxManager(config) as sandbox,
            NodeAgent(
                sandbox,
                token=self._token,
                name=self._name,
                host=self._host,
                lost_seconds=self._settings.lost_seconds,
                check_seconds=self._settings.check_seconds,
                notices=traps(os.environ, os.nice(0)),
            ) as agent,
        ):
            self._problem = ""
            self._agent = agent
            try:
                await agent.retired()
            finally:
                self._agent = None


def traps(environ: Mapping[str, str], nice: int) -> tuple[str, ...]:
    """Return what is set so in Ray that nodes or cells suffer from it.

    Args:
        environ: The variables of a process of Ray.
        nice: Its niceness.
    """
    found = []
    if nice > 0:
        found.append(
            f"Ray runs this node at nice {nice}: start Ray with RAY_worker_niceness=0"
        )
    if int(environ.get(_RECONNECT, 60)) < RECONNECT_SECONDS:
        found.append(
            "Ray ends this node soon after its head is gone: start Ray with "
            f"{_RECONNECT}={RECONNECT_SECONDS}"
        )
    return tuple(found)
