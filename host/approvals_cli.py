"""`toolcell approvals`: calls that wait for a person."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toolcell.core import ConfigError, InvalidInputError

from .interrupts import run_async
from .options import DEFAULT_CONFIG, AsJson, ConfigPath
from .show import print_table

if TYPE_CHECKING:
    from toolcell.guard import ApprovalRequest, Approvals, Approve, Reject

approvals = typer.Typer(help="Calls that wait for a person.", no_args_is_help=True)

RequestId = Annotated[str, typer.Argument(metavar="ID", help="The request.")]
By = Annotated[
    str | None, typer.Option(help="Who answers; default the user of this machine.")
]


@approvals.command("list")
def list_(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """List the requests that wait, the oldest first."""
    waiting = run_async(_pending, config)
    if as_json:
        print(json.dumps([request_facts(each) for each in waiting]))
        return
    rows = [
        (each.id, each.call.agent_id, each.call.name, _arguments(each))
        for each in waiting
    ]
    print_table(("request", "agent", "tool", "arguments"), rows)


@approvals.command()
def show(
    request: RequestId, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Show what exactly would be approved."""
    found = {each.id: each for each in run_async(_pending, config)}.get(request)
    if found is None:
        raise InvalidInputError(
            f"no request {request!r} waits", hint="see `toolcell approvals list`"
        )
    print(json.dumps(request_facts(found)) if as_json else found.to_display())


@approvals.command()
def approve(
    request: RequestId,
    by: By = None,
    config: ConfigPath = DEFAULT_CONFIG,
    arguments: Annotated[
        str | None, typer.Option("--args", help="Run it with this JSON object instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let the call run, once; it goes through the policy again."""
    from toolcell.guard import Approve

    reply = Approve(approver=_name(by), arguments=_object(arguments))
    _answer(config, request, reply, as_json=as_json)


@approvals.command()
def deny(
    request: RequestId,
    by: By = None,
    config: ConfigPath = DEFAULT_CONFIG,
    reason: Annotated[str, typer.Option(help="Told to the model.")] = "",
    as_json: AsJson = False,
) -> None:
    """Refuse the call; it is not asked for again in its run."""
    from toolcell.guard import Reject

    reply = Reject(approver=_name(by), reason=reason)
    _answer(config, request, reply, as_json=as_json)


@approvals.command()
def watch(
    by: By = None, config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False
) -> None:
    """Show requests as they come, and take answers, until Ctrl-C or the input's end."""
    run_async(_watch, config, _name(by), as_json)


async def _watch(config: Path, by: str, as_json: bool) -> None:
    from .approvals_watch import watch_lines, watch_terminal

    async with _open(config) as desk:
        await (watch_lines if as_json else watch_terminal)(desk, by)


def _answer(
    config: Path, request: str, reply: Approve | Reject, *, as_json: bool
) -> None:
    run_async(_send, config, request, reply)
    word = type(reply).__name__.lower()
    if as_json:
        told = {"request": request, "answer": word, "approver": reply.approver}
        print(json.dumps(told))
    else:
        print(f"{word}: {request}")


async def _send(config: Path, request: str, reply: Approve | Reject) -> None:
    async with _open(config) as desk:
        await desk.answer(request, reply)


async def _pending(config: Path) -> list[ApprovalRequest]:
    async with _open(config) as desk:
        return await desk.pending()


@asynccontextmanager
async def _open(path: Path) -> AsyncIterator[Approvals]:
    from .config import HostConfig
    from .parts import open_guard

    config = HostConfig.from_file(path)
    if config.state.folder is None:
        raise ConfigError(
            "approvals are in the memory of the host alone",
            hint="name a folder in [state]",
        )
    async with AsyncExitStack() as stack:
        yield open_guard(config, os.environ, stack).approvals


def request_facts(request: ApprovalRequest) -> dict[str, Any]:
    """Return a request as JSON values, redacted."""
    from toolcell.guard import Redactor

    return {
        "id": request.id,
        "agent_id": request.call.agent_id,
        "run_id": request.run_id,
        "tool": request.call.name,
        "version": request.version,
        "arguments": Redactor()(request.call.arguments),
        "rule": request.rule,
        "asked_at": request.asked_at,
        "expires_at": request.expires_at,
    }


def _arguments(request: ApprovalRequest) -> str:
    return json.dumps(request_facts(request)["arguments"])


def _name(by: str | None) -> str:
    from .user_name import user_name

    return user_name() if by is None else by


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    from .call_cli import read_call

    return read_call("edited", "edited", text).arguments
