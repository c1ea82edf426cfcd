"""SWE-ReX: `ToolcellDeployment` runs its shells and commands in one session."""

from __future__ import annotations

import asyncio
from functools import partial

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

from toolcell.guard import ActionGuard
from toolcell.sandbox import SandboxConfig
from toolcell.tools import Records

from .cells.thread_session import ThreadSession
from .swe_rex_runtime import CallRefusedError, ToolcellRuntime

__all__ = ["CallRefusedError", "ToolcellDeployment", "ToolcellRuntime"]


class ToolcellDeployment(AbstractDeployment):
    """Starts and stops a session of toolcell for SWE-ReX.

    A command or a file that the guard refuses is a CallRefusedError.

    Args:
        config, guard, agent_id, records: As in `ThreadSession`.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "swe-rex",
        records: Records | None = None,
    ) -> None:
        self.logger = get_logger("rex-deploy")
        self._open = partial(
            ThreadSession, config, guard=guard, agent_id=agent_id, records=records
        )
        self._runtime: ToolcellRuntime | None = None
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook: DeploymentHook) -> None:
        """Tell a hook about the steps of starting."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Return if it was started, and its cell lives."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="it was not started")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Open the session. Raises SandboxUnavailableError: there is no cell."""
        self._hooks.on_custom_step("Starting cell")
        self._runtime = ToolcellRuntime(await asyncio.to_thread(self._open))

    async def stop(self) -> None:
        """End the session with all that runs in it; again: nothing."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> ToolcellRuntime:
        """The runtime. Raises DeploymentNotStartedError."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime
