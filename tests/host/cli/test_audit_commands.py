"""Commands tell the audit log who calls, and what becomes of credentials."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolcell.guard import ApprovalStore, Approve, AuditLog, Grant, Reject
from toolcell.guard.spi import Rule
from toolcell.host.console.accounts.sessions import Sessions
from toolcell.host.operator.people import People, Person, Role
from toolcell.host.operator.people_file import PeopleFile
from toolcell.host.terminal.user_name import account_name

from ...conftest import run_apart
from ...support.console.people import join, passkey
from ...support.guard.desk import Desk
from ...support.mcp.served_hosts import AUDITED, CONFIG, records, written
from .conftest import Command

SUM = '{"expression": "6 * 7"}'
ONE = Rule(tools=["pay"])
ANNA = Approve(approver="anna")


@pytest.mark.promise("JC4", "JC10")
def test_commands_tell_who_called_and_made_tokens(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    command("call", "calculate", "--args", SUM, "--agent", "a")
    command("tokens", "create", "--agent", "a", "--operator")
    [token] = command("tokens", "list", "--json").json
    command("tokens", "revoke", token["id"])

    assert [record["caller"] for record in records(tmp_path, "decision")] == [
        f"user {account_name()}"
    ]
    made, gone = records(tmp_path, "token_created", "token_revoked")
    assert (made["agent_id"], made["operator"]) == ("a", "True")
    assert made["id"] == gone["id"] == token["id"]
    assert made["by"] == gone["by"] == account_name()
    lines = command("audit", "tail", "--lines", "2").out.splitlines()
    act = f"{token['id']} by {account_name()}"
    assert [line.split("\t")[-1] for line in lines] == [act, act]


@pytest.mark.promise("JC4")
def test_the_last_records_of_a_time_and_an_agent(
    command: Command, tmp_path: Path
) -> None:
    times = iter([0.0, 86_400.0 * 1, 86_400.0 * 2, 86_400.0 * 2])
    path = tmp_path / "audit.jsonl"
    with AuditLog(path, clock=lambda: next(times)) as log:
        for number, agent in enumerate(("a", "a", "a", "b")):
            log.append("note", agent_id=agent, number=number, tool=f"t{number}")

    def shown(*options: str) -> list[int]:
        done = command("audit", "tail", "--file", str(path), "--json", *options)
        return [json.loads(line)["number"] for line in done.out.splitlines()]

    assert shown("--since", "1970-01-02") == [1, 2, 3]
    assert shown("--since", "1970-01-03T01:00+01:00", "--agent", "a") == [2]
    assert shown("--agent", "a", "--lines", "2") == [1, 2]
    assert shown("--until", "1970-01-03") == [0, 1]
    assert shown("--since", "1970-01-02", "--until", "1970-01-03") == [1]
    assert shown("--tool", "t0") == [0]
    assert shown("--text", "T2 a") == [2]
    assert shown("--status", "failed") == shown("--reason", "budget") == []
    assert command("audit", "tail", "--since", "noon").code == 2


@pytest.mark.promise("JC4")
def test_who_ran_what_in_a_time(command: Command, tmp_path: Path) -> None:
    written(tmp_path, CONFIG)
    for agent, tool in (("a", "calculate"), ("b", "no_such"), ("a", "no_such")):
        command("call", tool, "--args", SUM, "--agent", agent)

    def shown(*options: str) -> list[tuple[str, str, str]]:
        done = command("records", "--json", *options)
        facts = map(json.loads, done.out.splitlines())
        return [(fact["agent_id"], fact["tool_name"], fact["status"]) for fact in facts]

    made, unknown = ("a", "calculate", "ok"), ("a", "no_such", "error")
    assert shown() == [made, ("b", "no_such", "error"), unknown]
    assert shown("--agent", "a") == [made, unknown]
    assert shown("--tool", "no_such", "--lines", "1") == [unknown]
    assert shown("--since", "2020-01-01", "--until", "9999-01-01", "--agent", "b")
    assert shown("--until", "2020-01-01") == shown("--since", "9999-01-01") == []
    [line] = command("records", "--agent", "a", "--tool", "calculate").out.splitlines()
    assert line.split("\t")[2:5] == ["a", "calculate", "ok"]
    assert shown("--status", "failed", "--text", "6 EXPRESSION 7") == shown(
        "--tool", "no_such"
    )
    assert shown("--text", "8") == shown("--reason", "budget") == []
    assert (
        command("records", "--csv", "--lines", "1")
        .out.splitlines()[1]
        .startswith("3,2")
    )
    for option in ("--since", "--status"):
        assert command("records", option, "noon").code == 2


def lost(folder: Path) -> None:
    """Lose the state of the host, but for its audit log."""
    shutil.rmtree(folder / "state")
    (folder / "audit.jsonl").rename(folder / "old.jsonl")


@pytest.mark.promise("JC5")
def test_a_restore_is_in_the_log_and_says_what_it_revives(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    command("tokens", "create", "--agent", "a")
    command("backup", str(tmp_path / "copy"))
    [token] = command("tokens", "list", "--json").json
    command("tokens", "revoke", token["id"])
    lost(tmp_path)
    done = command("restore", str(tmp_path / "copy"))

    assert "revoked since counts again" in done.err
    assert f"counts again token {token['id']}: a\n" in done.out
    [restored] = records(tmp_path, "restored")
    assert (restored["by"], restored["ended"]) == (account_name(), "")


@pytest.mark.promise("JC5")
def test_revoked_tokens_stay_revoked_after_a_restore(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    for label in ("kept", "gone"):
        command("tokens", "create", "--agent", "a", "--label", label)
    command("backup", str(tmp_path / "copy"))
    kept, gone = command("tokens", "list", "--json").json
    command("tokens", "revoke", gone["id"])
    lost(tmp_path)
    with (tmp_path / "old.jsonl").open("a") as log:
        log.write('{"torn')  # as a crash leaves it
    done = command("restore", str(tmp_path / "copy"), "--audit", "old.jsonl", "--json")
    now = {each["id"]: each for each in command("tokens", "list", "--json").json}
    [restored] = records(tmp_path, "restored")

    assert done.code == 0, done.err
    assert "counts again" not in done.err
    assert done.json["ended"] == [{"kind": "token", "id": gone["id"]}]
    assert [each["what"] for each in done.json["counts_again"]] == ["a, kept"]
    assert now[gone["id"]]["revoked_at"] is not None
    assert now[kept["id"]]["revoked_at"] is None
    assert restored["ended"] == f"token {gone['id']}"


@pytest.mark.promise("JC5")
def test_a_log_without_its_rotated_files_is_refused(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    command("tokens", "create", "--agent", "a")
    grow(tmp_path / "audit.jsonl", ago=3_600)
    command("backup", str(tmp_path / "copy"))
    before = len([*tmp_path.glob("audit.jsonl.*")])
    [token] = command("tokens", "list", "--json").json
    command("tokens", "revoke", token["id"])
    grow(tmp_path / "audit.jsonl")
    (tmp_path / "state").rename(tmp_path / "old")
    for path in tmp_path.glob("audit.jsonl*"):
        path.rename(path.with_name(path.name.replace("audit", "old")))
    parts = sorted(tmp_path.glob("old.jsonl.*"))
    aside = tmp_path / "aside"
    aside.mkdir()

    def restored(*without: Path) -> Any:
        for file in without:
            file.rename(aside / file.name)
        done = command("restore", "copy", "--audit", "old.jsonl", "--json")
        for file in without:
            (aside / file.name).rename(file)
        return done

    for lost in (parts[: before + 1], parts[1:2]):
        refused = restored(*lost)
        assert (refused.code, "move the rotated files" in refused.err) == (2, True)
        assert not (tmp_path / "state").exists()
    # Files of before the backup are not needed.
    assert before > 1
    done = restored(*parts[: before - 1])
    assert done.code == 0, done.err
    assert [each["id"] for each in done.json["ended"]] == [token["id"]]


def grow(path: Path, ago: float = 0) -> None:
    """Append records of some seconds ago until a log was rotated several times."""
    with AuditLog(path, rotate_bytes=4_096, clock=lambda: time.time() - ago) as log:
        for number in range(60):
            log.append("note", number=number)


@pytest.mark.parametrize("text", [None, "", "dear diary\n", "{}\n"])
def test_a_log_that_may_hide_a_revoked_token_is_refused(
    command: Command, tmp_path: Path, text: str | None
) -> None:
    written(tmp_path, AUDITED)
    command("tokens", "create", "--agent", "a")
    command("backup", str(tmp_path / "copy"))
    (tmp_path / "state").rename(tmp_path / "old")
    (tmp_path / "audit.jsonl").unlink()
    if text is not None:
        (tmp_path / "old.jsonl").write_text(text)
    done = command("restore", str(tmp_path / "copy"), "--audit", "old.jsonl")

    assert (done.code, "old.jsonl" in done.err) == (2, True)
    assert not (tmp_path / "state").exists()


@contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """Yield a guard with the approvals and the log of the configuration."""
    (folder / "state").mkdir(exist_ok=True)
    with AuditLog(folder / "audit.jsonl") as log:
        made = Desk(folder / "state/approvals.db", ONE, audit=log)
        with made.store:
            yield made


RESTORED = {
    "used": "used",
    "withdrawn": "pending",
    "kept": "approved",
    "rejected": "rejected",
    "later_used": "used",
    "later_approved": "pending",  # A person is asked anew.
    "revoked": "pending",
    "unneeded": "pending",
}
"""The statuses of requests after a restore, by what became of them before it."""


@pytest.mark.promise("JC5")
def test_answers_given_since_a_backup_stay_given(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    ids: dict[str, str] = {}
    grants: list[str] = []

    async def before() -> None:
        with desk(tmp_path) as made:
            for name in RESTORED:
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
            await made.approvals.end(ids["unneeded"], reason="the run is over")
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
        found = {name: store.get(ids[name]) for name in RESTORED}
        assert store.grants(0.0) == []
    assert {name: each and each.status for name, each in found.items()} == RESTORED
    assert (unneeded := found["unneeded"])
    assert unneeded.state(time.time()) == "ended"
    assert unneeded.reason == "the run is over"
    ended = {each["id"] for each in done.json["ended"]}
    stays = {"kept", "later_approved"}
    assert ended == {*grants, *(ids[name] for name in RESTORED if name not in stays)}
    assert done.json["counts_again"] == [
        {"kind": "approval", "id": ids["kept"], "what": "a, pay, anna"}
    ]
    restored = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[-1])
    assert ended == set(restored["ended"].replace(",", "").split()[1::2])


@pytest.mark.promise("JC5")
def test_people_removed_since_a_backup_stay_removed(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    (tmp_path / "state").mkdir()
    roles: dict[str, Role] = {"anna": "admin", "bert": "admin", "carl": "operator"}
    with PeopleFile(tmp_path / "state/people.db") as file:
        for name, role in roles.items():
            join(People(file), name, role)
        People(file).add_passkey(passkey("anna", b"stolen"))
        secret = Sessions(file, 1e9, 1e9).open("anna", "::1")
        code = People(file).make_link(role="admin", seconds=1e9)
    command("backup", "copy")
    manifest = json.loads((tmp_path / "copy/manifest.json").read_text())
    made_at = datetime.fromisoformat(manifest["made_at"]).timestamp()
    # carl was invited anew; bert was still in the file when the backup read it.
    for person, seconds in (("carl", 90), ("bert", 30)):
        clock = partial(float, made_at - seconds)
        with AuditLog(tmp_path / "audit.jsonl", clock=clock) as log:
            log.append("person_removed", by="anna", person=person)
    with AuditLog(tmp_path / "audit.jsonl") as log:
        stolen = passkey("anna", b"stolen").text
        log.append("passkey_removed", by="anna", person="anna", passkey=stolen)
        log.append("person_changed", person="carl", role="viewer", agents=["a"])
        # Rights that were given since do not come back.
        log.append("person_changed", person="carl", role="admin")
    lost(tmp_path)
    done = command("restore", "copy", "--audit", "old.jsonl")

    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if "again" in line] == [
        "ended again person bert",
        "ended again passkey anna",
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


@pytest.mark.promise("JC5")
def test_a_restore_that_cannot_end_what_was_ended_brings_nothing(
    command: Command, tmp_path: Path
) -> None:
    written(tmp_path, AUDITED)
    command("tokens", "create", "--agent", "a")
    with closing(sqlite3.connect(tmp_path / "state/people.db")) as file:
        file.execute("PRAGMA user_version = 9999")
    command("backup", "copy")
    lost(tmp_path)
    for _ in range(2):
        failed = command("restore", "copy", "--audit", "old.jsonl")
        assert (failed.code != 0, "people.db" in failed.err) == (True, True)
        assert "is there already" not in failed.err
        left = {path.name for path in (tmp_path / "state").iterdir()}
        assert (left, (tmp_path / "audit.jsonl").exists()) == (set(), False)


def _rights(people: list[Person]) -> dict[str, tuple[Role, tuple[str, ...] | None]]:
    return {person.id: (person.role, person.agents) for person in people}


@pytest.mark.promise("JC4")
def test_who_ran_what_yesterday_by_which_token(
    command: Command, tmp_path: Path
) -> None:
    noon = datetime.now(UTC).replace(hour=12, minute=0)
    days = [noon - timedelta(days=ago) for ago in (2, 1, 0)]
    times = iter([day.timestamp() for day in days])
    with AuditLog(tmp_path / "log", clock=lambda: next(times)) as log:
        for caller in ("token aa", "token bb", "token cc"):
            call = {"agent_id": "a", "tool": "run_python", "caller": caller}
            log.append("decision", **call, verdict="allow", reason="allowed")
    asked = ("--since", "yesterday", "--until", "today")
    [line] = command("audit", "tail", "--file", "log", *asked).out.splitlines()

    assert line.split("\t")[2:] == ["decision", "a", "run_python", "allow by token bb"]


@pytest.mark.promise("JC8")
def test_the_last_records_say_which_policies_are_in_force(
    command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        log.append("policies", version="a1", files=["more.toml"])
        log.append("policies_stale", version="a1", problem="more.toml: line 2")
    shown = command("audit", "tail", "--file", str(path)).out.splitlines()

    assert [line.split("\t")[-1] for line in shown] == [
        "version a1",
        "version a1 more.toml: line 2",
    ]
