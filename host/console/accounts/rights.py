"""The rights of people, which hold while an answer is stored.

An answer holds the file of people until it is stored, and a change of rights holds it
until what the person has approved is withdrawn. So, in all processes with the file, an
answer before the change is withdrawn, and one after it is refused. The change is the
last that is written: whoever dies before has withdrawn approvals of a person who still
has the rights, and the change can be made again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import anyio.to_thread

from toolcell.core import InvalidInputError
from toolcell.guard import ApprovalRequest, Approvals, Approve
from toolcell.guard.spi import ApprovalReply

from ...operator.people import People, Person, Role
from ...operator.people_file import PeopleFile
from ...operator.vouching import Vouching
from .sessions import LoginSession, Sessions

BY_CONFIGURATION = "[console.oidc]"
"""The name in records for the configuration, which withdraws what people had approved
whom it has no more, or gives less rights."""


class Rights:
    """Answers of people, and changes of their rights: one after the other.

    Args:
        file: A connection to the file of people that nothing else uses.
        sessions: The sessions, by the same connection.
        approvals: The requests that people answer.
    """

    def __init__(
        self, file: PeopleFile, sessions: Sessions, approvals: Approvals
    ) -> None:
        self._file = file
        self._people = People(file)
        self._sessions = sessions
        self._vouching = Vouching(file)
        self._approvals = approvals

    async def answer(
        self,
        session: LoginSession,
        request: ApprovalRequest,
        reply: ApprovalReply,
        role: Role = "approver",
    ) -> None:
        """Answer a request, if the person of a session may do so now.

        Args:
            session: The session.
            request: The request.
            reply: The answer.
            role: The role that it takes.

        Raises:
            InvalidInputError: The person may not any more, or as `Approvals.answer`.
            AuditError: The answer cannot be recorded; it does not count.
            StoreUnavailableError: The people or the approvals did not answer.
        """
        may = self._may_answer(session, request, reply, role)
        await self._approvals.answer(request.id, reply, within=may)

    @contextmanager
    def _may_answer(
        self,
        session: LoginSession,
        request: ApprovalRequest,
        reply: ApprovalReply,
        role: Role,
    ) -> Iterator[None]:
        agent_id = request.call.agent_id
        with self._file.transaction():
            person = self._sessions.person_of(session.id)
            if person is None or not (person.has(role) and person.may_answer(agent_id)):
                raise InvalidInputError(
                    "you may not answer this any more",
                    hint="an admin says who answers for whom",
                )
            approves = isinstance(reply, Approve)
            self._vouching.vote(request, person.id, session.passkey, approves=approves)
            yield

    async def set_role(
        self, person_id: str, role: Role, agents: tuple[str, ...] | None, *, by: str
    ) -> None:
        """Change the rights of a person; what they no longer cover is withdrawn.

        Args:
            person_id: The person.
            role: The new role.
            agents: The agents whose requests the person may answer. None: all.
            by: The name of who changes them.

        Raises:
            InvalidInputError: The last admin would be none any more.
            AuditError: What is withdrawn cannot be recorded; nothing was done.
            StoreUnavailableError: The people or the approvals did not answer.
        """
        change = self._people.setting_role(person_id, role, agents)
        await self._change(Person(person_id, role, agents, 0.0), change, by)

    async def remove(self, person_id: str, *, by: str) -> None:
        """Remove a person; what the person had approved is withdrawn.

        Args:
            person_id: The person.
            by: The name of who removes the person.

        Raises:
            InvalidInputError: It is the last admin.
            AuditError: What is withdrawn cannot be recorded; nothing was done.
            StoreUnavailableError: The people or the approvals did not answer.
        """
        await self._withdraw(person_id, (), self._people.removing(person_id), by)

    async def put_subjects(self, issuer: str, people: Mapping[str, Person]) -> None:
        """Store the people whom an OIDC issuer knows, and no others of issuers.

        Args:
            issuer: The issuer.
            people: The people, by the subject that the issuer has for each.

        Raises:
            InvalidInputError: A name is another person's.
            AuditError: What is withdrawn cannot be recorded.
            StoreUnavailableError: The people or the approvals did not answer.
        """
        known = self._people.subjects()
        wanted = {(issuer, subject): person for subject, person in people.items()}
        for place, person in known.items():
            if place not in wanted or wanted[place].id != person.id:
                gone = self._people.removing_subject(*place)
                await self._withdraw(person.id, (), gone, BY_CONFIGURATION)
        for place, person in wanted.items():
            if place in known and _rights(known[place]) == _rights(person):
                continue
            put = self._people.putting_subject(*place, person)
            await self._change(person, put, BY_CONFIGURATION)

    async def _change(
        self, person: Person, change: AbstractContextManager[None], by: str
    ) -> None:
        """Make a change after which a person has other rights."""
        if person.has("approver") and person.agents is None:
            await anyio.to_thread.run_sync(_apply, change)
            return
        kept = person.agents or () if person.has("approver") else ()
        await self._withdraw(person.id, kept, change, by)

    async def _withdraw(
        self,
        person_id: str,
        kept: Collection[str],
        change: AbstractContextManager[None],
        by: str,
    ) -> None:
        await self._approvals.withdraw(
            person_id, by=by, keep_agents=kept, within=change
        )


def _apply(change: AbstractContextManager[None]) -> None:
    with change:
        pass


def _rights(person: Person) -> tuple[str, Role, tuple[str, ...] | None]:
    return person.id, person.role, person.agents
