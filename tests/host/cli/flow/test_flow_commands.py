"""`toolcell flow`: threads are run, looked at, answered and ended by commands."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from toolcell.core.text.printable import has_hidden

from ....support.child import Child
from ....support.toolcell_command import TOOLCELL, toolcell
from ..conftest import Command
from .conftest import CONFIG, Flow, other


@pytest.mark.promise("flow-47")
def test_a_question_is_asked_and_answered_by_commands(folder: Path) -> None:
    given = '{"item": "books", "password": "hunter2"}'
    paused = other("run", "order", "--input", given, "--thread", "o1", code=5)
    [question] = paused["questions"]
    assert paused["status"] == "interrupted"
    (folder / "my_graphs.py").rename(folder / "gone.py")

    # These need no code of the graphs.
    [row] = other("list", "--status", "interrupted")
    assert (row["thread"], row["graph"]) == ("o1", "order")
    assert other("list", "--graph", "other") == []
    shown = other("show", "o1")
    assert shown["questions"][0]["payload"] == {"question": "ship books?"}
    assert (shown["state"]["item"], "hunter2" in json.dumps(shown)) == ("books", False)
    assert [each["checkpoint"] for each in other("history", "o1")] == ["0"]
    wrong = other("answer", "o1", '"yes"', code=2)
    assert question["interrupt_id"] in wrong["error"]["message"]
    other("answer", "o1", "true", "--by", "bot", code=2)
    other(
        "answer", "o1", "true", "--by", "anna", "--question", question["interrupt_id"]
    )
    other("answer", "o1", "false", code=2)

    (folder / "gone.py").rename(folder / "my_graphs.py")
    done = other("resume", "o1")
    assert (done["status"], done["state"]["log"]) == ("done", ["ship: True"])
    [newest, _] = other("history", "o1", "--limit", "9")
    assert [answer["by"] for answer in newest["answers"]] == ["anna"]


@pytest.mark.promise("flow-30")
def test_a_call_is_approved_where_approvals_are(
    flow: Flow, command: Command, folder: Path
) -> None:
    """The process that asked is gone; `flow work` makes the call, once."""
    with (folder / "toolcell.toml").open("a") as config:
        config.write('[audit]\npath = "audit.jsonl"\n')
    paused = flow("run", "payment", "--thread", "p1", code=5)
    [question] = paused["questions"]
    assert question["kind"] == "approval"
    refused = flow("answer", "p1", "true", code=2)
    assert question["request_id"] in refused["error"]["hint"]
    assert command("flow", "work", "--once").out == ""
    [asked] = command("approvals", "list", "--json").json
    assert asked["id"] == question["request_id"]
    seen = ("--seen", asked["digest"], "--by", "anna")
    approve = ("approvals", "approve", asked["id"], *seen)
    assert command(*approve).code == 0
    assert command("flow", "work", "--once").out == "done\tp1\n"
    assert (folder / "effects.txt").read_text() == "30\n"
    assert flow("resume", "p1")["state"]["log"] == ["paid 30"]
    audit = (folder / "audit.jsonl").read_text().splitlines()
    [made] = [line for line in audit if '"approver":"anna"' in line and "p1" in line]
    assert '"pay"' in made


@pytest.mark.promise("flow-29")
@pytest.mark.parametrize(
    ("reply", "code", "log"),
    [
        (("approve",), 0, ["ship: True"]),
        (("approve", "--args", '{"answer": false}'), 0, ["ship: False"]),
        (("deny", "--reason", "not now"), 1, []),
    ],
    ids=["approved", "answered", "denied"],
)
def test_a_question_is_among_the_approvals(
    reply: tuple[str, ...],
    code: int,
    log: list[str],
    flow: Flow,
    command: Command,
) -> None:
    flow("run", "order", "--thread", "o1", code=5)
    [row] = command("approvals", "list", "--json").json
    assert row["tool"] == "interrupt"
    verb, *options = reply
    if verb == "approve":
        options += ["--seen", row["digest"]]
    assert command("approvals", verb, row["id"], "--by", "bot", *options).code == 2
    assert command("approvals", verb, row["id"], "--by", "anna", *options).code == 0

    done = flow("resume", "o1", code=code)
    assert done["state"]["log"] == log
    if code:
        assert done["error"]["kind"] == "flow.denied"


@pytest.mark.promise("flow-29")
@pytest.mark.parametrize("act", [("answer", "o1", "true"), ("cancel", "o1")])
def test_a_question_that_is_over_leaves_the_approvals(
    act: tuple[str, ...], flow: Flow, command: Command
) -> None:
    flow("run", "order", "--thread", "o1", code=5)
    flow("run", "order", "--thread", "o2", code=5)
    assert len(command("approvals", "list", "--json").json) == 2
    flow(*act)

    [row] = command("approvals", "list", "--json").json
    assert row["arguments"]["thread"] == "o2"


@pytest.mark.promise("flow-29")
def test_a_thread_is_cancelled_while_the_guard_lacks_a_secret(
    flow: Flow, command: Command, folder: Path
) -> None:
    flow("run", "order", "--thread", "o1", code=5)
    with (folder / "toolcell.toml").open("a") as config:
        config.write(
            '[[webhooks]]\nname = "h"\nurl = "https://h.test"\nsecret = "env:UNSET"\n'
        )
    done = command("flow", "cancel", "o1", "--json")

    assert (done.code, done.json["did"]) == (0, "cancelled")
    notice = json.loads(done.err)["notice"]
    assert notice.startswith("its requests stay among the approvals: ")
    assert "UNSET" in notice
    assert flow("list")[0]["status"] == "cancelled"


@pytest.mark.promise("flow-28")
def test_a_question_that_expired_goes_on_with_work(
    flow: Flow, command: Command
) -> None:
    flow("run", "hurried", "--thread", "h1", code=5)
    assert command("flow", "work", "--once").out == "failed\th1\n"
    assert flow("show", "h1")["status"] == "failed"
    assert flow("resume", "h1", code=1)["error"]["details"]["reason"] == "expired"


@pytest.mark.promise("flow-47")
def test_a_failure_a_fork_and_an_end_have_their_codes(
    flow: Flow, command: Command, folder: Path
) -> None:
    failed = flow("run", "broken", "--thread", "b1", code=1)
    assert "hunter2" not in json.dumps(failed)
    assert flow("resume", "b1", code=1)["status"] == "failed"
    flow("cancel", "b1")
    assert flow("resume", "b1", code=3)["status"] == "cancelled"
    made = flow("fork", "b1", "--update", '{"item": "pens"}', "--thread", "b2")
    assert made == {"thread": "b2", "forked_from": "b1"}
    assert flow("show", "b2")["state"]["item"] == "pens"
    assert flow("fork", "b1", "--goto", "nowhere", code=4)["error"]["kind"]


@pytest.mark.promise("R14")
def test_a_failure_in_the_log_does_not_act_on_the_terminal(folder: Path) -> None:
    failed = toolcell("flow", "run", "broken")

    assert failed.returncode == 1
    assert r"hunter2 \u{1b}]0;title\u{7}\u{9b}2J\u{202e}" in failed.stderr.decode()
    assert not has_hidden((failed.stdout + failed.stderr).decode())


def test_what_cannot_be_is_an_error_that_says_so(
    flow: Flow, command: Command, folder: Path
) -> None:
    for arguments, code in (
        (("show", "nobody"), 2),
        (("history", "nobody"), 2),
        (("resume", "nobody"), 2),
        (("cancel", "nobody"), 2),
        (("answer", "nobody", "1"), 2),
        (("run", "nothing"), 2),
        (("run", "order", "--input", "[]"), 2),
        (("run", "order", "--input", '{"item": 5}'), 2),
        (("answer", "o1"), 2),
        (("answer", "o1", "yes"), 2),
        (("answer", "o1", "1", "--deny"), 2),
    ):
        assert flow(*arguments, code=code)["error"]["hint"], arguments
    (folder / "toolcell.toml").write_text("")
    for line in ("list", "run order", "work"):
        assert "memory" in flow(*line.split(), code=2)["error"]["message"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("my_graphs:order", "my_graphs:pay"), "is no Graph"),
        (("my_graphs:order", "my_graphs:payment"), "two graphs"),
        (("my_graphs:order", "my_graphs:nothing"), "has no nothing"),
        (("my_graphs:order", "nowhere:order"), "cannot be imported"),
        (('agent = "bot"', 'agent = "nobody"'), "nobody"),
    ],
)
def test_graphs_that_cannot_be_had_are_refused(
    change: tuple[str, str], said: str, flow: Flow, folder: Path
) -> None:
    (folder / "toolcell.toml").write_text(CONFIG.replace(*change, 1))

    assert said in flow("run", "order", code=2)["error"]["message"]


@pytest.mark.promise("flow-32", "flow-47")
def test_people_see_tables_and_what_waits(flow: Flow, command: Command) -> None:
    ran = command("flow", "run", "order", "--input", '{"item": "\\u001b[31m"}')
    assert ran.code == 5
    assert "waits for question int_" in ran.err
    assert "a word of the graph's own" in ran.err
    assert json.loads(ran.out)["log"] == []
    [line] = command("flow", "list").out.splitlines()
    thread, graph, status, *_ = line.split("\t")
    assert (graph, status) == ("order", "interrupted")
    shown = command("flow", "show", thread).out
    assert "\x1b" not in shown + ran.out + ran.err
    assert "question int_" in shown
    assert command("flow", "history", thread).out.startswith("0\t")


@pytest.mark.promise("flow-47")
def test_work_runs_until_it_is_ended(
    flow: Flow, command: Command, folder: Path
) -> None:
    flow("run", "order", "--thread", "o1", code=5)
    arguments = [TOOLCELL, "flow", "work", "--json"]
    with Child(arguments, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        flow("answer", "o1", "true")
        assert json.loads(worker.stdout.readline())["status"] == "done"
        worker.send_signal(signal.SIGINT)
        assert worker.wait(120) == 128 + signal.SIGINT
