"""`toolcell tokens`: tokens that let clients connect over HTTP as an agent."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from toolcell.core import InvalidInputError
from toolcell.core.text.printable import escaped_line

from ...terminal.output import print_json, print_table
from ...terminal.signals import run_async
from ..base.options import DEFAULT_CONFIG, AsJson, ConfigPath

if TYPE_CHECKING:
    from ...config.host_config import HostConfig

tokens = typer.Typer(
    help="Manage tokens with which clients connect over HTTP.", no_args_is_help=True
)


@tokens.command()
def create(
    agent: Annotated[str, typer.Option(help="The agent that the token names.")],
    days: Annotated[float, typer.Option(help="Days that it is valid.")] = 90.0,
    asks_person: Annotated[
        bool,
        typer.Option(help="The client shows questions to a person, who may approve."),
    ] = False,
    operator: Annotated[
        bool,
        typer.Option(help="Over REST its holder sees and ends calls of all agents."),
    ] = False,
    form: Annotated[
        Literal["toolcell", "e2b"],
        typer.Option(help="The form of its text; e2b for SDKs of E2B."),
    ] = "toolcell",
    label: Annotated[
        str, typer.Option(help="The person or the place that gets it, for `list`.")
    ] = "",
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: only its hash is stored."""
    settings = _read(config)
    if agent not in {policy.agent_id for policy in settings.all_policies()}:
        raise InvalidInputError(
            f"there is no policy of an agent {agent!r}",
            hint="name an agent of a policy; case counts",
        )
    from ...http.tokens import open_tokens

    with open_tokens(settings) as store:
        token, text = store.create(
            agent,
            days=days,
            asks_person=asks_person,
            operator=operator,
            form=form,
            label=label,
        )
        facts = {key: str(value) for key, value in token.to_json().items()}
        try:
            run_async(_recorded, settings, "token_created", facts)
        except BaseException:
            # Nobody has seen its text: a token that the log does not know is not used.
            store.revoke(token.id)
            raise
    if as_json:
        print_json({**token.to_json(), "token": text})
        return
    print(text)
    print(
        f"token {token.id} of {escaped_line(agent)}, "
        f"valid until {_date(token.expires_at)}; it is not shown again",
        file=sys.stderr,
    )


@tokens.command("list")
def list_(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""
    from ...http.tokens import open_tokens

    with open_tokens(_read(config)) as store:
        found = store.all()
    if as_json:
        print_json([token.to_json() for token in found])
        return
    rows = [
        (
            token.id,
            token.agent_id,
            token.label,
            "yes" if token.asks_person else "no",
            "yes" if token.operator else "no",
            _date(token.expires_at),
            _date(token.last_used_at),
            _date(token.revoked_at),
        )
        for token in found
    ]
    columns = (
        *("token", "agent", "label", "asks a person", "operator"),
        *("valid until", "last used", "revoked"),
    )
    print_table(columns, rows)


@tokens.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The token's id.")],
    config: ConfigPath = DEFAULT_CONFIG,
    as_json: AsJson = False,
) -> None:
    """End a token now.

    Servers that run refuse it from their next request on.
    """
    from ...http.tokens import open_tokens

    settings = _read(config)
    with open_tokens(settings) as store:
        store.revoke(token)
    run_async(_recorded, settings, "token_revoked", {"id": token})
    if as_json:
        print_json({"revoked": token})
    else:
        print(f"revoked {escaped_line(token)}")


async def _recorded(settings: HostConfig, event: str, facts: dict[str, str]) -> None:
    from ..base.audit_event import record_event

    await record_event(settings, event, **facts)


def _read(path: Path) -> HostConfig:
    from ...config.host_config import HostConfig

    return HostConfig.from_file(path)


def _date(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
