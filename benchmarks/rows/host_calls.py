"""Rows on the bridge: a program in a cell calls a tool of the host."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from baselines.programs import PYTHON
from harness.measure import (
    CALLS,
    Contender,
    Missing,
    Row,
    Sample,
    WrongResult,
    against,
    repeated,
    take_turns,
)
from harness.options import Options

from rows.mcp import bare_stdio
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.sandbox.cell.program import tools_command
from toolcell.sandbox.spi import Language
from toolcell.tools import CodeExecutor, Tool, ToolRegistry, to_anthropic, tool
from toolcell.tools.builtin import code_mode_tools
from toolcell.tools.code.catalogue import ToolCatalogue
from toolcell.tools.code.tool_index import ToolIndex

_WORK = f"{CALLS} bridge round trips"

_PROGRAM = """
import time
tools.add(0, 1)
began = time.perf_counter()
for i in range(calls):
    assert tools.add(i, 1) == i + 1
time.perf_counter() - began
"""
_NODE_PROGRAM = """
await tools.add(0, 1)
const began = performance.now()
for (let i = 0; i < calls; i++) {
  if (await tools.add(i, 1) !== i + 1) throw new Error(`no sum of ${i}`)
}
export default performance.now() - began
"""
_BASH_PROGRAM = f"""
python3 - <<'END'
import time
scope = {{"__name__": "tools"}}
exec({Path(tools_command.__file__).read_text()!r}, scope)
def add(number):
    words = ["add", "--a", str(number), "--b", "1"]
    return scope["_answer"](scope["_request"](words))["value"]
add(0)
began = time.perf_counter()
for number in range({CALLS}):
    assert add(number) == number + 1
print(time.perf_counter() - began)
END
"""
"""Calls as the program `tools` makes them, in one process, without its start."""

_PEER = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as pipe:
    while data := pipe.recv(64):
        pipe.sendall(data)
"""
_PROGRAMS = {
    "python": (_PROGRAM, 1_000),
    "node": (_NODE_PROGRAM, 1),
    "bash": (_BASH_PROGRAM, 1_000),
}
"""Programs, and the milliseconds in the unit of their clock."""


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def bridge(options: Options) -> list[Row]:
    """`tools.add` from a cell that is a process of this machine."""
    samples = await _beside(_pipe(), options)
    each = Sample(name="tools.add", values=[ms / CALLS for ms in samples[0].values])
    return [
        *against(_WORK, samples, [None], "share"),
        Row(work="bridge round trip", ours=each, compare="absolute"),
    ]


async def peer_mcp(options: Options) -> list[Row]:
    """The same call to a server of the bare MCP library, over stdio."""
    async with bare_stdio() as theirs:
        return against(_WORK, await _beside(theirs, options), [0.4], "share")


async def bridge_node(options: Options) -> list[Row]:
    """The same call by a program in JavaScript."""
    if shutil.which("node") is None:
        raise Missing("node is not on PATH")
    return await _beside_python("node", options)


async def bridge_bash(options: Options) -> list[Row]:
    """The same call as bash and commands make it, without the start of a process."""
    return await _beside_python("bash", options)


