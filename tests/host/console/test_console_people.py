"""People, one-time links and sessions, with a clock of the test."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from toolcell.core import InvalidInputError, StoreUnavailableError
from toolcell.host.console.accounts.sessions import MAX_FAILURES, Failures, Sessions
from toolcell.host.operator.people import People
from toolcell.host.operator.people_file import PeopleFile

from ...support.console.people import NOW, join, passkey
from ...support.guard.worker import SetClock


def made(change: AbstractContextManager[None]) -> None:
    with change:
        pass


def test_a_link_is_good_once(file: PeopleFile) -> None:
    people = People(file)
    code = people.make_link(role="approver", seconds=60, agents=("a",))

    assert people.link(code) is not None
    person = people.join(code, "anna", passkey("anna"))

    assert (person.role, person.agents) == ("approver", ("a",))
    assert people.link(code) is None
    with pytest.raises(InvalidInputError, match="good no longer"):
        people.join(code, "berta", passkey("berta", b"other"))
    assert [each.id for each in people.all()] == ["anna"]


def test_a_link_ends(file: PeopleFile, clock: SetClock) -> None:
    people = People(file)
    code = people.make_link(role="admin", seconds=600)

    clock.now += 599
    assert people.link(code) is not None
    clock.now += 1
    assert people.link(code) is None


def test_a_new_first_link_replaces_the_old_one(file: PeopleFile) -> None:
    people = People(file)
    invited = people.make_link(role="viewer", seconds=600)
    first = people.make_link(role="admin", seconds=600, local=True)
    second = people.make_link(role="admin", seconds=600, local=True)

    assert people.link(first) is None
    assert people.link(second) is not None
    assert people.link(invited) is not None


def test_what_fails_half_way_changes_nothing(file: PeopleFile) -> None:
    people = People(file)
    join(people)
    code = people.make_link(role="viewer", seconds=60)

    with pytest.raises(InvalidInputError, match="registered already"):
        people.join(code, "berta", passkey("berta", b"anna"))

    assert people.link(code) is not None
    assert people.find("berta") is None


def test_a_taken_name_is_refused(file: PeopleFile) -> None:
    people = People(file)
    join(people)
    code = people.make_link(role="admin", seconds=60)

    with pytest.raises(InvalidInputError, match="taken"):
        people.join(code, "anna", passkey("anna", b"of a thief"))
    assert people.passkey(b"of a thief") is None


@pytest.mark.parametrize("name", ["", "Anna", "auto:ci", "a b", "-a", "a" * 65, "ä"])
def test_a_name_is_plain(file: PeopleFile, name: str) -> None:
    people = People(file)
    code = people.make_link(role="admin", seconds=60)

    with pytest.raises(InvalidInputError, match="small letters"):
        people.join(code, name, passkey(name))


def test_somebody_can_always_manage_people(file: PeopleFile) -> None:
    people = People(file)
    join(people)
    join(people, "berta", "viewer")

    acts: list[Callable[[], object]] = [
        lambda: made(people.setting_role("anna", "viewer", None)),
        lambda: made(people.removing("anna")),
        lambda: people.remove_passkey("anna", b"anna"),
    ]
    for act in acts:
        with pytest.raises(InvalidInputError, match="nobody could manage"):
            act()
    made(people.setting_role("berta", "admin", None))
    made(people.removing("anna"))
    assert [each.id for each in people.all()] == ["berta"]


def test_a_session_ends_with_time_and_idleness(
    file: PeopleFile, clock: SetClock
) -> None:
    join(People(file))
    sessions = Sessions(file, 12 * 3600, 1800)
    secret = sessions.open("anna", "127.0.0.1")

    for _ in range(24):
        clock.now += 1799
        found = sessions.find(secret)
        assert found is not None
        sessions.note_use(found)
    clock.now = NOW + 12 * 3600
    assert sessions.find(secret) is None

    idle = sessions.open("anna", "127.0.0.1")
    clock.now += 1800
    assert sessions.find(idle) is None


def test_a_session_ends_with_its_person(file: PeopleFile) -> None:
    people = People(file)
    join(people)
    join(people, "berta")
    sessions = Sessions(file, 60, 60)
    secret = sessions.open("anna", "")

    made(people.setting_role("anna", "viewer", ("a",)))
    found = sessions.find(secret)
    assert found is not None and found.person.role == "viewer"
    made(people.removing("anna"))
    assert sessions.find(secret) is None
    assert people.passkeys("anna") == []


def test_a_touch_is_fresh_for_five_minutes(file: PeopleFile, clock: SetClock) -> None:
    join(People(file))
    sessions = Sessions(file, 3600, 3600)
    secret = sessions.open("anna", "")

    clock.now += 300
    found = sessions.find(secret)
    assert found is not None and sessions.fresh_seconds(found) == 0
    sessions.note_touch(found)
    found = sessions.find(secret)
    assert found is not None and sessions.fresh_seconds(found) == 300


def test_each_session_has_its_own_times_and_form_token(
    file: PeopleFile, clock: SetClock
) -> None:
    join(People(file))
    sessions = Sessions(file, 12 * 3600, 1800)
    secrets = [sessions.open("anna", ""), sessions.open("anna", "")]
    clock.now += 1000
    used, other = (sessions.find(secret) for secret in secrets)
    assert used is not None and other is not None
    sessions.note_use(used)
    sessions.note_touch(used)
    after, untouched = (sessions.find(secret) for secret in secrets)
    assert after is not None and untouched is not None

    assert used.form_token != other.form_token
    assert (after.used_at, after.fresh_at) == (clock.now, clock.now)
    assert (untouched.used_at, untouched.fresh_at) == (NOW, NOW)
    sessions.close(used.id)
    assert [sessions.is_open(each.id) for each in (used, other)] == [False, True]


def test_what_has_ended_leaves_the_file(file: PeopleFile, clock: SetClock) -> None:
    join(People(file))
    sessions, failures = Sessions(file, 600, 600), Failures(file)
    sessions.open("anna", "")
    failures.add("1.2.3.4")
    clock.now += 600
    sessions.open("anna", "")
    failures.add("1.2.3.4")

    for table in ("sessions", "failures"):
        assert file.run(f"SELECT count(*) FROM {table}") == [(1,)]


def test_failures_are_limited_for_a_minute(file: PeopleFile, clock: SetClock) -> None:
    failures = Failures(file)
    for _ in range(MAX_FAILURES):
        assert failures.seconds_to_wait("1.2.3.4") == 0
        failures.add("1.2.3.4")

    assert failures.seconds_to_wait("1.2.3.4") == 60
    assert failures.seconds_to_wait("1.2.3.5") == 0
    clock.now += 60
    assert failures.seconds_to_wait("1.2.3.4") == 0


def test_the_file_has_no_secret(tmp_path: Path, file: PeopleFile) -> None:
    people = People(file)
    join(people)
    secrets = [
        people.make_link(role="admin", seconds=60),
        Sessions(file, 60, 60).open("anna", ""),
    ]

    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"anna" in kept
    assert not any(secret.encode() in kept for secret in secrets)
    assert stat.S_IMODE((tmp_path / "people.db").stat().st_mode) == 0o600


def test_a_file_that_is_gone_is_told(tmp_path: Path, file: PeopleFile) -> None:
    (tmp_path / "people.db").unlink()

    with pytest.raises(StoreUnavailableError, match="removed or replaced"):
        People(file).all()
