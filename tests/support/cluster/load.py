"""Work without end on a cluster whose parts are killed."""

from __future__ import annotations

from collections import Counter

import anyio

from toolcell.cluster import ClusterSandbox
from toolcell.core import CellLostError, SandboxUnavailableError


class Load:
    """Tasks that run, stream and open sessions for ever, each wait with a deadline.

    Args:
        sandbox: The driver.
    """

    def __init__(self, sandbox: ClusterSandbox) -> None:
        self._sandbox = sandbox
        self.ends: Counter[str] = Counter()

    async def go_on(self, kind: str) -> None:
        """Do one thing after the other. Raises TimeoutError if one hangs."""
        number = 0
        while True:
            number += 1
            try:
                with anyio.fail_after(90):
                    value = await getattr(self, kind)(number)
                assert value == number
                self.ends["ok"] += 1
            except CellLostError as error:
                self.ends[str(error.details["reason"])] += 1
            except SandboxUnavailableError as error:
                self.ends[str(error.details["reason"])] += 1

    async def run(self, number: int) -> object:
        code = f"import time\ntime.sleep(0.05)\n{number}"
        return (await self._sandbox.run(code)).value

    async def session(self, number: int) -> object:
        async with self._sandbox.session() as session:
            await session.run(f"x = {number}")
            await session.write_file("a", b"a" * 100_000)
            return (await session.run("x")).value

    async def stream(self, number: int) -> object:
        code = f"print(1, flush=True)\nprint(2, flush=True)\n{number}"
        events = [each async for each in self._sandbox.stream(code)]
        return events[-1].result.value  # type: ignore[union-attr]
