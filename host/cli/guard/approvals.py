"""`toolcell approvals`: calls that wait for a person."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import ConfigError, InvalidInputError
from toolcell.core.text.counted import counted
from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json, print_table
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from toolcell.guard import Approvals, Approve, Reject, ShownRequest
    from toolcell.guard.spi import Withdrawn

approvals = typer.Typer(
    help="Show and answer calls that wait for a person.", no_args_is_help=True
)

RequestId = Annotated[str, typer.Argument(metavar="ID", help="The request.")]
By = Annotated[
    str | None, typer.Option(help="The name of who does it; default this user.")
]


@approvals.command("list")
def list_(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """List the requests that wait, the oldest first."""
    waiting = run_async(_pending, config)
    if as_json:
        print_json([each.to_json() for each in waiting])
        return
    rows = [
        (
            *(each.request.id, each.request.call.agent_id, each.request.call.name),
            json.dumps(each.arguments),
        )
        for each in waiting
    ]
    print_table(("request", "agent", "tool", "arguments"), rows)


@approvals.command()
def show(
    request: RequestId,
    config: ConfigPath = DEFAULT_CONFIG,
    reveal: Annotated[
        bool,
        typer.Option("--reveal", help="Show hidden parts, which is recorded."),
    ] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Show exactly what would be approved; likely secrets are hidden."""
    found = run_async(_find, config, request, _name(by) if reveal else None)
    if as_json:
        print_json(found.to_json())
    else:
        print(found.to_text())


@approvals.command()
def approve(
    request: RequestId,
    by: By = None,
    config: ConfigPath = DEFAULT_CONFIG,
    arguments: Annotated[
        str | None, typer.Option("--args", help="Run it with this JSON object instead.")
    ] = None,
    seen: Annotated[
        str | None,
        typer.Option(help="From `show`: what was seen. Not needed with --args."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let the call run, once; it goes through the policy again."""
    from toolcell.guard import Approve

    reply = Approve(approver=_name(by), arguments=_object(arguments), seen=seen)
    _answer(config, request, reply, as_json=as_json)


@approvals.command()
def deny(
    request: RequestId,
    by: By = None,
    config: ConfigPath = DEFAULT_CONFIG,
    reason: Annotated[str, typer.Option(help="The model reads it.")] = "",
    as_json: AsJson = False,
) -> None:
    """Refuse the call; it is not asked for again in its run."""
    from toolcell.guard import Reject

    reply = Reject(approver=_name(by), reason=reason)
    _answer(config, request, reply, as_json=as_json)


@approvals.command()
def withdraw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The person.")],
    by: By = None,
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Take back what a person has approved and nobody has used.

    Grants end.
    """
    found = run_async(_withdraw, config, name, _name(by))
    if as_json:
        print_json({"person": name, **asdict(found)})
    else:
        approvals = counted(len(found.requests), "approval")
        print(f"withdrawn: {approvals}, {counted(len(found.grants), 'grant')}")


@approvals.command()
def watch(
    by: By = None, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Show requests as they come, and take answers.

    It ends with Ctrl-C, or with the input.
    """
    run_async(_watch, config, _name(by), as_json)


async def _watch(config: Path, by: str, as_json: bool) -> None:
    from .approvals_watch import watch_lines, watch_terminal

    async with _open(config) as approvals:
        await (watch_lines if as_json else watch_terminal)(approvals, by)


def _answer(
    config: Path, request: str, reply: Approve | Reject, *, as_json: bool
) -> None:
    from .approval_answer import answer_line
    from .approved_call import call_line

    answer = run_async(_send, config, request, reply)
    if not as_json:
        print(escaped_line(answer_line(answer)), flush=True)
    is_approved = answer["answer"] == "approve"
    call = run_async(_call_after, config, request) if is_approved else None
    if as_json:
        print_json(answer | ({"call": call} if call else {}))
    elif call:
        print(escaped_line(call_line(call)))


async def _send(config: Path, request: str, reply: Approve | Reject) -> dict[str, Any]:
    from .approval_answer import send_answer

    async with _open(config) as approvals:
        return await send_answer(approvals, request, reply)


async def _call_after(path: Path, request: str) -> dict[str, Any] | None:
    """Return what became of the call; None where that cannot be read."""
    from toolcell.core import StoreUnavailableError

    from ...config.host_config import HostConfig
    from ...runtime.assembly import open_records
    from .approved_call import call_after

    with suppress(StoreUnavailableError), ExitStack() as stack:
        records = open_records(HostConfig.from_file(path), stack)
        async with _open(path) as approvals:
            return await call_after(approvals, records, request)
    return None


async def _withdraw(config: Path, name: str, by: str) -> Withdrawn:
    async with _open(config) as approvals:
        return await approvals.withdraw(name, by=by)


async def _pending(config: Path) -> list[ShownRequest]:
    from toolcell.guard import ShownRequest

    async with _open(config) as approvals:
        return [
            ShownRequest(each, approvals.redactor) for each in await approvals.pending()
        ]


async def _find(config: Path, request: str, revealed_by: str | None) -> ShownRequest:
    from toolcell.guard import ShownRequest

    async with _open(config) as approvals:
        if revealed_by is not None:
            found = await approvals.reveal(request, by=revealed_by)
            return ShownRequest(found, approvals.redactor, opened=True)
        record, now = await approvals.find(request), time()
    if record is not None and record.state(now) == "waiting":
        return ShownRequest(record.request, approvals.redactor)
    state = "" if record is None else f", its state is {record.state_in_words(now)}"
    raise InvalidInputError(
        f"no request {request!r} waits{state}", hint="see `toolcell approvals list`"
    )


@asynccontextmanager
async def _open(path: Path) -> AsyncIterator[Approvals]:
    from ...config.host_config import HostConfig
    from ...runtime.assembly import open_guard

    config = HostConfig.from_file(path)
    if config.state.folder is None:
        raise ConfigError(
            "approvals are in the memory of the host alone",
            hint="name a folder in [state]",
        )
    async with AsyncExitStack() as stack:
        yield open_guard(config, os.environ, stack).approvals


def _name(by: str | None) -> str:
    from ...terminal.user_name import user_name

    return user_name() if by is None else by


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    from ..base.json_options import read_object

    return read_object(text, "--args", example="""--args '{"a": 1}'""")
