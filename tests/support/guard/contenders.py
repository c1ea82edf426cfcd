"""Crews that do jobs at once: threads, tasks, or processes that may be killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing import connection
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from . import worker as guard_worker
from .builders import impatient_threads
from .worker import Event, Job, Place, SetClock, work, work_all

THREADS = 4
PROCESSES = 4
SECOND = 1_000_000

Burst = Callable[[int, Sequence[Job]], list[Event]]
"""Does jobs at a time, and returns what the workers told."""

Crew = Callable[[Place], AbstractContextManager[Burst]]


def _parts(jobs: Sequence[Job], count: int) -> list[Sequence[Job]]:
    return [jobs[number::count] for number in range(count)]


@contextmanager
def tasks(place: Place) -> Iterator[Burst]:
    """Yield the tasks of one event loop."""
    with start_blocking_portal() as portal:
        clock = SetClock(0.0)
        store = place.open(clock)

        def burst(now: int, jobs: Sequence[Job]) -> list[Event]:
            clock.now, events = now / SECOND, list[Event]()
            portal.call(work_all, store, jobs, events.append)
            return events

        yield burst
        portal.call(store.aclose)


@contextmanager
def threads(place: Place) -> Iterator[Burst]:
    """Yield threads with an event loop each, which change places every 10 µs."""
    with ExitStack() as stack:
        portals = [stack.enter_context(start_blocking_portal()) for _ in range(THREADS)]
        clock = SetClock(0.0)
        store = place.open(clock)
        barrier = threading.Barrier(THREADS)
        events: list[Event] = []

        async def part(jobs: Sequence[Job]) -> None:
            barrier.wait()
            for job in jobs:
                await work(store, job, events.append)

        def burst(now: int, jobs: Sequence[Job]) -> list[Event]:
            clock.now = now / SECOND
            events.clear()
            parts = zip(portals, _parts(jobs, THREADS), strict=True)
            done = [portal.start_task_soon(part, mine) for portal, mine in parts]
            for thread in done:
                thread.result()
            return [*events]

        with impatient_threads():
            yield burst
        portals[0].call(store.aclose)


class Worker:
    """A process with a store of its own."""

    def __init__(self, door: str, place: Place) -> None:
        self.connection = connection.Client(door, "AF_UNIX")
        self._end = os.pidfd_open(self.connection.recv())
        self.connection.send(tuple(place))
        self.bits: set[int] = set()
        """The calls that it has reserved for."""

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        signal.pidfd_send_signal(self._end, signal.SIGKILL)
        connection.wait([self._end])

    def close(self) -> None:
        os.close(self._end)
        self.connection.close()


class Processes:
    """Processes on one store.

    Args:
        door: Where workers are made.
        place: The store.
        chance: Chooses who is killed, and roughly when.
        deadly: Whether anybody is.
    """

    def __init__(
        self, door: str, place: Place, chance: random.Random, *, deadly: bool
    ) -> None:
        self._door, self._place = door, place
        self._chance, self._deadly = chance, deadly
        self._workers = [Worker(door, place) for _ in range(PROCESSES)]
        self.dead: set[int] = set()
        """The calls of those who were killed in the last burst."""

    def burst(self, now: int, jobs: Sequence[Job]) -> list[Event]:
        """Do jobs at a time; return what the workers could still tell."""
        for worker, part in zip(self._workers, _parts(jobs, PROCESSES), strict=True):
            worker.bits.update(job.bit for job in part if not job.taken)
            worker.connection.send((now / SECOND, [tuple(job) for job in part]))
        doomed = list[Worker]()
        if self._deadly:
            doomed = self._chance.sample(self._workers, self._chance.randrange(3))
        events = self._hear(doomed)
        self.dead = {bit for worker in doomed for bit in worker.bits}
        for worker in doomed:
            worker.close()
            place = self._workers.index(worker)
            self._workers[place] = Worker(self._door, self._place)
        return events

    def forget(self) -> None:
        """Begin a new round, with calls of the same names."""
        for worker in self._workers:
            worker.bits.clear()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.close()

    def _hear(self, doomed: Sequence[Worker]) -> list[Event]:
        """Read until all are done or dead; kill at some moment on the way."""
        events, alive = list[Event](), [*doomed]
        talking = {worker.connection: worker for worker in self._workers}
        while talking or alive:
            pause = self._chance.random() * 0.01 if alive else None
            ready = connection.wait(list(talking), pause)
            if alive and (not ready or self._chance.random() < 0.3):
                alive.pop().kill()
            for end in ready:
                assert isinstance(end, connection.Connection)
                worker = talking[end]
                try:
                    told = end.recv()
                except (EOFError, OSError):
                    assert worker in doomed, "a worker failed"
                    told = None
                if told is None:
                    del talking[end]
                else:
                    events.append(Event(*told))
        return events


@contextmanager
def processes(
    place: Place, folder: Path, seed: str, *, deadly: bool
) -> Iterator[Processes]:
    """Yield a crew of processes."""
    door = str(folder / "door")
    with subprocess.Popen(
        [sys.executable, "-P", guard_worker.__file__, door], stdout=subprocess.PIPE
    ) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"ready\n"
        crew = Processes(door, place, random.Random(seed), deadly=deadly)
        try:
            yield crew
        finally:
            crew.close()
            maker.kill()