async def _beside_python(language: Language, options: Options) -> list[Row]:
    async with _bridge() as code:
        contenders = [_calls(code, language), _calls(code, "python")]
        runs = max(1, options.runs // 10)
        turns = await take_turns(contenders, runs)
    samples = [turn.by_own_clock() for turn in turns]
    return against(_WORK, samples, [1.5], "share")


async def search(options: Options) -> list[Row]:
    """A search in code mode's index of 1,000 tools."""
    index = ToolIndex(_many_tools())

    async def once() -> None:
        if not index.search("list open invoices customer"):
            raise WrongResult("nothing was found")

    [found] = await take_turns([repeated("search_tools", once)], options.runs)
    each = [ms / CALLS for ms in found.own]
    ours = Sample(name="search_tools", values=each)
    work = "search of 1,000 tools"
    return [Row(work=work, ours=ours, compare="absolute", gate=5.0)]


async def code_mode(options: Options) -> list[Row]:
    """The length of what a model reads of 1,000 tools, by code mode and as a list."""
    tools = _many_tools()
    sandbox = SandboxManager()
    code = CodeExecutor(sandbox, ToolRegistry(tools), guard=None)
    catalogue = ToolCatalogue(code)
    answers = [
        catalogue.search(None, " ".join(tool.name.split("_")[:2]), 10)
        for tool in tools[::40]
    ]
    if not all(answer.count("def ") == 10 for answer in answers):
        raise WrongResult("a search found fewer than ten tools")
    three = _listed(code_mode_tools(sandbox, executor=code))
    read = [float(three + len(answer)) for answer in answers]
    ours = Sample(name="three tools and an answer of ten", unit="chars", values=read)
    listed = [float(_listed(tools))] * len(answers)
    base = Sample(name="the whole list", unit="chars", values=listed)
    return against("1,000 tools for a model", [ours, base], [0.05], "share")


def _listed(tools: Sequence[Tool]) -> int:
    """Return the characters of tools in a request to a model."""
    return len(json.dumps([to_anthropic(each) for each in tools]))


def _many_tools() -> list[Tool]:
    async def act(customer: str, limit: int) -> None: ...

    return [
        tool(
            name=f"{verb}_{noun}_{number}",
            description=f"{verb.title()} a customer's open {noun}s, {number}.",
        )(act)
        for verb in ("list", "create", "update", "delete", "search")
        for noun in ("invoice", "order", "ticket", "contact", "project")
        for number in range(40)
    ]


@asynccontextmanager
async def _bridge() -> AsyncIterator[CodeExecutor]:
    config = SandboxConfig(backend="subprocess", python=PYTHON)
    async with SandboxManager(config) as sandbox:
        tools = ToolRegistry([add])
        yield CodeExecutor(sandbox, tools, guard=None, max_calls=CALLS + 1)


def _calls(code: CodeExecutor, language: Language) -> Contender:
    """Return the calls of a program, by its own clock."""
    program, factor = _PROGRAMS[language]

    async def run() -> float:
        result = await code.execute(
            program, language=language, extra_namespace={"calls": CALLS}
        )
        took = float(result.stdout) if language == "bash" else result.value
        if not isinstance(took, int | float) or len(result.calls) != CALLS + 1:
            raise WrongResult(f"the calls became {result!r}")
        return took * factor

    name = "tools.add" if language == "python" else f"tools.add, {language}"
    return Contender(name=name, run=run)


async def _beside(other: Contender, options: Options) -> list[Sample]:
    """Measure round trips of the bridge, and others, by their own clocks."""
    async with _bridge() as code:
        runs = max(1, options.runs // 10)
        contenders = [_calls(code, "python"), other]
        return [turn.by_own_clock() for turn in await take_turns(contenders, runs)]


def _pipe() -> Contender:
    """Return as many bare round trips between two processes."""

    async def run() -> float:
        # Blocking on purpose: nothing of ours runs while the baseline does.
        here, there = socket.socketpair()
        with here, there:
            arguments = [PYTHON, "-I", "-c", _PEER, str(there.fileno())]
            peer = subprocess.Popen(arguments, pass_fds=[there.fileno()])
            there.close()
            here.sendall(b"x")
            here.recv(64)
            began = time.perf_counter()
            for _ in range(CALLS):
                here.sendall(b"x")
                here.recv(64)
            took = (time.perf_counter() - began) * 1_000
        peer.wait()
        return took

    return Contender(name="bare pipe", run=run)


BRIDGE_ROWS: dict[str, Callable[[Options], Awaitable[list[Row]]]] = {
    "bridge": bridge,
    "bridge-node": bridge_node,
    "bridge-bash": bridge_bash,
    "peer-bridge-mcp": peer_mcp,
    "search": search,
    "code-mode": code_mode,
}
