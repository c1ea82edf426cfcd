"""Who may not answer any more: what they approved is withdrawn, in each order."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import AuditError, InvalidInputError
from toolcell.guard import (
    ApprovalRequest,
    Approvals,
    ApprovalStore,
    Approve,
    AuditHead,
    AuditLog,
    Grant,
)
from toolcell.host.console.accounts.rights import Rights
from toolcell.host.console.accounts.sessions import LoginSession, Sessions
from toolcell.host.operator.people import Person, Role
from toolcell.host.operator.people_file import PeopleFile

from ...support.concurrent_processes import all_at_once, start
from ...support.guard.desk import Desk

pytestmark = pytest.mark.anyio
ISSUER = "https://issuer.test"


@dataclass
class Place:
    """A console's people and a host's approvals; other processes may share both."""

    folder: Path
    file: PeopleFile
    rights: Rights
    desk: Desk

    def put(
        self,
        name: str,
        role: Role = "approver",
        agents: tuple[str, ...] | None = None,
    ) -> LoginSession:
        """Store a person with a passkey; return a session."""
        with self.file.transaction():
            self.people._add(name, role, agents)
        sessions = Sessions(self.file, 3600, 3600)
        found = sessions.find(sessions.open(name, ""))
        assert found is not None
        return found

    @property
    def people(self) -> Any:
        return self.rights._people

    async def waits(self, agent: str = "a", **arguments: Any) -> ApprovalRequest:
        """Make a call that waits; return its request."""
        await self.desk.ask(agent, **arguments)
        return (await self.desk.approvals.pending())[-1]

    async def approved_by(self, request: ApprovalRequest) -> tuple[str, ...]:
        return (await self.desk.state(request.id))[1]


@asynccontextmanager
async def opened(folder: Path, audit: AuditLog | None = None) -> AsyncIterator[Place]:
    with PeopleFile(folder / "people.db") as file:
        desk = Desk(folder / "approvals.db", agents=("a", "b"), audit=audit)
        with desk.store:
            rights = Rights(file, Sessions(file, 3600, 3600), desk.approvals)
            made = Place(folder, file, rights, desk)
            made.put("eva", "admin")
            with file.transaction():
                file.run("INSERT INTO passkeys VALUES (x'00', 'eva', x'', 0, 0, NULL)")
            yield made


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody give up a lock that another one holds for the test."""
    monkeypatch.setattr("toolcell.guard.approvals.store.BUSY_SECONDS", 60.0)
    monkeypatch.setattr("toolcell.host.config.state_file._BUSY_SECONDS", 60.0)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with opened(tmp_path) as made:
        yield made


def approval(name: str = "anna", **more: Any) -> Approve:
    return Approve(approver=name, **more)


async def test_the_votes_of_a_person_who_is_removed_count_no_longer(
    place: Place,
) -> None:
    anna, berta = place.put("anna"), place.put("berta")
    first, second = await place.waits(sum=1), await place.waits(sum=2)
    await place.rights.answer(anna, first, approval())
    for session in (anna, berta):
        await place.rights.answer(session, second, approval(session.person.id))
    await place.rights.remove("anna", by="eva")

    assert place.people.find("anna") is None
    assert await place.approved_by(first) == ()
    assert await place.approved_by(second) == ("berta",)


@pytest.mark.parametrize(
    ("role", "agents", "kept"),
    [
        ("viewer", None, ""),
        ("viewer", ("a", "b"), ""),
        ("approver", ("a",), "a"),
        ("approver", (), ""),
        ("approver", ("a", "b"), "ab"),
        ("approver", None, "ab"),
        ("admin", None, "ab"),
    ],
)
async def test_what_new_rights_do_not_cover_is_withdrawn(
    place: Place, role: Role, agents: tuple[str, ...] | None, kept: str
) -> None:
    anna = place.put("anna")
    requests = {agent: await place.waits(agent) for agent in "ab"}
    for request in requests.values():
        await place.rights.answer(anna, request, approval())
    await place.rights.set_role("anna", role, agents, by="eva")
    left = [a for a, each in requests.items() if await place.approved_by(each)]

    person = place.people.find("anna")
    assert (person.role, person.agents) == (role, agents)
    assert "".join(left) == kept


async def test_the_last_admin_keeps_what_was_approved(place: Place) -> None:
    [eva] = Sessions(place.file, 3600, 3600).all()
    request = await place.waits()
    await place.rights.answer(eva, request, approval("eva"))
    acts: list[Callable[[], Awaitable[None]]] = [
        lambda: place.rights.remove("eva", by="eva"),
        lambda: place.rights.set_role("eva", "viewer", None, by="eva"),
    ]
    for act in acts:
        with pytest.raises(InvalidInputError, match="nobody could manage"):
            await act()

    assert await place.approved_by(request) == ("eva",)


