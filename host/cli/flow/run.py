"""The commands of `toolcell flow` that run code of the graphs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from toolcell.core.text.printable import escaped, escaped_line

from ...terminal.exit_codes import (
    EXIT_CANCELLED,
    EXIT_INTERRUPTED,
    EXIT_THREAD_FAILED,
)
from ...terminal.output import print_error, print_json, print_notice
from ...terminal.signals import run_async
from ...terminal.streams import redirect_prints_to_stderr
from ..base.json_options import read_object
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath, FlowThread
from .json_facts import result_facts
from .store import prune_old

if TYPE_CHECKING:
    from toolcell.flow import Flow, FlowResult

    from ...config.host_config import HostConfig
    from ...runtime.host import Host

T = TypeVar("T")
_EXIT_BY_STATUS = {
    "done": 0,
    "failed": EXIT_THREAD_FAILED,
    "cancelled": EXIT_CANCELLED,
    "interrupted": EXIT_INTERRUPTED,
}
_BETWEEN_LOOKS = 1.0
"""Seconds between two looks of `toolcell flow work` at the threads."""

_BETWEEN_PRUNES = 3_600.0
"""Seconds between two deletions of threads that are over by `flows.history_days`."""

_STATE = """'{"item": "books"}'"""
NewThread = Annotated[
    str | None, typer.Option("--thread", help="The id of the thread; default random.")
]


def add_running_commands(app: typer.Typer) -> None:
    """Add the commands to the others of `toolcell flow`."""
    for command in (run, resume, fork, work, graph):
        app.command()(command)


def run(
    graph: Annotated[str, typer.Argument(help="The name of the graph.")],
    value: Annotated[
        str, typer.Option("--input", help="The state as JSON; - reads standard input.")
    ] = "{}",
    thread: NewThread = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Run a new thread, or the next turn of one; print its state.

    Exit codes: 0 done, 1 failed, 3 cancelled, 5 it waits for answers.
    """
    given = read_object(value, "--input", example=_STATE)

    async def started(host: Host) -> FlowResult[Any]:
        return await _named(host.flows, graph).run(given, thread)

    _tell(_with_host(config, started), as_json=as_json)


