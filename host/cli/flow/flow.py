"""`toolcell flow`: threads of graphs. These commands need no code of the graphs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json, print_table
from ..base.json_options import read_option
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath, FlowThread
from .json_facts import checkpoint_facts, thread_facts, thread_summary
from .maintenance import add_maintenance_commands
from .run import add_running_commands
from .store import with_threads

if TYPE_CHECKING:
    from toolcell.flow import StoredThreads
    from toolcell.flow.spi import CheckpointInfo, StoredThread, ThreadInfo
    from toolcell.guard import Redactor

flow = typer.Typer(
    help="Inspect, answer and resume threads of graphs.", no_args_is_help=True
)
add_running_commands(flow)
add_maintenance_commands(flow)

Question = Annotated[
    str | None,
    typer.Option("--question", help="Its id; needed if several are open."),
]
By = Annotated[
    str | None, typer.Option(help="The name of who does this; default this user.")
]
Limit = Annotated[int, typer.Option(min=1, help="The largest number of them.")]


@flow.command("list")
def list_(
    config: ConfigPath = DEFAULT_CONFIG,
    status: Annotated[
        str | None,
        typer.Option(help="running, interrupted, failed, done or cancelled."),
    ] = None,
    graph: Annotated[str | None, typer.Option(help="The name of their graph.")] = None,
    limit: Limit = 100,
    before: Annotated[
        str | None, typer.Option(help="The last thread of the page before.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List threads, the last changed first."""

    async def found(threads: StoredThreads) -> list[ThreadInfo]:
        wanted = cast(Any, status)
        return await threads.threads(
            graph=graph, status=wanted, limit=limit, before=before
        )

    rows = [thread_summary(thread) for thread in with_threads(config, found)]
    if as_json:
        print_json(rows)
        return
    columns = ("thread", "graph", "status", "checkpoint", "updated")
    print_table(columns, [[row[name] for name in columns] for row in rows])


@flow.command()
def show(
    thread: FlowThread, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Show a thread: its state, open questions and running step.

    Secrets are hidden.
    """

    async def found(threads: StoredThreads) -> StoredThread:
        return await threads.read(thread)

    facts = thread_facts(with_threads(config, found), _redactor(config))
    if as_json:
        print_json(facts)
        return
    rows = [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in facts.items()
        if name not in ("questions", "journal")
    ]
    rows += [
        (f"question {question['interrupt_id']}", json.dumps(question["payload"]))
        for question in facts["questions"]
    ]
    rows += [(f"task {entry['task']}", entry["did"]) for entry in facts["journal"]]
    print_table(("what", "value"), rows)


@flow.command()
def history(
    thread: FlowThread,
    config: ConfigPath = DEFAULT_CONFIG,
    limit: Limit = 10,
    before: Annotated[
        str | None, typer.Option(help="A checkpoint that all shown are older than.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the checkpoints of a thread, the newest first."""

    async def found(threads: StoredThreads) -> list[CheckpointInfo]:
        await threads.read(thread)
        return await threads.history(thread, limit, before=before)

    rows = [checkpoint_facts(checkpoint) for checkpoint in with_threads(config, found)]
    if as_json:
        print_json(rows)
        return
    columns = ("checkpoint", "at", "next", "changed", "answers")
    print_table(columns, [[_cell(row[name]) for name in columns] for row in rows])


@flow.command()
def answer(
    thread: FlowThread,
    value: Annotated[
        str | None, typer.Argument(metavar="JSON", help="The answer.")
    ] = None,
    question: Question = None,
    deny: Annotated[
        bool, typer.Option("--deny", help="Refuse to answer instead.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why not; the node reads it.")] = "",
    by: By = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Answer a question; `resume` or `work` goes on with it."""
    from ...terminal.user_name import user_name

    name = user_name() if by is None else by
    given = _answer(value, deny=deny)

    async def work(threads: StoredThreads) -> None:
        if deny:
            await threads.deny(thread, question, by=name, reason=reason)
        else:
            await threads.answer(thread, question, given, by=name)

    with_threads(config, work, with_approvals=True, as_json=as_json)
    _print_done(thread, "denied" if deny else "answered", as_json=as_json)


@flow.command()
def cancel(
    thread: FlowThread, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """End a thread; it is not resumed, and can be forked."""

    from ...terminal.user_name import user_name

    name = user_name()

    async def work(threads: StoredThreads) -> None:
        await threads.cancel(thread, by=name)

    with_threads(config, work, with_approvals=True, as_json=as_json)
    _print_done(thread, "cancelled", as_json=as_json)


def _print_done(thread: str, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"thread": thread, "did": what})
    else:
        print(f"{what}: {escaped_line(thread)}")


def _answer(text: str | None, *, deny: bool) -> Any:
    from toolcell.core import InvalidInputError

    if (text is None) != deny:
        raise InvalidInputError(
            "an answer is a JSON value, or --deny", hint="""such as 'true' or '"yes"'"""
        )
    if text is None:
        return None
    return read_option(text, "the answer", example="""'true' or '"yes"', with quotes""")


def _redactor(path: Path) -> Redactor:
    from toolcell.guard import Redactor

    from ...config.host_config import HostConfig
    from ...runtime.assembly import read_secrets

    secrets = read_secrets(HostConfig.from_file(path), os.environ)
    return Redactor(secrets=secrets.values())


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, dict):
        return f"{value['node']} by {value['by']}"
    return str(value)
