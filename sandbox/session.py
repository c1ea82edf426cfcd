"""A cell for several runs of one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import anyio

from .cell_client import Cell, Language, OnOutput
from .config import Limits
from .result import ExecutionResult

if TYPE_CHECKING:
    from .manager import SandboxManager


class Session:
    """One cell that lives until the session is closed; no other session has it.

    Files in the work dir stay from run to run. Get one from
    `SandboxManager.session`.
    """

    def __init__(
        self, manager: SandboxManager, cell: Cell, agent_id: str | None
    ) -> None:
        self._manager = manager
        self._cell = cell
        self._turn = anyio.Lock()
        self.agent_id = agent_id

    @property
    def limits(self) -> Limits:
        """The limits of its runs."""
        return self._manager.config.limits

    async def run(
        self,
        code: str,
        *,
        fresh: Literal[True],
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run a program in a new interpreter of this session's cell.

        Runs of one session follow each other. A run may narrow the limits on
        time, output and code; those on memory, processes, CPUs, files and disk
        are the cell's.

        Args:
            code: The program's text.
            fresh: A new interpreter for this run.
            language: As in `SandboxManager.run`.
            inputs: As in `SandboxManager.run`.
            limits: Narrower limits for this run; None takes the manager's.
            on_output: Called with the stream's name and bytes as output arrives.

        Raises:
            InvalidInputError: The arguments cannot be used.
            CellLostError: The cell went away; the session cannot be used again.
        """
        program = self._manager.session_program(code, language, inputs, limits)
        refusal = self._manager.refusal(program)
        if refusal is not None:
            return refusal
        async with self._turn:
            try:
                report = await self._cell.run(program, on_output)
            except BaseException:
                # Half a run is no state to go on from.
                await self._cell.kill()
                raise
            return self._cell.result(report, program)
