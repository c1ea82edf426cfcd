"""People and approvals that were ended after a backup stay ended after a restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolcell.guard import ApprovalStore, Approve, AuditLog, Grant, Reject
from toolcell.guard.spi import Rule
from toolcell.host.console.accounts.people import Passkey, People, Person, Role
from toolcell.host.console.accounts.people_file import PeopleFile
from toolcell.host.console.accounts.sessions import Sessions

from ...conftest import run_apart
from ...support.guard.desk import Desk
from ...support.mcp.served_hosts import CONFIG, written
from .conftest import Command

AUDITED = CONFIG + '[audit]\npath = "audit.jsonl"\n'
ONE = Rule(tools=["pay"])
ANNA = Approve(approver="anna")

pytestmark = pytest.mark.promise("JC5")


@contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """Yield a guard with the approvals and the log of the configuration."""
    (folder / "state").mkdir(exist_ok=True)
    with AuditLog(folder / "audit.jsonl") as log:
        made = Desk(folder / "state/approvals.db", ONE, audit=log)
        with made.store:
            yield made


def lost(folder: Path) -> None:
    """Lose the state of the host, but for its audit log."""
    shutil.rmtree(folder / "state")
    (folder / "audit.jsonl").rename(folder / "old.jsonl")


def test_answers_given_since_a_backup_stay_given(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    names = "used withdrawn kept rejected later_used later_approved revoked".split()
    ids: dict[str, str] = {}
    grants: list[str] = []

    async def before() -> None:
        with desk(tmp_path) as made:
            for name in names:
                ids[name] = await made.ask(to=name)
            for name in ("used", "kept"):
                await made.approvals.answer(ids[name], ANNA)
            granted = Approve(approver="bert", grant=Grant())
            for name in ("withdrawn", "revoked"):
                await made.approvals.answer(ids[name], granted)
            grants.extend(each.id for each in await made.approvals.grants())

    async def since() -> None:
        with desk(tmp_path) as made:
            await made.ran(to="used")
            await made.approvals.revoke(grants[1], by="eva")
            await made.approvals.withdraw("bert", by="eva")
            rejected = Reject(approver="anna", reason="no")
            await made.approvals.answer(ids["rejected"], rejected)
            for name in ("later_used", "later_approved"):
                await made.approvals.answer(ids[name], ANNA)
            await made.ran(to="later_used")

    run_apart(before)
    command("backup", "copy")
    run_apart(since)
    lost(tmp_path)
    done = command("restore", "copy", "--audit", "old.jsonl", "--json")

    assert done.code == 0, done.err
    with ApprovalStore(tmp_path / "state/approvals.db") as store:
        found = {name: store.get(ids[name]) for name in names}
        assert store.grants(0.0) == []
    assert {name: each and each.status for name, each in found.items()} == {
        "used": "used",
        "withdrawn": "pending",
        "kept": "approved",
        "rejected": "rejected",
        "later_used": "used",
        "later_approved": "pending",  # A person is asked anew.
        "revoked": "pending",
    }
    ended = {each["id"] for each in done.json["ended"]}
    stays = {"kept", "later_approved"}
    assert ended == {*grants, *(ids[name] for name in names if name not in stays)}
    assert done.json["counts_again"] == [
        {"kind": "approval", "id": ids["kept"], "what": "a, pay, anna"}
    ]
    restored = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert ended == set(restored["ended"].replace(",", "").split()[1::2])


def test_people_removed_since_a_backup_stay_removed(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    (tmp_path / "state").mkdir()
    roles: dict[str, Role] = {"anna": "admin", "bert": "admin", "carl": "operator"}
    with PeopleFile(tmp_path / "state/people.db") as file:
        for name, role in roles.items():
            _join(People(file), name, role)
        People(file).add_passkey(_key("anna", b"stolen"))
        secret = Sessions(file, 1e9, 1e9).open("anna", "::1")
        code = People(file).make_link(role="admin", seconds=1e9)
    command("backup", "copy")
    with AuditLog(tmp_path / "audit.jsonl") as log:
        stolen = _key("anna", b"stolen").text
        log.append("passkey_removed", by="anna", person="anna", passkey=stolen)
        log.append("person_removed", by="anna", person="bert")
        log.append("person_changed", person="carl", role="viewer", agents=["a"])
        # Rights that were given since do not come back.
        log.append("person_changed", person="carl", role="admin")
    lost(tmp_path)
    done = command("restore", "copy", "--audit", "old.jsonl")

    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if "again" in line] == [
        "ended again passkey anna",
        "ended again person bert",
        "ended again rights carl",
        "counts again person anna: admin",
        "counts again person carl: viewer",
    ]
    with PeopleFile(tmp_path / "state/people.db") as file:
        people = People(file)
        assert [key.id for key in people.passkeys("anna")] == [b"anna"]
        assert _rights(people.all()) == {
            "anna": ("admin", None),
            "carl": ("viewer", ("a",)),
        }
        # They may have ended, or been used.
        assert Sessions(file, 1e9, 1e9).find(secret) is None
        assert people.link(code) is None


def _join(people: People, name: str, role: Role) -> None:
    code = people.make_link(role=role, seconds=60)
    people.join(code, name, _key(name, name.encode()))


def _key(name: str, key_id: bytes) -> Passkey:
    return Passkey(key_id, name, b"public", 0, 0.0, None)


def _rights(people: list[Person]) -> dict[str, tuple[Role, tuple[str, ...] | None]]:
    return {person.id: (person.role, person.agents) for person in people}
