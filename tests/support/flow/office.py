"""Threads whose questions and calls are asked where approvals are."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from toolcell.core import InterruptDeniedError
from toolcell.flow import Flow, Graph, MemoryCheckpointer, NodeContext, interrupt
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    ApprovalStore,
)
from toolcell.guard.spi import ApprovalReply
from toolcell.tools import ConcurrentExecutor, ToolRegistry, tool

from .graphs import Log, chain, said


class Office:
    """A store of threads and one of approvals, as each new process finds them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.threads = MemoryCheckpointer()
        self.paid: list[int] = []
        self.others: list[str] = []
        self.now = time.time()
        self._open = ExitStack()
        self.policy: dict[str, Any] = {"ask": ["pay"]}
        self.kind = Approvals

        @tool
        async def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            return f"paid {euros}"

        self.tools = ToolRegistry([pay])

    def approvals(self) -> Approvals:
        """Return the approvals, as another process has them."""
        store = self._open.enter_context(ApprovalStore(self.folder / "approvals.db"))
        return self.kind(store, answered_elsewhere=True, clock=lambda: self.now)

    def flow(self, *nodes: Any, **options: Any) -> Flow[Log]:
        """Return the flow, as a new process has it."""
        return self.of(chain(*nodes), **options)

    def of(self, graph: Graph[Log], **options: Any) -> Flow[Log]:
        """Return the flow of a graph, as a new process has it."""
        policy = AgentPolicy(agent_id="bot", **self.policy)
        others = [AgentPolicy(agent_id=other) for other in self.others]
        guard = ActionGuard([policy, *others], approvals=self.approvals())
        executor = ConcurrentExecutor(self.tools, guard=guard)
        options = {"agent_id": "bot", "checkpointer": self.threads, **options}
        return Flow(graph, executor=executor, **options)

    async def request(self) -> ApprovalRequest:
        [found] = await self.approvals().pending()
        return found

    async def answer(self, reply: ApprovalReply) -> None:
        await self.approvals().answer((await self.request()).id, reply)

    def close(self) -> None:
        self._open.close()


def ask(state: Log) -> dict[str, Any]:
    try:
        return said(str(interrupt({"question": "go on?", "for": 5})))
    except InterruptDeniedError as error:
        told = str(error.hint).rpartition(" ")[2]
        return said(f"{error.details['reason']}: {told}")


async def pay(state: Log, ctx: NodeContext) -> dict[str, Any]:
    before = await ctx.once(lambda: "once")
    result = await ctx.call("pay", euros=30)
    return said(str(before), result.to_text())
