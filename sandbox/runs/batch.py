"""Many programs, a window of them at a time."""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectSendStream
from pydantic import SecretStr

from toolcell.core import (
    ErrorInfo,
    InvalidInputError,
    SandboxError,
    SandboxUnavailableError,
    ToolcellError,
)

from ..client.host_calls import HostCalls
from ..client.types import Language
from ..config.network import Network
from ..config.settings import Limits
from ..programs.program import RunRequest
from ..results.result import ExecutionResult

_log = logging.getLogger("toolcell.sandbox")

_WINDOW = 4
"""Programs that are read and not handed out yet, as a multiple of those that run at
once. When it is reached no more are read until a result is taken."""

_FULL_QUEUE_SECONDS = 1.0
"""The longest pause before a manager whose queue is full is asked again."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program of a batch, with what `SandboxManager.run` takes beside it."""

    code: str
    """The program's text."""

    id: str | int | None = None
    """A label for its result; need not be unique."""

    inputs: Mapping[str, Any] | None = None
    language: Language = "python"
    files: Mapping[str, bytes | str] | None = None
    limits: Limits | None = None
    """Narrower limits than the batch's."""

    argv: Sequence[str] = ()
    stdin: bytes | None = None
    secrets: Mapping[str, SecretStr] | None = field(default=None, repr=False)
    packages: Sequence[str] = ()
    calls: HostCalls | None = None
    network: Network | None = None


Programs = (
    AsyncIterable[str | tuple[str, Mapping[str, Any]] | Job]
    | Iterable[str | tuple[str, Mapping[str, Any]] | Job]
)
"""Programs of a batch: code, code with its inputs, or jobs."""

Run = Callable[[RunRequest], Awaitable[ExecutionResult]]
Work = Callable[[], Awaitable[None]]
Start = Callable[[Work], anyio.CancelScope]
OnProgress = Callable[[int, int], None]
"""Takes the number of jobs that have ended, and of those at work."""

_numbers = itertools.count(1)
_OPTIONS = [each.name for each in fields(Job) if each.name not in ("id", "limits")]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The outcome of one program of a batch: it has either `result` or `error`."""

    index: int
    """Its place in the batch, from 0."""

    id: str | int | None = None
    """The `id` of its `Job`; None where it had none."""

    result: ExecutionResult | None = None
    """The result of the program, well or badly ended."""

    error: ErrorInfo | None = None
    """The reason why the program could not be run."""

    @property
    def status(self) -> str:
        """The result's status, or `not_run`."""
        return "not_run" if self.result is None else self.result.status


