"""Tokens, people, approvals and grants that count again after a restore."""

from __future__ import annotations

from collections.abc import Iterator
from time import time
from typing import Literal, NamedTuple

from ...config.host_config import HostConfig
from ...http.tokens import TOKENS_FILE, open_tokens
from ...operator.people import People
from ...operator.people_file import PEOPLE_FILE, open_people
from ...runtime.assembly import APPROVALS_FILE, open_approval_store


class Revived(NamedTuple):
    """Something that counts as it did when the backup was made."""

    kind: Literal["token", "person", "approval", "grant"]
    id: str
    what: str
    """The agent and label of a token, the role of a person, or the agent, the tool and
    the person of an approval or a grant."""


def revived(config: HostConfig) -> list[Revived]:
    """Return all that counts again.

    Raises:
        ConfigError: A file of state cannot be used.
        StoreUnavailableError: A file of state cannot be read.
    """
    return [*_tokens(config), *_people(config), *_approvals(config)]


def _tokens(config: HostConfig) -> Iterator[Revived]:
    if config.state.has(TOKENS_FILE):
        with open_tokens(config) as tokens:
            for token in tokens.all():
                if tokens.is_valid(token.id):
                    facts = filter(None, (token.agent_id, token.label))
                    yield Revived("token", token.id, ", ".join(facts))


def _people(config: HostConfig) -> Iterator[Revived]:
    if config.state.has(PEOPLE_FILE):
        with open_people(config) as file:
            for person in People(file).all():
                yield Revived("person", person.id, person.role)


def _approvals(config: HostConfig) -> Iterator[Revived]:
    if not config.state.has(APPROVALS_FILE):
        return
    now = time()
    with open_approval_store(config) as store:
        # A negative limit of SQLite is none.
        for request, _, approver, *_ in store.recent(now, state="approved", limit=-1):
            what = f"{request.call.agent_id}, {request.call.name}, {approver}"
            yield Revived("approval", request.id, what)
        for grant in store.grants(now):
            what = f"{grant.agent_id}, {grant.tool}, {grant.approver}"
            yield Revived("grant", grant.id, what)
