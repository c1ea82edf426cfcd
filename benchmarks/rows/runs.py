"""The rows of the table: one function each, all through the public API."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import anyio
from baselines import installed, programs
from baselines.programs import HELLO, PYTHON
from harness import processes
from harness.measure import (
    BURST,
    SLOW_BURST,
    Contender,
    Row,
    Sample,
    WrongResult,
    against,
    take_turns,
)
from harness.options import Options, RowMaker

from rows.cluster import CLUSTER_ROWS
from rows.commands import COMMAND_ROWS
from rows.flow import FLOW_ROWS
from rows.growth import GROWTH_ROWS
from rows.guard import GUARD_ROWS
from rows.host_calls import BRIDGE_ROWS
from rows.inspected import INSPECTED_ROWS
from rows.kernel import KERNEL_ROWS
from rows.mcp import MCP_ROWS
from rows.mcp_cells import MCP_CELL_ROWS
from rows.neighbours import NEIGHBOUR_ROWS
from rows.network import NETWORK_ROWS
from rows.packages import PACKAGE_ROWS
from rows.sandbox_api import SANDBOX_API_ROWS
from rows.sessions import SESSION_ROWS
from rows.stores import STORE_ROWS
from rows.streams import STREAM_ROWS
from rows.tools import TOOL_ROWS
from toolcell.sandbox import ExecutionResult, SandboxConfig, SandboxManager, Session

Strongest = Literal["kernel", "confined"]
_POOL = 8
_WORKERS = 4
_PROGRAMS_PER_CELL = 1000
_SESSIONS = 8
_REUSED_ROUNDS = 9
_START_SHARE, _START_MS = 1.3, 4
_OWN_USER_MS, _SHARED_USER_MS = 1.5, 3
_END_MS = 0.3
_PAUSE_SECONDS = 0.05
_SUM_OF_SQUARES = """\
import time
started = time.perf_counter()
total = 0
for i in range(1_000_000):
    total += i * i