class BatchResults:
    """The results of a batch, as an async iterator. Get one from `SandboxManager.map`.

    ```
    async with sandbox.map(programs) as results:
        async for each in results: ...
    ```
    Leaving the `async with` early, by `break` or an error, or `aclose()`, ends the
    programs that run, and control is back when nothing of them is left. A task that is
    cancelled while it waits for a result ends the batch in the same way. A bare
    `async for` works as well; what Python does at a `break` there comes a little later.

    One task reads; the next batch wants another `map`.
    """

    def __init__(self, batch: Batch) -> None:
        self._results = batch.results()

    def __aiter__(self) -> BatchResults:
        return self

    async def __anext__(self) -> JobResult:
        return await anext(self._results)

    async def __aenter__(self) -> BatchResults:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the batch; return when none of its programs runs any more."""
        await self._results.aclose()


class Batch:
    """Reads programs, runs them, and hands out exactly one result for each.

    One task reads the source, so that an async generator with scopes of its own works.
    It reads on when a place to run is free and the window has room.

    Args:
        programs: The source.
        run: Runs one program.
        start: Starts work in the background; returns what cancels it.
        max_concurrency: The largest number of programs that can run at once.
        concurrency: How many are to run at once; None: one for each CPU.
        limits: Of each program; None: those of `run`.
        ordered: Whether results come in the order of the source.
        on_progress: Called with how many have ended and how many are at work.
        agent_id: The agent that asks.

    Raises:
        InvalidInputError: An argument cannot be used.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        run: Run,
        start: Start,
        max_concurrency: int,
        concurrency: int | None,
        limits: Limits | None,
        ordered: bool,
        on_progress: OnProgress | None,
        agent_id: str | None,
    ) -> None:
        places = min(_checked(programs, concurrency), max_concurrency)
        self._programs = programs
        self._start = start
        self._run = run
        self._agent_id = agent_id
        self._number = next(_numbers)
        self._limits = limits
        self._ordered = ordered
        self._on_progress = on_progress
        self._places = anyio.Semaphore(places)
        self._window = anyio.Semaphore(_WINDOW * places)
        self._over = anyio.Event()
        self._running = 0
        self._ended = 0
        self._early: dict[int, JobResult] = {}
        self._due = 0
        self._complete = False
        self._failure: Exception | None = None

    async def results(self) -> AsyncGenerator[JobResult, None]:
        """Yield the results; closing it ends the batch.

        Raises:
            SandboxUnavailableError: The manager is not open, or was closed.
            Exception: What the source, or `on_progress`, raised.
        """
        send, receive = anyio.create_memory_object_stream[JobResult](math.inf)
        with send, receive:
            work = self._start(partial(self._work, send))
            try:
                async for ended in receive:
                    self._tell_progress()
                    for result in self._in_turn(ended):
                        self._window.release()
                        yield result
            finally:
                work.cancel()
                with anyio.CancelScope(shield=True):
                    await self._over.wait()
        if self._failure is not None:
            raise self._failure
        if not self._complete:
            raise SandboxUnavailableError(
                "the manager was closed during a batch",
                hint="open a new SandboxManager, and map what has no result yet",
            )

    def _tell_progress(self) -> None:
        self._ended += 1
        if self._on_progress is not None:
            self._on_progress(self._ended, self._running)

    def _in_turn(self, ended: JobResult) -> Iterator[JobResult]:
        """Yield a result at once, or with those that waited for it, in order."""
        if not self._ordered:
            yield ended
            return
        self._early[ended.index] = ended
        while found := self._early.pop(self._due, None):
            self._due += 1
            yield found

    async def _work(self, send: MemoryObjectSendStream[JobResult]) -> None:
        try:
            async with anyio.create_task_group() as runs:
                await self._read_source(runs, send)
            self._complete = True
        finally:
            send.close()
            self._over.set()

    async def _read_source(
        self, runs: anyio.abc.TaskGroup, send: MemoryObjectSendStream[JobResult]
    ) -> None:
        async with aclosing(_each(self._programs)) as source:
            for index in itertools.count():
                await self._window.acquire()
                await self._places.acquire()
                try:
                    program = await anext(source)
                except StopAsyncIteration:
                    break
                except Exception as error:  # noqa: BLE001 - raised in `results`
                    self._failure = error
                    break
                self._running += 1
                runs.start_soon(self._run_one, index, program, send)

    async def _run_one(
        self, index: int, program: object, send: MemoryObjectSendStream[JobResult]
    ) -> None:
        label = None
        try:
            job = _job(program)
            label = job.id
            result = await self._result(job)
            found = JobResult(index=index, id=label, result=result)
        except ToolcellError as error:
            found = JobResult(index=index, id=label, error=ErrorInfo.of(error))
        except Exception as error:  # noqa: BLE001 - it does not end the others
            _log.exception("program %d of a batch could not be run", index)
            untyped = SandboxError(
                f"{type(error).__name__}: {error}", hint="see the log of this process"
            )
            found = JobResult(index=index, id=label, error=ErrorInfo.of(untyped))
        finally:
            self._running -= 1
            self._places.release()
        send.send_nowait(found)

    async def _result(self, job: Job) -> ExecutionResult:
        """Run a program; wait where others fill the manager's queue."""
        limits = job.limits
        if limits is not None and self._limits is not None:
            limits = self._limits.narrowed_by(limits)
        options = {name: getattr(job, name) for name in _OPTIONS}
        request = RunRequest(
            **options,
            limits=limits or self._limits,
            agent_id=self._agent_id,
            batch=self._number,
        )
        while True:
            try:
                return await self._run(request)
            except SandboxUnavailableError as error:
                if error.details.get("reason") != "queue_full":
                    # A manager that closes has cancelled the batch before.
                    await anyio.lowlevel.checkpoint_if_cancelled()
                    raise
                pause = min(error.details["retry_after"], _FULL_QUEUE_SECONDS)
            await anyio.sleep(pause)


def _checked(programs: object, concurrency: int | None) -> int:
    """Return how many are to run at once.

    Raises:
        InvalidInputError: That, or the source, cannot be used.
    """
    iterable = isinstance(programs, AsyncIterable | Iterable)
    if not iterable or isinstance(programs, str | bytes | Mapping):
        raise InvalidInputError(
            f"programs must be a series of programs, not {type(programs).__name__}",
            hint="pass a list, an iterator or an async iterator of texts or Jobs",
        )
    if concurrency is None:
        return os.cpu_count() or 1
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidInputError(
            f"concurrency must be a whole number from 1, not {concurrency!r}",
            hint="leave it out for one program for each CPU",
        )
    return concurrency


async def _each(programs: Programs) -> AsyncGenerator[object, None]:
    if isinstance(programs, AsyncIterable):
        async for program in programs:
            yield program
    else:
        for program in programs:
            yield program


def _job(program: object) -> Job:
    """Return what a batch was given as a job. Raises InvalidInputError."""
    if isinstance(program, Job):
        return program
    if isinstance(program, str):
        return Job(program)
    if isinstance(program, tuple) and len(program) == 2:
        return Job(program[0], inputs=program[1])
    raise InvalidInputError(
        f"a program of a batch must not be a {type(program).__name__}",
        hint="pass its text, (text, inputs), or a Job",
    )
