"""A host with a console on a port of its own, served from another thread."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep, time
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from toolcell.core import InvalidInputError, ToolResult
from toolcell.guard import ApprovalRequest, Reject
from toolcell.host import Host, HostConfig
from toolcell.host.console.accounts.sessions import Sessions
from toolcell.host.console.app import open_app
from toolcell.host.console.web.gate import cookie_name
from toolcell.host.http.serving import listen, serving
from toolcell.host.operator.event_bus import open_events
from toolcell.host.operator.people import People, Person, Role
from toolcell.host.operator.people_file import PEOPLE_FILE, PeopleFile
from toolcell.host.runtime.sources import sources_of
from toolcell.tools import RunContext, tool

CONFIG = """
[state]
folder = "state"
[audit]
path = "audit.jsonl"
[approvals]
wait_seconds = 3600
[[policies]]
agent_id = "builder"
allow = ["note"]
ask = ["pay", "run_script"]
deny = [{ tools = ["pay"], when = { to = { equals = "thief" } } }]
budgets = [{ unit = "usd", limit = "5.00", window = "day" }]
[[policies]]
agent_id = "buyer"
ask = ["pay"]
[[policies]]
agent_id = "treasurer"
ask = [{ tools = ["pay"], approvers = 2 }]
"""
_PREVIEWS = "toolcell.tools.definition.previews"
_STATE_FILE = "toolcell.host.config.state_file"
SECRET = "sk-proj-" + "a1B2" * 8


def receipt(to: str, sum: int, note: str) -> str:  # noqa: A002 - for people
    """Return what `pay` would write."""
    lines = [f"{sum} to {to}", *([note] if note else [])]
    return "\n".join(lines)


@tool(cost={"usd": "0.25"}, preview=receipt)
async def pay(to: str, sum: int = 1, note: str = "") -> str:  # noqa: A002 - for people
    """Pay somebody."""
    return f"paid {sum} to {to}"


@tool
async def run_script(script: str) -> str:
    """Run a script."""
    return f"ran {len(script)} characters"


@tool
async def note(text: str) -> str:
    """Write a note."""
    return text


@dataclass(frozen=True)
class Service:
    """A served console."""

    url: str
    host: Host
    people: People
    sessions: Sessions
    portal: BlockingPortal
    calls: list[Future[ToolResult]] = field(default_factory=list)

    def signed_in(
        self,
        name: str = "anna",
        role: Role = "admin",
        agents: tuple[str, ...] | None = None,
    ) -> tuple[dict[str, str], str]:
        """Return the cookie of a person, and the token of its forms."""
        self.people._put_subject(
            "https://issuer.test", name, Person(name, role, agents, 0.0)
        )
        secret = self.sessions.open(name, "127.0.0.1")
        found = self.sessions.find(secret)
        assert found is not None
        return {cookie_name(self.url): secret}, found.form_token

    def link(self, role: Role = "admin", **options: Any) -> str:
        """Return the address of a one-time link."""
        code = self.people.make_link(role=role, seconds=600, **options)
        return f"{self.url}/join/{code}"

    def call(
        self,
        name: str = "pay",
        agent: str = "builder",
        *,
        session: str | None = None,
        **arguments: Any,
    ) -> Future[ToolResult]:
        """Begin a call, in a run of its own; return its result to come."""

        async def make() -> ToolResult:
            run = RunContext(run_id=uuid.uuid4().hex, session=session)
            return await self.host.call(name, arguments, agent_id=agent, run=run)

        begun = self.portal.start_task_soon(make)
        self.calls.append(begun)
        return begun

    def asked(
        self, name: str = "pay", agent: str = "builder", **arguments: Any
    ) -> tuple[ApprovalRequest, Future[ToolResult]]:
        """Begin a call that people are asked about; return its request, too."""
        before = {each.id for each in self.waiting()}
        call = self.call(name, agent, **arguments)
        while not (new := [r for r in self.waiting() if r.id not in before]):
            assert not call.done(), call.result()
            sleep(0.005)
        return new[0], call

    def end_calls(self) -> None:
        """Deny what waits until all calls have ended: none may outlive the host."""
        for _ in range(200):
            for request in self.waiting():
                with suppress(InvalidInputError):
                    self.deny(request)
            if not wait(self.calls, timeout=0.1).not_done:
                return

    def deny(self, request: ApprovalRequest) -> None:
        """Deny a request."""
        reply = Reject(approver="test")
        self.portal.call(self.host.approvals.answer, request.id, reply)

    def waiting(self) -> list[ApprovalRequest]:
        """Return the requests that wait."""
        return self.portal.call(self.host.approvals.pending)


def runs_programs(agent: str, *others: str, seconds: int | None = None) -> str:
    """Return tables by which an agent may run programs.

    Args:
        agent: The agent.
        others: Other tools that it may call.
        seconds: Seconds that a program and its call may take. None: as by default.
    """
    limits = "" if seconds is None else f"[sandbox.limits]\nwall_seconds = {seconds}"
    timeout = "" if seconds is None else f"timeout_seconds = {seconds}"
    return f"""
[sandbox]
backend = "subprocess"
{limits}
[tools]
builtin = ["code"]
{timeout}
[[policies]]
agent_id = "{agent}"
allow = {json.dumps(["run_python", *others])}
"""


def configured(folder: Path, more: str = "") -> HostConfig:
    """Return a configuration in a folder, with more tables."""
    path = folder / "toolcell.toml"
    path.write_text(CONFIG + more)
    return HostConfig.from_file(path)


@contextmanager
def served(
    folder: Path, more: str = "", clock: Callable[[], float] = time
) -> Iterator[Service]:
    """Serve a console.

    Args:
        folder: A place for the configuration and its state.
        more: More tables of the configuration.
        clock: The time of sessions, links and challenges.
    """
    config = configured(folder, more)
    with pytest.MonkeyPatch.context() as patience, start_blocking_portal() as portal:
        # A slow machine still shows every preview, and no lock is given up.
        patience.setattr(f"{_PREVIEWS}.PREVIEW_SECONDS", 60.0)
        patience.setattr(f"{_STATE_FILE}._BUSY_SECONDS", 60.0)
        serving = portal.wrap_async_context_manager(_served(config, portal, clock))
        made = serving.__enter__()
        try:
            yield made
        finally:
            made.end_calls()
            # Without arguments, so that a test's error is not put in a group.
            serving.__exit__(None, None, None)


@asynccontextmanager
async def _served(
    config: HostConfig, portal: BlockingPortal, clock: Callable[[], float]
) -> AsyncIterator[Service]:
    folder = config.state.folder
    assert folder is not None
    config.state.make_folder()
    with (
        PeopleFile(folder / PEOPLE_FILE, clock=clock) as file,
        listen("127.0.0.1:0") as listening,
    ):
        url = f"http://localhost:{listening.getsockname()[1]}"
        async with Host(config) as host:
            host.registry.register_many([pay, run_script, note])
            sources = sources_of(host)
            proxies = config.console.trusted_proxies
            async with (
                open_events(
                    host.event_bus, host.approvals, look_seconds=0.05
                ) as events,
                open_app(sources, file, url, events) as app,
                serving(app, listening, 256, trusted_proxies=proxies),
            ):
                sessions = Sessions(file, 12 * 3600, 1800)
                yield Service(url, host, People(file), sessions, portal)
                events.close()
