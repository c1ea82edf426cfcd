"""Does acts again that a restore has undone: what they ended stays ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from toolcell.guard import ApprovalStore

from ...config.host_config import HostConfig
from ...http.tokens import TOKENS_FILE, open_tokens
from ...operator.people_file import PEOPLE_FILE, PeopleFile, open_people
from ...operator.restored_people import (
    drop_passkeys,
    drop_person,
    end_sessions,
    narrow_rights,
)
from ...runtime.assembly import APPROVALS_FILE, open_approval_store
from .last_log import ActionRecord


class Ended(NamedTuple):
    """Something that had come back, and counts no more."""

    kind: Literal["token", "person", "rights", "passkey", "approval", "grant"]
    id: str
    """The id of a token, a request or a grant, or the name of the person."""


def end_again(config: HostConfig, acts: Iterable[ActionRecord]) -> list[Ended]:
    """End what was ended between a backup and the end of its host.

    All people have to sign in again. An approval of that time that was never used does
    not come back: people are asked anew.

    Args:
        config: The configuration of the host that was brought back.
        acts: The acts, the oldest first.

    Raises:
        ConfigError: A file of state cannot be used.
        StoreUnavailableError: A file of state cannot be written.
    """
    acts = [*acts]
    found = [*_tokens(config, acts), *_people(config, acts), *_approvals(config, acts)]
    return [*dict.fromkeys(found)]


def _tokens(config: HostConfig, acts: list[ActionRecord]) -> Iterator[Ended]:
    if not config.state.has(TOKENS_FILE):
        return
    with open_tokens(config) as tokens:
        for act in acts:
            if act.event == "token_revoked" and tokens.is_valid(act.id):
                tokens.revoke(act.id)
                yield Ended("token", act.id)


def _people(config: HostConfig, acts: list[ActionRecord]) -> Iterator[Ended]:
    if not config.state.has(PEOPLE_FILE):
        return
    with open_people(config) as file, file.transaction():
        end_sessions(file)
        for act in acts:
            yield from _person(file, act)


def _person(file: PeopleFile, act: ActionRecord) -> Iterator[Ended]:
    person = act.person
    match act.event:
        case "person_removed" if drop_person(file, person):
            yield Ended("person", person)
        case "person_changed" if narrow_rights(file, person, act.role, act.agents):
            yield Ended("rights", person)
        case "passkey_removed" if drop_passkeys(file, person, act.passkey):
            yield Ended("passkey", person)
        case _:
            pass


def _approvals(config: HostConfig, acts: list[ActionRecord]) -> Iterator[Ended]:
    if not config.state.has(APPROVALS_FILE):
        return
    with open_approval_store(config) as store:
        approvals = _Approvals(store)
        for act in acts:
            yield from approvals.do(act)


class _Approvals:
    """Does acts again in the store of approvals, each at its time.

    Args:
        store: The store.
    """

    def __init__(self, store: ApprovalStore) -> None:
        self._store = store
        self._approved: dict[str, ActionRecord] = {}
        """The last approvals, by their requests."""

    def do(self, act: ActionRecord) -> Iterator[Ended]:
        """Do an act again; yield what it ends."""
        match act.event:
            case "approval_answered" if act.approval_id:
                yield from self._answer(act, act.approval_id)
            case "approval_used" if act.approval_id:
                yield from self._use(act, act.approval_id)
            case "approval_ended" if act.approval_id:
                if self._store.end(act.approval_id, _at(act), act.reason, _no_record):
                    yield Ended("approval", act.approval_id)
            case "approvals_withdrawn":
                taken = self._store.withdraw(
                    act.person, _at(act), act.kept_agents, _no_record
                )
                yield from (Ended("approval", each) for each in taken.requests)
                yield from (Ended("grant", each) for each in taken.grants)
            case "grant_revoked" if act.grant_id:
                if self._store.revoke(act.grant_id, _no_record):
                    yield Ended("grant", act.grant_id)
            case _:
                pass

    def _answer(self, act: ActionRecord, request_id: str) -> Iterator[Ended]:
        if act.approved:
            self._approved[request_id] = act
        elif self._put(act, request_id, "rejected"):
            yield Ended("approval", request_id)

    def _use(self, act: ActionRecord, request_id: str) -> Iterator[Ended]:
        approved = self._approved.get(request_id)
        if approved is not None:
            self._put(approved, request_id, "approved")
        if self._store.use(request_id, _at(act), _no_record):
            yield Ended("approval", request_id)

    def _put(
        self,
        act: ActionRecord,
        request_id: str,
        status: Literal["approved", "rejected"],
    ) -> bool:
        arguments = act.arguments if isinstance(act.arguments, dict) else None
        return self._store.answer(
            request_id,
            status,
            now=_at(act),
            approver=act.approver,
            reason=act.reason,
            arguments=arguments,
            record=_no_record,
        )


def _at(act: ActionRecord) -> float:
    return act.time.timestamp()


def _no_record(_: object = None) -> None:
    """The record of the restore names what was ended."""