async def test_nobody_is_removed_unrecorded(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    async with opened(tmp_path, audit) as place:
        anna, request = place.put("anna"), await place.waits()
        await place.rights.answer(anna, request, approval())
        audit.close()
        with pytest.raises(AuditError):
            await place.rights.remove("anna", by="eva")

        assert place.people.find("anna") is not None
        assert await place.approved_by(request) == ("anna",)


@pytest.mark.parametrize("change", ["removed", "viewer", "others", "again", "session"])
async def test_a_form_in_flight_counts_no_longer(place: Place, change: str) -> None:
    """Its session was open, and its person had the role, when the form arrived."""
    anna, request = place.put("anna"), await place.waits()
    match change:
        case "removed":
            await place.rights.remove("anna", by="eva")
        case "viewer":
            await place.rights.set_role("anna", "viewer", None, by="eva")
        case "others":
            await place.rights.set_role("anna", "approver", ("b",), by="eva")
        case "again":
            # Another person, who has got the name.
            await place.rights.remove("anna", by="eva")
            place.put("anna")
        case "session":
            Sessions(place.file, 3600, 3600).close(anna.id)
    with pytest.raises(InvalidInputError, match="not answer this any more"):
        await place.rights.answer(anna, request, approval())

    assert await place.approved_by(request) == ()


async def test_a_grant_of_an_admin_of_yesterday_is_refused(place: Place) -> None:
    anna, request = place.put("anna", "admin"), await place.waits()
    await place.rights.set_role("anna", "approver", None, by="eva")
    grant = approval(grant=Grant(seconds=86_400))
    with pytest.raises(InvalidInputError, match="not answer this any more"):
        await place.rights.answer(anna, request, grant, "admin")


class Held(AuditLog):
    """A log that holds up the record of an event until it is let go."""

    def __init__(self, path: Path, event: str) -> None:
        super().__init__(path)
        self._event = event
        self.reached, self.let_go = threading.Event(), threading.Event()

    def append(self, event: str, /, **fields: Any) -> AuditHead:
        if event == self._event:
            self.reached.set()
            assert self.let_go.wait(60)
        return super().append(event, **fields)


@pytest.mark.parametrize("held", ["approval_voted", "approvals_withdrawn"])
async def test_an_answer_and_a_removal_come_one_after_the_other(
    place: Place, held: str
) -> None:
    """One is in the midst of it, in another process, when the other begins."""
    anna = place.put("anna")
    first, second = await place.waits(sum=1), await place.waits(sum=2)
    await place.rights.answer(anna, first, approval())
    log = Held(place.folder / "audit.jsonl", held)
    ended = anyio.Event()

    async def vote(rights: Rights) -> None:
        with suppress(InvalidInputError):
            await rights.answer(anna, second, approval())

    async def remove(rights: Rights) -> None:
        await rights.remove("anna", by="eva")

    begun, later = (vote, remove) if held == "approval_voted" else (remove, vote)

    async def come_later() -> None:
        try:
            await later(place.rights)
        finally:
            ended.set()
            log.let_go.set()

    with (
        log,
        ApprovalStore(place.folder / "approvals.db") as store,
        place.file.second_connection() as file,
    ):
        sessions = Sessions(file, 3600, 3600)
        other = Rights(file, sessions, Approvals(store, audit=log))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begun, other)
            assert await anyio.to_thread.run_sync(log.reached.wait, 20)
            tasks.start_soon(come_later)
            # It can end meanwhile only if nothing holds it up.
            with anyio.move_on_after(0.3):
                await ended.wait()
            was_held_up = not ended.is_set()
            log.let_go.set()

    assert was_held_up
    assert place.people.find("anna") is None
    assert [await place.approved_by(each) for each in (first, second)] == [(), ()]


TOGETHER = """
import sys, anyio
from pathlib import Path
from toolcell.core import InvalidInputError
from toolcell.guard import Approvals, ApprovalStore, Approve
from toolcell.host.operator.people_file import PeopleFile
from toolcell.host.console.accounts.rights import Rights
from toolcell.host.console.accounts.sessions import Sessions
from toolcell.guard.approvals import store
from toolcell.host.config import state_file

# One that stands still with a lock holds up the others; they do not give up.
store.BUSY_SECONDS = state_file._BUSY_SECONDS = 60.0
folder, act = Path(sys.argv[1]), sys.argv[2]
file = PeopleFile(folder / "people.db")
sessions = Sessions(file, 3600, 3600)
approvals = Approvals(ApprovalStore(folder / "approvals.db"))
rights = Rights(file, sessions, approvals)
[anna] = [each for each in sessions.all() if each.person.id == "anna"]
async def main():
    requests = await approvals.pending()
    print("ready", flush=True)
    sys.stdin.readline()
    if act == "remove":
        return await rights.remove("anna", by="eva")
    try:
        for each in requests:
            await rights.answer(anna, each, Approve(approver="anna"))
    except InvalidInputError as error:
        print(error.message)
anyio.run(main)
"""


