"""What workers of the guard's proofs do: in a thread, a task, or a process of its own.

As a program it forks a worker for each connection to its socket, so that hundreds can
be killed and replaced.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel

from toolcell.guard import MemoryStore, RedisStore, SQLiteStore, Store
from toolcell.guard.stores.base import Reservation, ReservationOutcome

PATIENCE = 60.0
"""Seconds that stores wait in tests, where a slow machine is no failure."""


@dataclass
class SetClock:
    """A clock that is moved by hand."""

    now: float

    def __call__(self) -> float:
        return self.now


class Place(NamedTuple):
    """Where a store is."""

    kind: str
    address: str = ""
    prefix: str = ""

    def open(self, clock: Callable[[], float]) -> Store:
        """Open the store, or make it."""
        if self.kind == "memory":
            return MemoryStore(clock=clock)
        if self.kind == "sqlite":
            return SQLiteStore(Path(self.address), clock=clock, deadline=PATIENCE)
        return RedisStore(
            self.address, prefix=self.prefix, clock=clock, deadline=PATIENCE
        )


class Job(NamedTuple):
    """One call: its reservation, and what it does after."""

    bit: int
    """Its own power of two."""

    request: Reservation
    taken: bool = False
    """Whether it was admitted before, and only settles now."""

    settles: int = 1
    """How often it says what it has cost."""

    cost: Sequence[int] | None = None


class Event(NamedTuple):
    """What a worker saw: the answer to a reservation, or to a settlement."""

    bit: int
    began: int
    ended: int
    """In nanoseconds, on the clock that all processes share."""

    outcome: ReservationOutcome | None
    settled: bool = False


Say = Callable[[Event], object]


async def work(store: Store, job: Job, say: Say) -> None:
    """Reserve and settle; tell each answer at once."""
    if not job.taken:
        began = time.monotonic_ns()
        outcome = await store.reserve(job.request)
        say(Event(job.bit, began, time.monotonic_ns(), outcome))
        if not outcome.admitted:
            return
    for number in range(job.settles):
        await anyio.lowlevel.checkpoint()
        began = time.monotonic_ns()
        if isinstance(store, MemoryStore) and job.bit.bit_length() % 2:
            # As guards do, which do not wait for the answer.
            store.settle_deferred(job.request.hold_id, job.cost)
            settled = number == 0
        else:
            settled = await store.settle(job.request.hold_id, job.cost)
        say(Event(job.bit, began, time.monotonic_ns(), None, settled))


async def work_all(store: Store, jobs: Sequence[Job], say: Say) -> None:
    """Do some jobs at once."""
    async with anyio.create_task_group() as tasks:
        for job in jobs:
            tasks.start_soon(work, store, job, say)


async def serve(connection: Connection[Any, Any]) -> None:
    """Do what comes, until the other side ends."""
    clock = SetClock(0.0)
    connection.send(os.getpid())
    store = Place(*connection.recv()).open(clock)
    while True:
        try:
            clock.now, jobs = connection.recv()
        except EOFError:
            return
        await work_all(
            store,
            [Job(*job) for job in jobs],
            # Plain, for a program's own classes have no name elsewhere.
            lambda event: connection.send(tuple(event)),
        )
        connection.send(None)


def main(path: str) -> None:
    """Fork a worker for each connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # What each worker would import anew.
    import_module("redis")
    anyio.run(anyio.lowlevel.checkpoint)
    with Listener(path, "AF_UNIX") as door:
        print("ready", flush=True)
        while True:
            with door.accept() as connection:
                if os.fork() == 0:
                    try:
                        anyio.run(serve, connection)
                    finally:
                        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
