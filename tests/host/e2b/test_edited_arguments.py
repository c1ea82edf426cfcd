"""What a person edited is what runs and is recorded: each action, each argument."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolcell.core import CellLostError
from toolcell.guard import (
    ActionGuard,
    AgentPolicy,
    ApprovalRequest,
    Approvals,
    Approve,
)
from toolcell.host.config.sandbox_api import SandboxAPIConfig
from toolcell.host.e2b.operations.action import Action, Actions
from toolcell.host.e2b.operations.code import Code
from toolcell.host.e2b.operations.table import ACTIONS
from toolcell.host.e2b.protocol.errors import APIError
from toolcell.host.e2b.state.sandbox import (
    CodeContext,
    Lifecycle,
    Sandbox,
    Watcher,
)
from toolcell.host.http.tokens import Token
from toolcell.sandbox import Limits, Network
from toolcell.sandbox.spi import CellUsage
from toolcell.tools import SequentialExecutor, ToolExecutionRecord, ToolRegistry

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R4"), pytest.mark.promise("R12")]

TOKEN = Token("t", "a", False, 0.0, 2.0**40, None)
IN_BOX = {"sandbox_id": ("i1", "i2")}
PATH = {**IN_BOX, "path": ("/w/a", "/w/b")}
EXAMPLES: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "CreateArguments": {
        "template": ("base", "other"),
        "snapshot": (None, "s1"),
        "timeout": (600, 15),
        "auto_pause": (False, True),
        "auto_resume": (False, True),
        "env": ({}, {"A": "1"}),
        "metadata": ({"m": "1"}, {}),
        "allow_internet_access": (None, False),
        "allow_out": (None, ["example.org:443"]),
    },
    "PauseArguments": IN_BOX,
    "ResumeArguments": {**IN_BOX, "timeout": (None, 5)},
    "TimeoutArguments": {**IN_BOX, "timeout": (600, 5)},
    "SetNetworkArguments": {
        **IN_BOX,
        "allow_internet_access": (None, False),
        "allow_out": (None, ["example.org:443"]),
    },
    "CommandArguments": {
        **IN_BOX,
        "command": ("echo DANGEROUS", "echo harmless"),
        "argv": (None, ["echo", "DANGEROUS"]),
        "cwd": ("/w", "/w/in"),
        "env": ({}, {"A": "1"}),
        "stdin": (False, True),
        "terminal": (False, True),
        "rows": (24, 50),
        "cols": (80, 50),
        "timeout_seconds": (None, 5.0),
    },
    "CodeArguments": {
        **IN_BOX,
        "code": ("1", "2"),
        "language": ("bash", "python"),
        "context_id": (None, "c1"),
        "env": ({}, {"A": "1"}),
    },
    "PortArguments": {
        **IN_BOX,
        "port": (80, 81),
        "method": ("DELETE", "GET"),
        "path": ("/users/7", "/status"),
        "query": ("", "id=7"),
    },
    "ReadArguments": PATH,
    "StatArguments": PATH,
    "ListArguments": {**PATH, "depth": (1, 2)},
    "WatchArguments": {
        **PATH,
        "recursive": (False, True),
        "entries": (True, False),
    },
    "WriteArguments": {**PATH, "metadata": ({}, {"k": "v"})},
    "MakeFolderArguments": PATH,
    "MoveArguments": {**PATH, "source": ("/w/s", "/w/t")},
    "RemoveArguments": PATH,
    "TakeArguments": {**IN_BOX, "name": (None, "n")},
    "ForkArguments": {**IN_BOX, "count": (2, 1)},
    "RemoveSnapshotArguments": {"snapshot_id": ("s1", "s2")},
}
"""Of each argument of each action the value that is asked for, and an edited one."""

NEEDS = {"rows": {"terminal": True}, "cols": {"terminal": True}}
"""Other arguments without which one means nothing."""


ENTRY = b"/w/a\0f\0f\x001\x00644\0-rw-r--r--\0u\0u\x001.0\0\0"
NO_METADATA = b"[{}]"


@dataclass(frozen=True)
class Process:
    """A process of a cell, which prints something and ends well."""

    prints: bytes
    pid = 7
    running = False

    async def output(self) -> AsyncGenerator[tuple[str, bytes], None]:
        yield "stdout", self.prints

    async def wait(self) -> Any:
        usage = SimpleNamespace(cpu_ms=1, wall_ms=1, network_bytes=0)
        facts = {"usage": usage, "backend": "subprocess", "exit_code": 0}
        return SimpleNamespace(status="ok", stderr="", **facts)

    async def close_stdin(self) -> None: ...

    async def kill(self) -> None: ...


class Box(Sandbox):
    """A sandbox whose end is only written down."""

    world: World

    def set_end(self, end_at: float) -> None:
        self.world.note(self.id, "ends", end_at)


class World:
    """Stands for cells: it only writes down what it is told to do."""

    limits = Limits()
    network = Network.none
    alive = True

    def __init__(self) -> None:
        self.log: list[str] = []
        self.boxes = {name: self._box(name) for name in ("i1", "i2")}

    def _box(self, name: str) -> Sandbox:
        session: Any = Session(self, name)
        box = Box(
            id=name,
            token=TOKEN,
            template="base",
            lifecycle=Lifecycle(1),
            end_at=time.time() + 3_600,
            env={},
            metadata={},
            home="/w",
            opened=session,
            tasks=SimpleNamespace(start_soon=print),  # type: ignore[arg-type]
        )
        box.world = self
        box.contexts["c1"] = CodeContext(
            id="c1", language="bash", cwd="/c1", session=session
        )
        return box

    def note(self, *what: object, **how: object) -> None:
        self.log.append(repr((what, sorted(how.items()))))

    # As `Sandboxes`.

    def held(self, token: Token, sandbox_id: str) -> Sandbox:
        return self.boxes[sandbox_id]

    def end_at(self, seconds: int | None) -> int | None:
        return seconds

    def narrowed(self, network: Network | None) -> Network | None:
        return network

    async def create(self, token: Token, **how: Any) -> Sandbox:
        self.note("create", **how)
        return self.boxes["i1"]

    async def pause(self, sandbox: Sandbox) -> None:
        self.note(sandbox.id, "pause")

    async def resume(self, sandbox: Sandbox, seconds: int | None) -> None:
        self.note(sandbox.id, "resume", seconds)

    # As `Snapshots`.

    def find(self, token: Token, name: str) -> Any:
        return SimpleNamespace(id=name, env={})

    def archive(self, snapshot: Any) -> Path:
        return Path(snapshot.id)

    async def take(self, sandbox: Sandbox, name: str | None) -> str:
        self.note(sandbox.id, "take", name)
        return "taken"

    def remove(self, snapshot: Any) -> None:
        self.note("remove", snapshot)


class Session:
    """The session of one sandbox of a world."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.limits, self.network, self.alive = world.limits, world.network, True

    async def exec(self, words: list[str], **how: Any) -> Process:
        how["env"] = {k: v for k, v in how["env"].items() if k != "E2B_SANDBOX_ID"}
        how["gate"] = type(how.get("gate"))
        self.world.note(self.name, "exec", words, **how)
        return Process(NO_METADATA if "listxattr" in words[-1] else ENTRY)

    async def set_network(self, network: Network | None) -> None:
        self.world.note(self.name, "network", network)

    async def watch(self, path: str, *, recursive: bool) -> str:
        self.world.note(self.name, "watch", path, recursive)
        return "watch"

    async def context(self) -> Session:
        return self

    async def connect(self, port: int) -> Any:
        self.world.note(self.name, "connect", port)
        return Stream()

    async def run(self, code: str) -> Any:
        return SimpleNamespace(status="ok")

    async def usage(self) -> CellUsage:
        return CellUsage(cpu_ms=0, memory_bytes=0, disk_bytes=0)

    def interrupt(self) -> None: ...

    async def stream(self, code: str, **how: Any) -> AsyncGenerator[Any, None]:
        shown = {k: v.get_secret_value() for k, v in how.pop("secrets").items()}
        how["gate"] = type(how["gate"])
        self.world.note(self.name, "code", code, shown.get("A"), **how)
        return
        yield


