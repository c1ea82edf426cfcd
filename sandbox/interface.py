"""The interface of a sandbox, wherever its cells are; each option of a run, once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any

from .programs.program import RunRequest

if TYPE_CHECKING:
    import anyio
    from pydantic import SecretStr

    from .client.host_calls import HostCalls
    from .client.types import Freshness, Language, OnDisplay, OnOutput
    from .config.network import Network
    from .config.settings import Limits, SandboxConfig
    from .network.gate import RequestGate
    from .network.types import OnConnection
    from .packages.distributions import OnStep
    from .results.events import Event
    from .results.result import ExecutionResult
    from .runs.batch import BatchResults, OnProgress, Programs, Work
    from .scheduling.pool import PoolStats
    from .sessions.interface import SandboxSession


class Sandbox(ABC):
    """A place to run programs and sessions: `SandboxManager` on this machine.

    Code that is typed by it works with any other as well. Options of runs and batches
    are declared here alone; a subclass has `_run` and `_stream`, which take requests.
    """

    @property
    @abstractmethod
    def config(self) -> SandboxConfig:
        """The limits and rules of its runs."""

    @property
    @abstractmethod
    def active_cells(self) -> int:
        """The number of cells that runs and sessions use now."""

    @property
    @abstractmethod
    def notices(self) -> tuple[str, ...]:
        """Facts that users of its cells should know, such as a weaker backend."""

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        argv: Sequence[str] = (),
        stdin: bytes | None = None,
        merge_stderr: bool = False,
        secrets: Mapping[str, SecretStr] | None = None,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        calls: HostCalls | None = None,
        network: Network | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
        on_connection: OnConnection | None = None,
        gate: RequestGate | None = None,
        minimum_freshness: Freshness = "program",
    ) -> ExecutionResult:
        """Run a program in its own cell, or in one that was made new for it.

        The cell was never used and is destroyed afterwards, unless
        `SandboxConfig.programs_per_cell` is more than 1 and the run has neither
        `secrets` nor a network.

        Args:
            code: The program's text.
            language: "python", "bash" or "node".
            inputs: JSON values that become variables: globals of Python and node, or
                environment variables of bash (strings as they are, others as
                JSON text).
            limits: Narrower limits for this run; what is not set in them, and
                None, takes the manager's.
            files: Files of the work dir, by path.
            argv: The program's name and its arguments, text without NUL, at most
                `input_bytes` together; `sys.argv`. If the name is one of `files`, it
                is Python's `__file__`, too. Bash and node take the arguments alone.
            stdin: Bytes on its standard input, at most `input_bytes`; None is empty.
            merge_stderr: True sends standard error into standard output, in the order
                of writing, as a shell's `2>&1` does; `stderr` is empty then.
            calls: Functions that the program may call here, as `tools.<name>(...)`.
            secrets: Environment variables of this run alone, at most 65,536 bytes
                together. The program has the values, and may print or return them; no
                record, log or repr of toolcell shows them.
            packages: Packages that it can import, such as "numpy==2.1.*", beside
                those of the configuration; see `PackageRules`. They are installed
                before the first run that needs them, outside of its limits.
            agent_id: The agent that asks. Agents that wait take turns; None is an agent
                of its own.
            network: The hosts that this run may reach, within the manager's network;
                None takes that.
            on_output: Called with the stream's name and bytes as output arrives.
            on_display: Called with each output as it is displayed, in order with what
                is printed; they are in the result, too.
            on_connection: Called with each connection that the program asked for,
                when it has ended or was refused; they are in the result, too.
            gate: Judges connections and requests to a guarded network, as
                `toolcell.tools` does for an executor (`Operation.gate`); None refuses
                all of them.
            minimum_freshness: What must be new at least: "program" is an interpreter
                in which nothing ran, with all else that programs can change new, too;
                "cell" is a cell that nothing ran in.

        Raises:
            InvalidInputError: The arguments cannot be used.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: No cell is available.
            CellLostError: The cell went away during the run.
        """
        return await self._run(
            RunRequest(
                code=code,
                language=language,
                inputs=inputs,
                limits=limits,
                files=files,
                argv=argv,
                stdin=stdin,
                merge_stderr=merge_stderr,
                secrets=secrets,
                packages=packages,
                agent_id=agent_id,
                calls=calls,
                network=network,
                on_output=on_output,
                on_display=on_display,
                on_connection=on_connection,
                gate=gate,
                minimum_freshness=minimum_freshness,
            )
        )

    async def stream(
        self,
        code: str,
        *,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
        gate: RequestGate | None = None,
        minimum_freshness: Freshness = "program",
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield its events as they happen.

        Output stays in the cell until it is asked for, so any amount passes in little
        memory here. The program waits for the reader, while its deadline does not.
        `limits.output_bytes` bytes of each stream pass. Close the iterator, or
        use `contextlib.aclosing`, to end the run early.

        Arguments and errors are those of `run`.
        """
        request = RunRequest(
            code=code,
            language=language,
            inputs=inputs,
            limits=limits,
            files=files,
            secrets=secrets,
            packages=packages,
            agent_id=agent_id,
            network=network,
            gate=gate,
            minimum_freshness=minimum_freshness,
            streamed=True,
        )
        async with aclosing(self._stream(request)) as events:
            async for event in events:
                yield event

    async def call(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a Python function in a cell and return its value.

        The modules, functions, data and context variables that it refers to travel
        with it; see `call_program`. Arguments and the value are JSON.

        Raises:
            InvalidInputError: The function or an argument cannot travel.
            CallFailedError: It raised, was stopped, or returned a value that is not
                JSON; its `result` is the result of the run.
            SandboxUnavailableError: No cell is available.
            CellLostError: The cell went away during the call.
        """
        from .programs.function_program import call_program, returned

        program = call_program(function, args, kwargs)
        result = await self.run(program.code, inputs=program.inputs)
        return returned(function, result)

    @abstractmethod
    def session(
        self,
        *,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
    ) -> AbstractAsyncContextManager[SandboxSession]:
        """Open a cell for several runs of one agent; closing destroys it.

        Args:
            packages: Packages that its programs can import, as in `run`.
            agent_id: The agent whose session it is, as in `run`.
            network: The hosts that its runs may reach, as in `run`;
                `Session.set_network` changes them.

        Raises:
            InvalidInputError: A package is not written as one, or `network` reaches
                further than the manager's.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: No cell is available.
        """

    def map(
        self,
        programs: Programs,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        ordered: bool = True,
        on_progress: OnProgress | None = None,
        agent_id: str | None = None,
    ) -> BatchResults:
        """Run many programs, each as `run` does; iterate over one result for each.

        Args:
            programs: An iterable or async iterable of texts, `(text, inputs)` or `Job`;
                it is read at the pace at which results are taken.
            concurrency: Programs at once, at most `max_concurrency`; None: one a CPU,
                or, on a cluster, as many as the nodes have slots.
            limits: As in `run`, for each program; a `Job` may narrow them.
            ordered: True keeps results in the order of the programs.
            on_progress: Called with how many programs have ended and how many run.
            agent_id: As in `run`.

        Raises:
            InvalidInputError: An argument cannot be used.
        """
        from .runs.batch import Batch, BatchResults

        usual = self._usual_concurrency
        batch = Batch(
            programs,
            run=self._run,
            start=self._start,
            max_concurrency=self.config.max_concurrency,
            concurrency=usual if concurrency is None else concurrency,
            limits=limits,
            ordered=ordered,
            on_progress=on_progress,
            agent_id=agent_id,
        )
        return BatchResults(batch)

    @abstractmethod
    async def install(
        self,
        packages: Sequence[str] = (),
        *,
        on_step: OnStep | None = None,
    ) -> str:
        """Install packages before a run asks for them.

        Args:
            packages: As in `run`; those of the configuration come with them.
            on_step: Called with each line that the installer prints.

        Returns:
            The path of the packages in cells; empty if there are none.

        Raises:
            InvalidInputError: A package is not written as one.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: uv is not installed, or there is no cell.
        """

    @abstractmethod
    def pool_stats(self) -> PoolStats:
        """Return the state of the pool of prepared cells.

        Raises:
            SandboxUnavailableError: It is not open.
        """

    @abstractmethod
    async def check(self) -> None:
        """Ask whether cells can be made, without making one.

        Raises:
            SandboxUnavailableError: No cell can be made now, or it is not open.
        """

    @abstractmethod
    async def _run(self, request: RunRequest) -> ExecutionResult:
        """Run a program; see `run`."""

    @abstractmethod
    def _stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        """Run a program and yield its events; see `stream`."""

    @abstractmethod
    def _start(self, work: Work) -> anyio.CancelScope:
        """Start work that ends with the sandbox; return a scope that cancels it."""

    @property
    def _usual_concurrency(self) -> int | None:
        """Programs of a batch at once where none is named; None: one a CPU."""
        return None
