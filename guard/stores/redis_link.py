"""Sends the scripts of one asyncio loop to Redis, those of one moment together.

A server has its own lane: while the answers to one batch are awaited, what comes
meanwhile waits for the next. So a call that is alone leaves at once, and a hundred
calls share a few round trips. A node of a cluster that is away delays its calls alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, NamedTuple

from toolcell.core import StoreUnavailableError
from toolcell.core.redis_client import open_async_redis

from .redis_threads import Address, Script, ThreadedRedis, unavailable

_BATCH = 64
"""Scripts that are sent together. When it is reached the others are sent after."""

_DELAYS = 3
"""Deadlines that are given once more since the loop itself was held up, with the answer
in its socket. When it is reached the server is taken to be away."""

_HELD_UP = 0.1
"""Share of the deadline by which a loop that was held up notices it too late."""


class _Request(NamedTuple):
    """A script to run, and the future of its answer."""

    script: Script
    key: str
    values: Sequence[Any]
    answer: asyncio.Future[Any]

    def command(self, *, known: bool) -> tuple[Any, ...]:
        """Return the command; by its name if the server knows the script."""
        script = self.script
        way = ("EVALSHA", script.sha) if known else ("EVAL", script.text)
        return (*way, 1, self.key, *self.values)

    def end(self, found: Any) -> None:
        """Hand over the answer, or the error in its place."""
        if not self.answer.done():
            self.answer.set_result(found)


class RedisLink:
    """The connections of one asyncio loop; they close when the loop ends.

    Args:
        url: The server, or a node of a cluster.
        deadline: Seconds to wait for a batch. When it is reached its calls, and those
            that wait behind it, fail as `store_unavailable`.
        cluster: The client that knows the nodes of the cluster; None: there is none.
    """

    def __init__(
        self, url: str, deadline: float, cluster: ThreadedRedis | None
    ) -> None:
        self._url = url
        self._deadline = deadline
        self._cluster = cluster
        self._lanes: dict[Address | None, _Lane] = {}
        self._search: asyncio.Task[None] | None = None
        # A loop that ends closes the asynchronous generators that have begun in it.
        self._until_the_end = self._close_with_loop()
        with suppress(StopIteration):
            anext(self._until_the_end).__await__().send(None)

    async def evaluate(self, script: Script, key: str, values: Sequence[Any]) -> Any:
        """Run a script; a caller that is cancelled leaves it to its fate.

        Args:
            script: The script.
            key: The key that says which node of a cluster runs it.
            values: Its arguments.

        Raises:
            StoreUnavailableError: No answer came in time. The script may still run.
        """
        cluster = self._cluster
        lane = self._lane(None if cluster is None else cluster.node_of(key))
        found = await lane.answer(script, key, values)
        if not isinstance(found, Exception):
            return found
        if cluster is not None:
            if _is_elsewhere(found):
                # That node has not run it. The other client follows keys that move.
                return await cluster.evaluate(script, key, values)
            self._look_for_nodes(cluster, key)
        raise unavailable(found) from found

    async def aclose(self) -> None:
        """Close the connections; calls that wait are cancelled."""
        await self._until_the_end.aclose()

    def _lane(self, node: Address | None) -> _Lane:
        lane = self._lanes.get(node)
        if lane is None:
            client = open_async_redis(self._url, node)
            lane = self._lanes[node] = _Lane(client, self._deadline)
        return lane

    def _look_for_nodes(self, cluster: ThreadedRedis, key: str) -> None:
        """Let the other client find out where the keys of a node are that is away."""
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(_look(cluster, key), context=Context())

    async def _close_with_loop(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            if self._search is not None:
                await asyncio.wait({self._search})
            for lane in self._lanes.values():
                await lane.aclose()


async def _look(cluster: ThreadedRedis, key: str) -> None:
    with suppress(StoreUnavailableError):
        await cluster.run(lambda client: client.exists(key))


class _Lane:
    """The way to one server: batches that follow each other.

    Args:
        client: Its client.
        deadline: Seconds to wait for the answers to a batch.
    """

    def __init__(self, client: Any, deadline: float) -> None:
        self._client = client
        self._deadline = deadline
        self._waiting: deque[_Request] = deque()
        self._task: asyncio.Task[None] | None = None

    async def answer(self, script: Script, key: str, values: Sequence[Any]) -> Any:
        """Return the server's answer, or the error in its place."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(script, key, values, answer))
        if self._task is None:
            # In its own context: it serves all callers alike.
            self._task = asyncio.create_task(self._serve(), context=Context())
        return await answer

    async def aclose(self) -> None:
        """Close the connection; calls that wait are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._client.aclose()

    async def _serve(self) -> None:
        batch: list[_Request] = []
        try:
            while batch := self._next_batch():
                try:
                    await self._answer_all(batch)
                except Exception as error:  # noqa: BLE001 - the calls raise it
                    # A call that waited through another's deadline waits no more.
                    for request in (*batch, *self._waiting):
                        request.end(error)
                    self._waiting.clear()
        finally:
            self._task = None
            for request in (*batch, *self._waiting):
                request.answer.cancel()
            self._waiting.clear()

    def _next_batch(self) -> list[_Request]:
        """Take the next requests whose callers still wait."""
        batch: list[_Request] = []
        while self._waiting and len(batch) < _BATCH:
            request = self._waiting.popleft()
            if not request.answer.done():
                batch.append(request)
        return batch

    async def _answer_all(self, batch: Sequence[_Request]) -> None:
        answers = await self._send([each.command(known=True) for each in batch])
        unknown = [i for i, each in enumerate(answers) if _is_unknown_script(each)]
        if unknown:
            # What the server did not know it did not run.
            again = await self._send([batch[i].command(known=False) for i in unknown])
            for index, answer in zip(unknown, again, strict=True):
                answers[index] = answer
        for request, answer in zip(batch, answers, strict=True):
            request.end(answer)

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        sending = asyncio.ensure_future(pipeline.execute(raise_on_error=False))
        try:
            for _ in range(1 + _DELAYS):
                due = time.monotonic() + self._deadline
                await asyncio.wait({sending}, timeout=self._deadline)
                if sending.done():
                    answers: list[Any] = sending.result()
                    return answers
                if time.monotonic() - due < _HELD_UP * self._deadline:
                    break
            raise TimeoutError(f"no answer in {self._deadline:g} s")
        finally:
            if sending.cancel():
                # It closes its connection.
                await asyncio.wait({sending})


def _is_unknown_script(answer: object) -> bool:
    from redis import exceptions

    return isinstance(answer, exceptions.NoScriptError)


def _is_elsewhere(answer: object) -> bool:
    """Return whether an answer says that a key is at another node of the cluster."""
    from redis import exceptions

    return isinstance(answer, exceptions.AskError | exceptions.TryAgainError)