class Stream:
    """A connection that nobody uses."""

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None: ...


async def outcome(
    action: Action[Any, Any], asked: dict[str, Any], edited: dict[str, Any] | None
) -> tuple[list[str], ToolExecutionRecord]:
    """Return what an action did that a person approved, and its record."""

    async def approve(request: ApprovalRequest) -> Approve:
        return Approve(approver="ann", arguments=edited)

    policy = AgentPolicy(agent_id="a", ask=["sandbox.*"])
    guard = ActionGuard([policy], approvals=Approvals(handler=approve))
    executor = SequentialExecutor(ToolRegistry([]), guard=guard)
    world: Any = World()
    settings = SandboxAPIConfig(templates=("base", "other"))
    actions = Actions(executor, settings, world, world)
    async with actions.do(
        action, TOKEN, action.arguments.model_validate(asked)
    ) as made:
        if isinstance(made, Code | AsyncGenerator):
            async for _ in made.events() if isinstance(made, Code) else made:
                pass
        elif isinstance(made, Watcher):
            world.note(made.folder)
        elif action.name == "sandbox.port":
            world.note(made.port, made.method, made.target)
        elif action.name == "sandbox.snapshot":
            world.note(made)
    return world.log, executor.records.all_records()[-1]


def edits() -> Iterator[Any]:
    """Yield each action with each of its arguments."""
    for action in ACTIONS:
        for name in action.arguments.model_fields:
            if name != "operation":
                yield pytest.param(
                    action, name, id=f"{action.arguments.__name__}-{name}"
                )