print((time.perf_counter() - started) * 1000)
"""


def _subprocess_config(
    pool: int = 0, programs_per_cell: int = 1, strongest: Strongest = "kernel"
) -> SandboxConfig:
    return SandboxConfig(
        backend="subprocess",
        strongest_isolation=strongest,
        python=PYTHON,
        pool=pool,
        programs_per_cell=programs_per_cell,
    )


def _docker_config(options: Options, runtime: str) -> SandboxConfig:
    programs.needs_docker(options.image, runtime)
    return SandboxConfig(backend="docker", image=options.image, runtime=runtime)


def _check(result: ExecutionResult) -> None:
    if (result.status, result.stdout) != ("ok", "1\n"):
        raise WrongResult(f"print(1) became {result!r}")


async def _hello(sandbox: SandboxManager) -> None:
    _check(await sandbox.run(HELLO, agent_id="benchmark"))


async def _hello_again(session: Session) -> None:
    _check(await session.run(HELLO, fresh=True))


async def on_demand(options: Options) -> list[Row]:
    """A cell made, used and destroyed for one program."""
    async with SandboxManager(_subprocess_config()) as sandbox:
        ours = Contender(
            name="sandbox.run",
            run=partial(_hello, sandbox),
            settle=partial(processes.cells_settled, sandbox, 0),
        )
        others = [programs.bwrap(), programs.plain()]
        samples = await take_turns([ours, *others], options.runs)
    return against("subprocess, fresh cell on demand", samples, [3, None])


async def prepared(options: Options) -> list[Row]:
    """A cell from a full pool, used and destroyed for one program."""
    async with SandboxManager(_subprocess_config(_POOL)) as sandbox:
        ours = Contender(
            name="sandbox.run",
            run=partial(_hello, sandbox),
            settle=partial(processes.cells_settled, sandbox, _POOL),
        )
        others = [programs.bwrap(), programs.plain()]
        samples = await take_turns([ours, *others], options.runs)
    return against("subprocess, fresh prepared cell", samples, [5.5, None])


async def sustained(options: Options) -> list[Row]:
    """As many fresh cells a second as the machine gives, one after another."""
    ours = Sample(name="sandbox.run", unit="runs/s")
    bwrap = Sample(name="bwrap python3 -I -c", unit="runs/s")
    async with SandboxManager(_subprocess_config(_POOL)) as sandbox:
        for _ in range(min(5, options.runs)):
            # What the pool held at the start is no part of what can be sustained.
            await _per_second(sandbox, _POOL)
            ours.values.append(await _per_second(sandbox, 2 * options.runs))
            await processes.cells_settled(sandbox, _POOL)
            rate = programs.bwrap_per_second(options.runs // 2 + 1, _WORKERS)
            bwrap.values.append(rate)
    work = f"subprocess, fresh cells from {_WORKERS} tasks"
    return against(work, [ours, bwrap], [None], "rate")


async def reused(strongest: Strongest, gate: float, options: Options) -> list[Row]:
    """The same in cells that are made new for each program."""
    ours = Sample(name="sandbox.run", unit="runs/s")
    bwrap = Sample(name="bwrap python3 -I -c", unit="runs/s")
    config = _subprocess_config(
        programs_per_cell=_PROGRAMS_PER_CELL, strongest=strongest
    )
    async with SandboxManager(config) as sandbox:
        await _per_second(sandbox, 2 * _WORKERS)
        for _ in range(min(_REUSED_ROUNDS, options.runs)):
            ours.values.append(await _per_second(sandbox, 2 * options.runs))
            rate = programs.bwrap_per_second(options.runs // 2 + 1, _WORKERS)
            bwrap.values.append(rate)
    kind = "confined" if strongest == "confined" else "subprocess"
    work = f"{kind}, reused cells from {_WORKERS} tasks"
    return against(work, [ours, bwrap], [gate], "rate")


async def confined_prepared(options: Options) -> list[Row]:
    """A confined cell from a full pool against a bare interpreter."""
    work = "confined, fresh prepared cell"
    async with SandboxManager(_subprocess_config(_POOL, 1, "confined")) as sandbox:
        ours = Contender(
            name="sandbox.run",
            run=partial(_hello, sandbox),
            settle=partial(processes.cells_settled, sandbox, _POOL),
        )
        samples = await take_turns([ours, programs.plain()], options.runs)
    more = [value - _START_SHARE * samples[1].p50 for value in samples[0].values]
    added = Sample(name=f"less {_START_SHARE} times python3 -I -c", values=more)
    bound = Row(work=work, ours=added, compare="absolute", gate=_START_MS)
    return [*against(work, samples, [None], "share"), bound]


async def confined_fork(options: Options) -> list[Row]:
    """A fork of a session's warm interpreter against one that nothing confines."""
    work = "confined, new interpreter in a session"
    config = _subprocess_config(strongest="confined")
    async with SandboxManager(config) as sandbox, AsyncExitStack() as stack:
        # Each may be held to another CPU, which others may use more or less.
        opened = [
            await stack.enter_async_context(sandbox.session()) for _ in range(_SESSIONS)
        ]
        isolation = (await opened[0].run(HELLO, fresh=True)).isolation
        own_user = isolation is not None and "own_uid" in isolation.layers
        turns = cycle(opened)

        async def run() -> None:
            await _hello_again(next(turns))

        bare = replace(stack.enter_context(programs.warm()), settle=_pause)
        ours = Contender(name="session.run(fresh=True)", run=run, settle=_pause)
        samples = await take_turns([ours, bare], options.runs)
    more = [value - samples[1].p50 for value in samples[0].values]
    user = "its own user" if own_user else "the host's user"
    added = Sample(name="less a bare fork", values=more)
    bound = Row(
        work=f"{work}, {user}, less a bare fork",
        ours=added,
        compare="absolute",
        gate=_OWN_USER_MS if own_user else _SHARED_USER_MS,
    )
    return [*against(work, samples, [None], "share"), bound]


async def program_end(options: Options) -> list[Row]:
    """CPU time of the end of a program that opened nothing; `os._exit` has none."""
    work = "end of a program that opened nothing"
    async with SandboxManager(_subprocess_config()) as sandbox:
        async with sandbox.session() as opened:

            async def run(code: str, status: str) -> float:
                result = await opened.run(code, fresh=True)
                if result.status != status:
                    raise WrongResult(f"{code!r} became {result!r}")
                return result.usage.cpu_ms

            contenders = [
                Contender(name=name, run=partial(run, code, status), burst=1)
                for name, code, status in (
                    ("session.run(fresh=True)", "import os\npass", "ok"),
                    ("by os._exit", "import os\nos._exit(0)", "exit"),
                )
            ]
            whole = await take_turns(contenders, BURST * options.runs)
    samples = [sample.by_own_clock() for sample in whole]
    more = [value - samples[1].p50 for value in samples[0].values]
    added = Sample(name="less one that ends by os._exit", values=more)
    bound = Row(work=f"{work}, less", ours=added, compare="absolute", gate=_END_MS)
    return [*against(work, samples, [None], "share"), bound]


