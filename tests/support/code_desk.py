"""A host with the tools for code, called briefly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext

EVERYTHING = ["run_python", "run_shell", "calculate", "*_file", "*_files"]


def config(max_sessions: int = 16, **options: Any) -> dict[str, Any]:
    tools = {
        "builtin": ["arithmetic", "code", "files"],
        "max_sessions": max_sessions,
        "code": {"max_calls": 5},
    }
    return {
        "sandbox": {"backend": "subprocess", **options},
        "tools": tools,
        "policies": [
            {"agent_id": "a", "allow": EVERYTHING},
            {"agent_id": "b", "allow": [*EVERYTHING[:2], *EVERYTHING[3:]]},
            {
                "agent_id": "c",
                "allow": ["run_python", "calculate"],
                "budgets": [{"unit": "calls", "limit": 3, "window": "run"}],
            },
        ],
    }


class Desk:
    """A host, called briefly."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def __call__(
        self, name: str, session: str | None = "s", agent: str = "a", **arguments: Any
    ) -> Any:
        run = RunContext(session=session)
        result = await self.host.call(name, arguments, agent_id=agent, run=run)
        if result.error is not None:
            return f"{result.status}: {result.error.message}"
        return result.content

    async def value(self, code: str, **where: Any) -> Any:
        told = await self("run_python", code=code, **where)
        return told.get("value", told["status"])


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[Desk]:
    async with Host(HostConfig.model_validate(config(**options)), environ={}) as host:
        yield Desk(host)