def resume(
    thread: FlowThread,
    force: Annotated[
        bool, typer.Option("--force", help="Take it from an owner that hangs.")
    ] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Go on with a thread: after answers, a failure or a crash. Exit codes as `run`."""

    async def resumed(host: Host) -> FlowResult[Any]:
        flow = await _of_thread(host, thread)
        return await flow.resume(thread, steal=force)

    _tell(_with_host(config, resumed), as_json=as_json)


def fork(
    thread: FlowThread,
    at: Annotated[
        str | None, typer.Option(help="A checkpoint; default the latest.")
    ] = None,
    update: Annotated[
        str, typer.Option(help="Fields of the state to change, as JSON.")
    ] = "{}",
    goto: Annotated[
        list[str] | None, typer.Option(help="A node to go to instead.")
    ] = None,
    new: NewThread = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Make a new thread from a checkpoint of another, and print its id."""
    changes = read_object(update, "--update", example=_STATE)

    async def forked(host: Host) -> str:
        from toolcell.flow import Command

        flow = await _of_thread(host, thread)
        command = Command(update=changes, goto=list(goto) if goto else None)
        return await flow.fork(
            thread,
            at,
            new_thread_id=new,
            command=command if changes or goto else None,
        )

    made = _with_host(config, forked)
    if as_json:
        print_json({"thread": made, "forked_from": thread})
    else:
        print(escaped_line(made))


def work(
    once: Annotated[
        bool, typer.Option("--once", help="End when nothing can go on right now.")
    ] = False,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Go on with every thread that can, until Ctrl-C.

    Any number of these may run.
    """

    from ...config.host_config import HostConfig

    settings = HostConfig.from_file(config)

    async def go_on(host: Host) -> None:
        await _work(host, settings, once=once, as_json=as_json)

    run_async(_opened, config, go_on)


def graph(
    graph: Annotated[str, typer.Argument(help="The name of the graph.")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Print a graph as a Mermaid diagram."""

    async def drawn(host: Host) -> str:
        return _named(host.flows, graph).graph.to_mermaid()

    text = _with_host(config, drawn, shared=False)
    if as_json:
        print_json({"graph": graph, "mermaid": text})
    else:
        print(escaped(text), end="")


async def _work(host: Host, settings: HostConfig, *, once: bool, as_json: bool) -> None:
    import anyio

    prune_at = anyio.current_time()
    while True:
        if anyio.current_time() >= prune_at:
            prune_at += _BETWEEN_PRUNES
            await prune_old(settings)
        with redirect_prints_to_stderr():
            found = [
                result
                for flow in host.flows.values()
                for result in await flow.recover()
            ]
        for result in found:
            if as_json:
                print_json(result_facts(result))
            else:
                print(f"{result.status}\t{escaped_line(result.thread_id)}", flush=True)
        if once and not found:
            return
        if not found:
            await anyio.sleep(_BETWEEN_LOOKS)


def _with_host(
    path: Path, work: Callable[[Host], Awaitable[T]], *, shared: bool = True
) -> T:
    """Return what was done with the host; the prints of graphs go to stderr.

    Args:
        path: The configuration.
        work: Does it.
        shared: True: other processes have to find its threads, else ConfigError.
    """

    async def done(host: Host) -> T:
        with redirect_prints_to_stderr():
            return await work(host)

    found: T = run_async(_opened, path, done, shared)
    return found


async def _opened(
    path: Path, work: Callable[[Host], Awaitable[T]], shared: bool = True
) -> T:
    from toolcell.guard import called_by

    from ...config.host_config import HostConfig
    from ...runtime.host import Host
    from ...terminal.user_name import account_name

    config = HostConfig.from_file(path)
    if shared:
        _check_shared(config)
    async with AsyncExitStack() as stack:
        with redirect_prints_to_stderr():
            host = await stack.enter_async_context(Host(config))
        with called_by(f"user {account_name()}"):
            return await work(host)


def _check_shared(config: Any) -> None:
    from toolcell.core import ConfigError

    if config.state.folder is None and config.flows.redis_url is None:
        raise ConfigError(
            "threads are in the memory of the host alone",
            hint="name a folder in [state], or a server in flows.redis_url",
        )


async def _of_thread(host: Host, thread: str) -> Flow[Any]:
    """Return the flow of a thread."""
    from toolcell.core import CheckpointNotFoundError, ConfigError

    anyone = next(iter(host.flows.values()), None)
    if anyone is None:
        raise ConfigError("there are no graphs", hint="name them in flows.graphs")
    graph = await anyone.graph_of(thread)
    if graph is None:
        raise CheckpointNotFoundError(
            "there is no such thread",
            hint="look at its id; `toolcell flow list` shows them",
            details={"thread": thread},
        )
    return _named(host.flows, graph)


def _named(flows: Mapping[str, Flow[Any]], graph: str) -> Flow[Any]:
    from toolcell.core import ConfigError

    if graph not in flows:
        raise ConfigError(
            f"there is no graph {graph!r}",
            hint=f"flows.graphs has {', '.join(flows) or 'none'}",
        )
    return flows[graph]


def _tell(result: FlowResult[Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result_facts(result))
    else:
        print(escaped(result.state.model_dump_json()))
        for interrupt in result.interrupts:
            shown = json.dumps(interrupt.to_display()["payload"])
            name = interrupt.request_id or interrupt.interrupt_id
            print_notice(f"waits for {interrupt.kind} {name}: {shown}", as_json=False)
        if result.error is not None:
            print_error(result.error, as_json=False)
    raise typer.Exit(_EXIT_BY_STATUS[result.status])