async def test_processes_that_vote_while_another_removes(place: Place) -> None:
    place.put("anna")
    requests = [await place.waits(sum=number) for number in range(50)]
    acts = ("vote", "vote", "remove")
    processes = [start(TOGETHER, str(place.folder), act) for act in acts]
    for process in processes:
        assert process.stdout is not None
        assert await anyio.to_thread.run_sync(process.stdout.readline) == "ready\n"
    await anyio.to_thread.run_sync(all_at_once, processes)

    assert [process.returncode for process in processes] == [0, 0, 0]
    assert place.people.find("anna") is None
    assert {await place.approved_by(request) for request in requests} == {()}


DIE = """
import os, signal, sys, anyio
from pathlib import Path
from toolcell.guard import Approvals, ApprovalStore
from toolcell.host.operator.people_file import PeopleFile
from toolcell.host.console.accounts.rights import Rights
from toolcell.host.console.accounts.sessions import Sessions

class Deadly(PeopleFile):
    def run(self, statement, values=()):
        if statement == "COMMIT":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(statement, values)

folder, act = Path(sys.argv[1]), sys.argv[2]
file = Deadly(folder / "people.db")
approvals = Approvals(ApprovalStore(folder / "approvals.db"))
rights = Rights(file, Sessions(file, 3600, 3600), approvals)
sys.stdin.readline()
async def main():
    if act == "remove":
        await rights.remove("anna", by="eva")
    else:
        await rights.put_subjects("https://issuer.test", {})
anyio.run(main)
"""


@pytest.mark.parametrize("act", ["remove", "put_subjects"])
async def test_a_removal_that_dies_half_way_is_made_again(
    place: Place, act: str
) -> None:
    """No votes count of a person who is gone, and the person is there to be removed."""
    if act == "remove":
        place.put("anna")
    else:
        people = {"1": Person("anna", "approver", None, 0.0)}
        await place.rights.put_subjects(ISSUER, people)
    request = await place.waits()
    await place.desk.approvals.answer(request.id, approval())
    process = start(DIE, str(place.folder), act)
    await anyio.to_thread.run_sync(all_at_once, [process])

    assert process.returncode == -signal.SIGKILL
    assert place.people.find("anna") is not None
    assert await place.approved_by(request) == ()
    if act == "remove":
        await place.rights.remove("anna", by="eva")
    else:
        await place.rights.put_subjects(ISSUER, {})
    assert place.people.find("anna") is None


@pytest.mark.parametrize(
    ("issuer", "subject", "now", "kept"),
    [
        (ISSUER, "1", None, ""),
        (ISSUER, "1", Person("anna", "approver", None, 0.0), "ab"),
        (ISSUER, "1", Person("anna", "admin", None, 0.0), "ab"),
        (ISSUER, "1", Person("anna", "approver", ("b",), 0.0), "b"),
        (ISSUER, "1", Person("anna", "viewer", None, 0.0), ""),
        (ISSUER, "1", Person("berta", "approver", None, 0.0), ""),
        (ISSUER, "2", Person("anna", "approver", None, 0.0), ""),
        ("https://other.test", "1", Person("anna", "approver", None, 0.0), ""),
    ],
)
async def test_the_configuration_of_an_issuer_is_followed(
    place: Place, issuer: str, subject: str, now: Person | None, kept: str
) -> None:
    before = {
        "1": Person("anna", "approver", None, 0.0),
        "9": Person("carl", "approver", ("a",), 0.0),
    }
    await place.rights.put_subjects(ISSUER, before)
    requests = {agent: await place.waits(agent) for agent in "ab"}
    for request in requests.values():
        await place.desk.approvals.answer(request.id, approval())
    await place.desk.approvals.answer(requests["a"].id, approval("dora"))
    await place.rights.put_subjects(issuer, {} if now is None else {subject: now})
    names = [await place.approved_by(request) for request in requests.values()]
    left = [a for a, found in zip("ab", names, strict=True) if "anna" in found]

    assert "".join(left) == kept
    assert "dora" in names[0]
    assert place.people.find("carl") is None
    found = [(each.id, each.role, each.agents) for each in place.people.all()]
    wanted = [] if now is None else [(now.id, now.role, now.agents)]
    assert found == [*wanted, ("eva", "admin", None)]


async def test_an_invitation_does_not_bring_back_who_was_taken_out(
    place: Place,
) -> None:
    people = {"1": Person("anna", "admin", None, 0.0)}
    await place.rights.put_subjects(ISSUER, people)
    code = place.people.make_link(role="admin", person_id="anna", seconds=60)
    await place.rights.put_subjects(ISSUER, {})

    assert place.people.link(code) is None


async def test_names_may_change_places(place: Place) -> None:
    people = {
        "1": Person("anna", "approver", None, 0.0),
        "2": Person("berta", "viewer", None, 0.0),
    }
    await place.rights.put_subjects(ISSUER, people)
    await place.rights.put_subjects(ISSUER, {"1": people["2"], "2": people["1"]})
    found = {key[1]: each.id for key, each in place.people.subjects().items()}

    assert found == {"1": "berta", "2": "anna"}