async def reused_containers(
    runtime: str, runs_a_round: int, gate: float, options: Options
) -> list[Row]:
    """Containers that are made new for each program, and never-used ones."""
    config = _docker_config(options, runtime)
    again = config.model_copy(update={"programs_per_cell": _PROGRAMS_PER_CELL})
    ours = Sample(name="sandbox.run, reused", unit="runs/s")
    new = Sample(name="sandbox.run, never used", unit="runs/s")
    async with SandboxManager(again) as reuses, SandboxManager(config) as makes:
        await _per_second(reuses, 2 * _WORKERS)
        for _ in range(min(_REUSED_ROUNDS, options.runs)):
            ours.values.append(await _per_second(reuses, runs_a_round))
            new.values.append(await _per_second(makes, 2 * _WORKERS))
            await processes.containers_settled(_WORKERS)
    work = f"docker/{runtime}, reused containers from {_WORKERS} tasks"
    return against(work, [ours, new], [gate], "rate")


async def _per_second(sandbox: SandboxManager, runs: int) -> float:
    left = iter(range(runs))

    async def work() -> None:
        for _ in left:
            await _hello(sandbox)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(_WORKERS):
            tasks.start_soon(work)
    return runs / (time.perf_counter() - started)


async def session(
    runtime: str, gates: tuple[float, float | None], options: Options
) -> list[Row]:
    """A new interpreter in a container that is open already."""
    config = _docker_config(options, runtime)
    async with SandboxManager(config) as sandbox, sandbox.session() as opened:
        with programs.docker_exec(options.image, runtime) as docker_exec:
            run = partial(_hello_again, opened)
            rested = Contender(name="session.run(fresh=True)", run=run, settle=_pause)
            at_once = Contender(name="the same, run after run", run=run)
            docker_run = programs.docker_run(options.image, runtime)
            contenders = [rested, docker_run, docker_exec, at_once]
            *samples, hurried = await take_turns(contenders, options.runs)
    work = f"docker/{runtime}, new interpreter in a session"
    return [
        *against(work, samples, gates),
        *against(f"{work}, run after run", [hurried, samples[1]], [None]),
    ]


async def _pause() -> None:
    """Let a session prepare its next interpreter, as between two steps of an agent."""
    await anyio.sleep(_PAUSE_SECONDS)


async def cold(runtime: str, gate: float, options: Options) -> list[Row]:
    """A container made, used and destroyed for one program; the end of a session."""
    async with SandboxManager(_docker_config(options, runtime)) as sandbox:

        async def close() -> float:
            async with sandbox.session() as opened:
                await _hello_again(opened)
                started = time.perf_counter()
            return (time.perf_counter() - started) * 1000

        samples = await take_turns(
            [
                _slow("sandbox.run", partial(_hello, sandbox)),
                programs.docker_run(options.image, runtime),
                programs.docker_run(options.image, runtime, network=False),
                _slow("session exit", close),
            ],
            options.runs,
        )
    closing = Row(
        work=f"docker/{runtime}, close of a session",
        ours=samples[3].by_own_clock(),
        compare="absolute",
        gate=50,
    )
    work = f"docker/{runtime}, fresh cell, cold"
    return [*against(work, samples[:3], [gate, None], "share"), closing]


def _slow(name: str, run: Callable[[], Awaitable[float | None]]) -> Contender:
    settle = processes.containers_settled
    return Contender(name=name, run=run, settle=settle, burst=SLOW_BURST)


async def cpu_bound(options: Options) -> list[Row]:
    """A loop that only computes: the whole run, and as the program's clock says."""
    plain = programs.plain_arguments(_SUM_OF_SQUARES)
    async with SandboxManager(_subprocess_config()) as sandbox:

        async def ours() -> float:
            result = await sandbox.run(_SUM_OF_SQUARES)
            if not result.ok:
                raise WrongResult(f"the loop became {result!r}")
            return float(result.stdout)

        async def theirs() -> float:
            return float(programs.output(plain))

        settle = partial(processes.cells_settled, sandbox, 0)
        contenders = [
            Contender(name="sandbox.run", run=ours, settle=settle, burst=1),
            Contender(name="python3 -I -c", run=theirs, burst=1),
        ]
        # A gate this narrow needs turns as short as they can be.
        whole = await take_turns(contenders, SLOW_BURST * options.runs)
    inside = [sample.by_own_clock() for sample in whole]
    return [
        *against("CPU-bound loop, the program's clock", inside, [1.05], "share"),
        *against("CPU-bound loop, the whole run", whole, [1.05], "share"),
    ]


