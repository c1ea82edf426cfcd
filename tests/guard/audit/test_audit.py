"""The audit log: one line an event, chained, and any change to it is found."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from toolcell.core import AuditError, ConfigError, InvalidInputError, ToolCall
from toolcell.guard import (
    AuditHead,
    AuditLog,
    CallFacts,
    Decision,
    Redactor,
    verify_audit,
)
from toolcell.guard.audit.chain import EMPTY, LINE_BYTES, Sealer

from ...support.corpora import naughty_strings

KEY = b"0123456789abcdef"


def written(folder: Path, count: int = 6, **options: Any) -> tuple[Path, AuditHead]:
    """Return a log with some records, and the head that was kept."""
    path = folder / "audit.jsonl"
    with AuditLog(
        path, clock=itertools.count(1_700_000_000).__next__, **options
    ) as log:
        for number in range(count):
            log.append("decision", run="r", number=number, tool=f"tool_{number}")
        return path, log.head()


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def kinds(path: Path, *anchors: AuditHead, key: bytes | None = None) -> list[str]:
    report = verify_audit(path, anchors=anchors, key=key)
    return [problem.kind for problem in report.problems]


def test_a_record_is_one_line_that_names_the_one_before(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    records = [json.loads(line) for line in lines_of(path)]

    assert [record["seq"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["prev"] for record in records[1:]] == [
        record["hash"] for record in records[:-1]
    ]
    assert records[0] == {
        "seq": 1,
        "time": "2023-11-14T22:13:20.000000Z",
        "event": "decision",
        "run": "r",
        "number": 0,
        "tool": "tool_0",
        "prev": "0" * 64,
        "hash": records[0]["hash"],
    }
    assert head == AuditHead(6, records[-1]["hash"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_decision_and_outcome_are_recorded(tmp_path: Path) -> None:
    call = ToolCall(id="c1", name="pay", arguments={"sum": 3}, agent_id="a")
    facts = CallFacts(version="2", definition_hash="d" * 64, run_id="r")
    decision = Decision(
        verdict="allow", reason="allowed", rule="a.allow[0]", policy_version="7"
    )
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        subject = log.subject(call, facts, "h")
        log.decision(call, facts, decision, subject=subject)
        log.outcome(
            subject,
            status="error",
            duration_ms=1.23456,
            cost={"usd": "0.01", "calls": 1},
            error_kind="tool.execution",
            result_hash=log.digest({"password": "hunter2"}),
        )
        assert log.digest({"password": "x"}) == log.digest({"password": "y"})
        assert log.digest({"a": 1, "b": 2}) == log.digest({"b": 2, "a": 1})
    first, second = (json.loads(line) for line in lines_of(path))

    shared = {"agent_id": "a", "run_id": "r", "tool": "pay", "tool_version": "2"}
    shared |= {"call_id": "c1", "hold_id": "h", "definition_hash": "d" * 64}
    assert shared.items() <= first.items()
    assert shared.items() <= second.items()
    assert first["event"] == "decision"
    assert (first["verdict"], first["reason"]) == ("allow", "allowed")
    assert (first["rule"], first["policy_version"]) == ("a.allow[0]", "7")
    assert first["arguments"] == {"sum": 3}
    assert (second["event"], second["status"]) == ("outcome", "error")
    assert (second["duration_ms"], second["error_kind"]) == (1.235, "tool.execution")
    assert second["cost"] == {"usd": "0.01", "calls": 1}


def test_what_is_anchored_is_printed(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with AuditLog(path) as log:
        kept = log.head()
        log.append("decision")
        log.append("decision")

    report = verify_audit(path, anchors=[kept])
    assert (report.ok, report.records) == (True, 8)
    assert (report.anchored, report.unanchored) == (((1, 6),), ((7, 8),))
    assert str(report) == (
        "records 1-6: anchored\nrecords 7-8: chained, not anchored\nok"
    )
    assert AuditHead.parse(f" {kept}\n") == kept
    with pytest.raises(InvalidInputError, match="not the head"):
        AuditHead.parse("6:abc")


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    path, head = written(tmp_path, 2)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for change in (b"x", b"\n"):
            changed = whole[:at] + change + whole[at + 1 :]
            path.write_bytes(changed)

            assert verify_audit(path, anchors=[head]).ok is (changed == whole), at


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda ls: ls[:2] + ls[3:], ["gap"]),
        (lambda ls: ls[1:], ["gap"]),
        (lambda ls: [ls[0], ls[2], ls[1], *ls[3:]], ["gap", "order", "gap"]),
        (lambda ls: [*ls[:3], ls[2], *ls[3:]], ["order"]),
        (lambda ls: [ls[0], ls[1].replace(b"tool_1", b"tool_9"), *ls[2:]], ["edited"]),
        (lambda ls: [*ls[:2], b"{}\n", *ls[2:]], ["unreadable"]),
        (lambda ls: [*ls[:2], b"{" + b"x" * 200_000 + b"\n", *ls[2:]], ["unreadable"]),
        (lambda ls: [*ls, b'{"seq":7,"ti'], ["torn"]),
        (lambda ls: ls[:4], ["truncated"]),
        (lambda ls: [], ["truncated"]),
        (lambda ls: [*ls, *ls], ["order"]),
    ],
)
def test_each_kind_of_damage_has_its_name(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], found: list[str]
) -> None:
    path, head = written(tmp_path)
    path.write_bytes(b"".join(change(lines_of(path))))

    assert kinds(path, head) == found
    assert not verify_audit(path, anchors=[head]).ok
    assert "does not verify" in str(verify_audit(path, anchors=[head]))


def test_ranges_end_where_the_chain_does(tmp_path: Path) -> None:
    path, head = written(tmp_path, 10)
    lines = lines_of(path)
    kept = AuditHead(3, json.loads(lines[2])["hash"])
    lines[5] = lines[5].replace(b"tool_5", b"tool_x")
    path.write_bytes(b"".join(lines))

    report = verify_audit(path, anchors=[kept])
    assert (report.anchored, report.unanchored) == (((1, 3),), ((4, 5), (7, 10)))
    report = verify_audit(path, anchors=[head, kept])
    assert (report.anchored, report.unanchored) == (((1, 3), (7, 10)), ((4, 5),))
    assert [(problem.kind, problem.line) for problem in report.problems] == [
        ("edited", 6)
    ]


def forged(count: int, key: bytes | None = None) -> bytes:
    """Return a whole log, well chained, that the guard never wrote."""
    head, lines = EMPTY, []
    for _ in range(count):
        line, digest = Sealer(key).seal(head, '"event":"decision","verdict":"allow"')
        head = AuditHead(head.seq + 1, digest)
        lines.append(line)
    return b"".join(lines)


def test_a_log_written_anew_needs_a_kept_head_to_be_found(tmp_path: Path) -> None:
    path, head = written(tmp_path)
    path.write_bytes(forged(8))

    assert kinds(path) == []
    assert verify_audit(path).anchored == ()
    assert kinds(path, head) == ["rewritten"]


@given(st.data())
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_handling_of_lines_goes_unseen(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "audit.jsonl"
    path.unlink(missing_ok=True)
    path, head = written(tmp_path)
    lines = lines_of(path)
    order = data.draw(st.lists(st.integers(0, 5), max_size=12))
    path.write_bytes(b"".join(lines[index] for index in order))

    report = verify_audit(path, anchors=[head])
    assert report.ok is (order == [0, 1, 2, 3, 4, 5])


@pytest.mark.promise("E-107")
def test_lines_that_look_like_records_do_not_verify(tmp_path: Path) -> None:
    """What the log says, the guard has said."""
    path, head = written(tmp_path, key=KEY)
    real = path.read_bytes()
    last = AuditHead(head.seq, head.hash)
    for line in (
        lines_of(path)[2],
        Sealer(None).seal(last, '"verdict":"allow"')[0],
        Sealer(b"another key 1234").seal(last, '"verdict":"allow"')[0],
        b'{"seq":7,"verdict":"allow","prev":"%b"}\n' % head.hash.encode(),
    ):
        path.write_bytes(real + line)

        assert kinds(path, key=KEY) != []
        with pytest.raises(AuditError, match=r"verify|cut"):
            AuditLog(path, key=KEY)
    path.write_bytes(real)
    assert kinds(path, head, key=KEY) == []
    assert set(kinds(path, key=b"another key 1234")) == {"edited"}


@pytest.mark.promise("E-106")
@pytest.mark.corpus
def test_an_event_is_one_line_whatever_it_says(tmp_path: Path) -> None:
    texts = [*naughty_strings(), '"}\n{"seq":2', "\x1b[2J", "\u202e\u2066", "\x7f\x85"]
    texts += ["\u2028\u2029", "\r", "\0", '","hash":"' + "0" * 64 + '"}\n']
    path = tmp_path / "audit.jsonl"
    plain = Redactor()
    with AuditLog(path) as log:
        for text in texts:
            log.append("decision", run=text, **{"a": text, "b": {text: [text]}})
    lines = lines_of(path)

    assert len(lines) == len(texts)
    assert verify_audit(path).ok
    for line, text in zip(lines, texts, strict=True):
        assert line[:-1].isascii()
        assert line[:-1].decode().isprintable()
        record = json.loads(line)
        assert (record["run"] if text else "") == text
        assert record["a"] == plain.text(text)
        assert record["b"] == plain({text: [text]})


@pytest.mark.promise("E-106")
def test_a_name_of_an_agent_cannot_break_a_line(tmp_path: Path) -> None:
    hostile = 'a"}\n{"\u202e\x1b[31m\x7f'
    call = ToolCall(id=hostile, name=hostile, agent_id=hostile, parent_id=hostile)
    facts = CallFacts(run_id=hostile, version=hostile, definition_hash=hostile)
    decision = Decision(
        verdict="deny",
        reason="denied",
        detail=hostile,
        rule=hostile,
        remaining={"\n": 1},
    )
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as log:
        log.decision(call, facts, decision)
        log.outcome(
            log.subject(call, facts), status=hostile, duration_ms=0, cost={hostile: 1}
        )

    assert verify_audit(path).ok
    assert [json.loads(line)["agent_id"] for line in lines_of(path)] == [hostile] * 2
    assert path.read_text().replace("\n", "").isprintable()


@pytest.mark.promise("E-108")
def test_no_secret_is_written_at_any_level(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    canary = "canary-7f3a9c"
    token = "ghp_" + "a1B2" * 9
    call = ToolCall(
        id=token,
        name="http_get",
        agent_id="a",
        arguments={
            "url": f"https://me:{canary}@example.org/?api_key={canary}",
            "headers": [{"name": "Authorization", "value": canary}],
            "password": canary,
            "nested": [{"client_secret": {"value": canary}}, f"Bearer {token}", token],
            token: canary,
            "text": canary,
        },
    )
    decision = Decision(verdict="deny", reason="denied", detail=f"not {token}")
    path = tmp_path / "audit.jsonl"
    with (
        caplog.at_level("DEBUG"),
        AuditLog(path, redactor=Redactor(secrets=[SecretStr(canary)])) as log,
    ):
        log.decision(call, CallFacts(), decision)
        log.append("note", value=SecretStr(canary), text=canary, **{token: canary})
    shown = path.read_text() + caplog.text

    assert canary not in shown
    assert token not in shown
    assert verify_audit(path).ok


@pytest.mark.promise("R55")
def test_a_run_that_had_its_records_goes_on_in_the_next_hour(tmp_path: Path) -> None:
    now = [1_700_000_000.0]
    with AuditLog(tmp_path / "a", run_records=2, clock=lambda: now[0]) as log:
        for _ in range(2):
            for _ in range(2):
                log.append("decision", run="token-1")
            with pytest.raises(AuditError, match="of this hour"):
                log.append("decision", run="token-1")
            log.append("decision", run="token-2")
            now[0] += 3600


@pytest.mark.promise("E-109")
def test_a_run_cannot_flood_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    call = ToolCall(id="c", name="t", agent_id="a")
    facts, decision = CallFacts(run_id="r"), Decision(verdict="deny", reason="denied")
    with AuditLog(path, run_records=10) as log:
        for number in range(1000):
            if number < 10:
                log.decision(call, facts, decision)
            else:
                with pytest.raises(AuditError, match="10 records"):
                    log.decision(call, facts, decision)
        # A call that was allowed is not cut off from its outcome, nor another run.
        log.outcome(log.subject(call, facts), status="ok", duration_ms=1, cost={})
        log.decision(call, CallFacts(run_id="other"), decision)
    records = [json.loads(line) for line in lines_of(path)]

    assert [r["records"] for r in records if r["event"] == "omitted"] == [
        2**n for n in range(10)
    ]
    assert len(records) == 10 + 10 + 2
    assert records[10]["run"] == "a/r"


def test_a_large_field_is_replaced_by_its_size_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    call = ToolCall(
        id="c", name="t", arguments={f"a{n}": "\u00e9 " * 2000 for n in range(50)}
    )
    decision = Decision(verdict="deny", reason="denied")
    with AuditLog(path) as log:
        log.decision(call, CallFacts(), decision)
        log.append("note", text="x " * 1_000_000, small=1)
    first, second = (json.loads(line) for line in lines_of(path))

    assert max(map(len, lines_of(path))) <= LINE_BYTES
    assert first["arguments"].startswith("[224")
    assert "bytes left out, sha256 " in first["arguments"]
    assert first["tool"] == "t"
    assert second["text"].endswith("characters left out]")
    assert verify_audit(path).ok


def test_no_text_makes_a_line_longer_than_lines_may_be(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    # Each of these becomes six characters, so that no line end or escape gets through.
    arguments: dict[str, Any] = {f"a{n}": "\x7f" * 4000 for n in range(5)}
    call = ToolCall(id="\x7f" * 200, name="t", arguments=arguments)
    with AuditLog(path) as log:
        log.decision(call, CallFacts(), Decision(verdict="deny", reason="denied"))
        log.append("note", **arguments)
    first, second = (json.loads(line) for line in lines_of(path))

    assert verify_audit(path).ok
    assert "bytes left out, sha256 " in first["arguments"]
    assert first["call_id"] == call.id
    assert second["a4"].startswith("[24002 bytes left out")


def test_records_of_a_call_name_that_call_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    allow = Decision(verdict="allow", reason="allowed")
    calls = [
        ToolCall(id=f"c{n}", name=f"t{n % 2}", agent_id=f"a{n % 3}", parent_id="p")
        for n in range(6)
    ]
    with AuditLog(path) as log:
        for call in calls:
            facts = CallFacts(run_id=f"run of {call.id}")
            subject = log.subject(call, facts, "the same")
            log.decision(call, facts, allow, subject=subject)
        for call in calls:
            facts = CallFacts(run_id=f"run of {call.id}")
            subject = log.subject(call, facts, "the same")
            log.outcome(subject, status="ok", duration_ms=1, cost={})
    records = [json.loads(line) for line in lines_of(path)]

    for call, record in zip(calls * 2, records, strict=True):
        told = (record["call_id"], record["tool"], record["agent_id"])
        assert told == (call.id, call.name, call.agent_id)
        assert record["run_id"] == f"run of {call.id}"
        assert (record["parent_id"], record["hold_id"]) == ("p", "the same")


def test_bad_use_is_told(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    log = AuditLog(path)
    with pytest.raises(InvalidInputError, match="hash, seq"):
        log.append("note", seq=1, hash="x")
    log.close()
    log.close()
    with pytest.raises(AuditError, match="is closed"):
        log.append("note")
    for key in (b"short", SecretStr("short")):
        with pytest.raises(ConfigError, match="16"):
            AuditLog(path, key=key)
        with pytest.raises(ConfigError, match="16"):
            verify_audit(path, key=key)
    with pytest.raises(ConfigError, match="run_records"):
        AuditLog(path, run_records=0)
    with pytest.raises(AuditError, match="cannot be read"):
        verify_audit(tmp_path / "none")


def test_only_a_file_of_its_own_is_written(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(path)
    os.mkfifo(fifo)
    for wrong in (link, fifo, tmp_path, tmp_path / "none" / "audit.jsonl"):
        with pytest.raises(ConfigError, match=r"cannot be opened|not a file"):
            AuditLog(wrong)