def recorded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as records have them: of variables the names alone."""
    shown = dict(arguments)
    if "env" in shown:
        shown["env"] = sorted(shown["env"])
    return shown


@pytest.mark.parametrize(("action", "name"), [*edits()])
async def test_what_was_edited_runs_and_is_recorded(
    action: Action[Any, Any], name: str
) -> None:
    examples = EXAMPLES[action.arguments.__name__]
    first = {key: asked for key, (asked, _) in examples.items()}
    first |= NEEDS.get(name, {})
    asked = action.arguments.model_validate(first).model_dump(mode="json")
    wanted = {**asked, name: examples[name][1]}
    if name == "argv":
        wanted["command"] = "echo DANGEROUS"

    edited, record = await outcome(action, asked, wanted)
    plain, _ = await outcome(action, wanted, None)
    original, _ = await outcome(action, asked, None)

    assert edited == plain
    assert edited != original
    assert record.arguments == recorded(wanted)
    assert record.status == "ok"


@pytest.mark.promise("boundary-4")
@pytest.mark.parametrize("name", ["CommandArguments", "CodeArguments"])
async def test_programs_have_a_gate_for_their_requests(name: str) -> None:
    [action] = [each for each in ACTIONS if each.arguments.__name__ == name]
    asked = {key: asked for key, (asked, _) in EXAMPLES[name].items()}
    log, _ = await outcome(action, asked, None)

    assert "RequestGuard" in log[0]


@pytest.mark.promise("R23")
@pytest.mark.parametrize("is_lost", [False, True])
async def test_what_has_no_result_is_charged_once(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It pays what its cell has used; of a cell that is gone the time counts."""

    async def lost(session: Session) -> CellUsage:
        raise CellLostError("gone")

    if is_lost:
        monkeypatch.setattr(Session, "usage", lost)
    worlds: list[World] = []
    monkeypatch.setattr(World, "held", noting(World.held, worlds))
    [action] = [each for each in ACTIONS if each.name == "sandbox.code"]
    asked = {key: asked for key, (asked, _) in EXAMPLES["CodeArguments"].items()}
    _, record = await outcome(action, asked, None)

    assert (record.usage["cpu_ms"] != 0) is is_lost
    assert worlds[0].boxes["i1"].accounted_ms == record.usage["cpu_ms"]


def noting(method: Any, worlds: list[World]) -> Any:
    """Return a method that also notes whose it is."""

    def noted(world: World, *given: Any) -> Any:
        worlds.append(world)
        return method(world, *given)

    return noted


async def test_a_command_of_two_minds_does_not_run() -> None:
    [action] = [each for each in ACTIONS if each.name == "sandbox.command"]
    asked = {"sandbox_id": "i1", "command": "a b", "argv": ["a", "b"], "cwd": "/w"}

    with pytest.raises(APIError, match="command and argv differ"):
        await outcome(action, asked, {**asked, "command": "echo harmless"})


async def test_what_kind_of_act_it_is_stays() -> None:
    [action] = [each for each in ACTIONS if each.arguments.__name__ == "ReadArguments"]
    asked = {"sandbox_id": "i1", "path": "/w/a"}

    with pytest.raises(APIError, match="what was approved cannot be done"):
        await outcome(action, asked, {**asked, "operation": "list"})