async def command_line(options: Options) -> list[Row]:
    """The whole process of `toolcell run hello.py`, `--version` and `--help`."""
    here = programs.TOOLCELL
    programs.needs(here)
    with installed.toolcell() as toolcell, TemporaryDirectory() as folder:
        hello = Path(folder, "hello.py")
        hello.write_text(HELLO)
        program = ["run", str(hello), "--backend", "subprocess"]
        contenders = [
            programs.plain(),
            programs.first_output("toolcell run", [toolcell, *program]),
            programs.first_output("toolcell run, this Python", [here, *program]),
            *(
                programs.command(f"toolcell {option}", [toolcell, option], prints=None)
                for option in ("--version", "--help")
            ),
            programs.command("python3 hello.py", [sys.executable, str(hello)]),
        ]
        plain, run, run_here, *others, same = await take_turns(contenders, options.runs)
    first = run.by_own_clock()
    return [
        *against("toolcell run, whole process", [run, plain], [None], "share"),
        *against("toolcell run, first output", [first, plain], [None], "share"),
        *against(
            "toolcell run, this Python", [run_here, plain, same], [None, None], "share"
        ),
        *(
            row
            for each in others
            for row in against(each.name, [each, plain], [10.9], "share")
        ),
    ]


async def doctor(options: Options) -> list[Row]:
    """The whole process of `toolcell doctor`, where no engine answers."""
    here = programs.TOOLCELL
    programs.needs(here)
    command = ["env", "DOCKER_HOST=unix:///nowhere/docker.sock", here, "doctor"]
    contender = programs.command(
        "toolcell doctor", command, burst=SLOW_BURST, prints=None
    )
    [sample] = await take_turns([contender], options.runs)
    return [Row(work="toolcell doctor", ours=sample, compare="absolute", gate=1000)]


async def idle_memory(options: Options) -> list[Row]:
    """The cost of a prepared cell that nobody uses."""
    child = Sample(name="PSS of the prepared child", unit="MB")
    whole = Sample(name="PSS of the cell's processes", unit="MB")
    async with SandboxManager(_subprocess_config(_POOL)) as sandbox:
        await processes.cells_settled(sandbox, _POOL)
        for cell in processes.children(processes.launcher()):
            inside = [processes.pss_mib(pid) for pid in processes.descendants(cell)]
            if not inside:
                # Namespaces made ahead, where no cell has started yet.
                continue
            child.values += inside
            whole.values.append(processes.pss_mib(cell) + sum(inside))
    return [
        Row(work="idle prepared child", ours=child, compare="absolute", gate=3),
        Row(work="idle prepared cell, whole", ours=whole, compare="absolute"),
    ]


ROWS: dict[str, RowMaker] = {
    "subprocess-on-demand": on_demand,
    "subprocess-prepared": prepared,
    "subprocess-sustained": sustained,
    "subprocess-reused": partial(reused, "kernel", 3.2),
    "confined-prepared": confined_prepared,
    "confined-fork": confined_fork,
    "program-end": program_end,
    "confined-reused": partial(reused, "confined", 2),
    "docker-reused": partial(reused_containers, "runc", 200, 25),
    "runsc-reused": partial(reused_containers, "runsc", 40, 5),
    "docker-session": partial(session, "runc", (60, 15)),
    "runsc-session": partial(session, "runsc", (16, None)),
    "docker-cold": partial(cold, "runc", 0.7),
    "runsc-cold": partial(cold, "runsc", 0.9),
    "cpu-bound": cpu_bound,
    **KERNEL_ROWS,
    **STREAM_ROWS,
    "command-line": command_line,
    "doctor": doctor,
    "idle-memory": idle_memory,
    **SESSION_ROWS,
    **COMMAND_ROWS,
    **NETWORK_ROWS,
    **INSPECTED_ROWS,
    **PACKAGE_ROWS,
    **TOOL_ROWS,
    **MCP_ROWS,
    **MCP_CELL_ROWS,
    **BRIDGE_ROWS,
    **GUARD_ROWS,
    **FLOW_ROWS,
    **STORE_ROWS,
    **GROWTH_ROWS,
    **SANDBOX_API_ROWS,
    **NEIGHBOUR_ROWS,
    **CLUSTER_ROWS,
}
