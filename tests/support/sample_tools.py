"""Tools and short words that the tests of executors share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from toolcell.core import ToolCall, ToolResult
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

from .polling import PATIENCE


def executor(*tools: Any, **options: Any) -> ConcurrentExecutor:
    return ConcurrentExecutor(ToolRegistry(tools), guard=None, **options)


def call(name: str, call_id: str = "", **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id or name, name=name, arguments=arguments)


def calls(name: str, count: int) -> list[ToolCall]:
    return [call(name, str(number), number=number) for number in range(count)]


@tool
async def echo(number: int) -> int:
    return number


@tool
def add(a: int, b: int) -> int:
    return a + b


@tool
async def crash() -> None:
    raise ValueError("hunter2 is the password")


async def blocked() -> None:
    with anyio.fail_after(PATIENCE):
        await anyio.wait_all_tasks_blocked()


def statuses(results: Sequence[ToolResult]) -> list[str]:
    return [result.status for result in results]


class Gates:
    """Tools that wait until the test lets them go, one by one."""

    def __init__(self) -> None:
        self.gates: dict[int, anyio.Event] = {}
        self.running: set[int] = set()
        self.peak = 0
        self.cancelled: set[int] = set()
        self.tool = tool(name="wait", timeout=60)(self.wait)

    async def wait(self, number: int) -> int:
        gate = self.gates.setdefault(number, anyio.Event())
        self.running.add(number)
        self.peak = max(self.peak, len(self.running))
        try:
            await gate.wait()
        except BaseException:
            # Ending takes a moment; whoever cancels has to wait for it.
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            self.cancelled.add(number)
            raise
        finally:
            self.running.discard(number)
        return number
