"""Runs outside of sessions: a program has a cell to itself while it runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

from toolcell.core import CellLostError

from ..client.cell import Cell
from ..client.types import Listener, Program
from ..client.workdir import WorkDir
from ..config.argument_checks import check_freshness
from ..programs.program import RunRequest, refused
from ..scheduling.cell_supply import CellSupply
from .program_factory import ProgramFactory

if TYPE_CHECKING:
    from ..network.types import OnConnection
    from ..results.events import Event
    from ..results.result import ExecutionResult


class SingleRuns:
    """Runs programs that keep no state.

    Args:
        programs: Makes the programs.
        cells: Lends a cell for each.
    """

    def __init__(self, programs: ProgramFactory, cells: CellSupply) -> None:
        self._programs = programs
        self._cells = cells

    async def run(self, request: RunRequest) -> ExecutionResult:
        """Run a program; see `SandboxManager.run`."""
        program = self._program(request, request.on_connection)
        program = await self._programs.judged(program)
        refusal = refused(program)
        if refusal is not None:
            return refusal
        program = await self._with_packages(program, request.packages)
        async with self._cell(program, request) as cell:
            files = WorkDir(cell)
            await files.write_all(request.files)
            program = await files.with_inputs(program)
            listener = Listener(request.on_output, request.on_display)
            report = await cell.run(program, listener)
            return cell.result(report, program)

    async def stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Run a program and yield its events; see `SandboxManager.stream`."""
        from ..client.event_stream import PendingEvents, stream_run
        from ..results.events import Finished

        pending = PendingEvents()
        program = self._program(request, pending.add_connection)
        program = await self._programs.judged(program)
        refusal = refused(program)
        if refusal is not None:
            yield Finished(refusal)
            return
        program = await self._with_packages(program, request.packages)
        async with self._cell(program, request) as cell:
            files = WorkDir(cell)
            await files.write_all(request.files)
            program = await files.with_inputs(program)
            async with aclosing(stream_run(cell, program, pending)) as events:
                async for event in events:
                    yield event

    async def _with_packages(
        self, program: Program, packages: Sequence[str]
    ) -> Program:
        own: list[str] = []

        async def install(more: Sequence[str]) -> None:
            await self._programs.install([*packages, *own, *more])
            own.extend(more)

        program = await self._programs.with_own_packages(program, install)
        return await self._programs.with_packages(
            program, [*packages, *own] if own else packages
        )

    def _program(
        self, request: RunRequest, on_connection: OnConnection | None
    ) -> Program:
        program = self._programs.make(request, final=True)
        program = self._programs.with_network(
            program, request.network, on_connection, request.agent_id, request.gate
        )
        check_freshness(request.minimum_freshness)
        again = (
            self._programs.config.programs_per_cell > 1
            and request.minimum_freshness == "program"
            and request.owner is not None
            and program.egress is None
            and not request.secrets
        )
        return program._replace(again=True) if again else program

    @asynccontextmanager
    async def _cell(self, program: Program, request: RunRequest) -> AsyncIterator[Cell]:
        owner = request.owner if program.again else None
        agent_id = request.agent_id
        try:
            async with self._cells.cell(program.limits, agent_id, owner) as cell:
                yield cell
        except CellLostError:
            self._cells.events.lost("run", agent_id)
            raise
