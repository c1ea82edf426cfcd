"""The commands of a host as a user meets them."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from toolcell.guard import AuditLog
from toolcell.host import HostConfig
from toolcell.host.terminal.user_name import account_name

from ...support.toolcell_command import toolcell
from .conftest import Command, Done

SUM = '{"expression": "6 * 7"}'
LIST_FILES = '{"command": "ls"}'


@pytest.fixture
def host(command: Command) -> Command:
    """Commands in a folder with the configuration that `init` writes."""
    assert command("init").code == 0
    return command


def test_what_init_writes_is_safe_and_never_overwritten(command: Command) -> None:
    assert command("init", "--json").json == {"path": "toolcell.toml"}
    config = HostConfig.from_file("toolcell.toml", environ={})
    again = command("init")

    assert config.profile == "production"
    assert config.sandbox.minimum_isolation == "confined"
    assert config.sandbox.network.mode == "none"
    assert config.tools.python == ()
    assert config.audit.path is not None
    [policy] = config.all_policies()
    assert policy.budgets
    assert policy.rate_limits
    assert again.code == 2
    assert "a file toolcell.toml already" in again.err


def test_a_call_and_its_exit_codes(host: Command) -> None:
    as_agent = ("--agent", "assistant")
    good = host("call", "calculate", *as_agent, "--args", SUM)
    code = '{"code": "print(6 * 7)"}'
    cell = host("call", "run_python", *as_agent, "--args", code, "--json")

    assert good == Done(0, "42\n", "")
    assert (cell.code, cell.json["content"]["stdout"]) == (0, "42\n")
    for arguments, exit_code, told in (
        (("calculate", *as_agent, "--args", '{"x": 1}'), 2, "tool.validation"),
        (("calculate", *as_agent, "--args", "[1]"), 2, "such as --args"),
        (("calculate", *as_agent, "--args", '{"a": NaN}'), 2, "such as --args"),
        (("calculate", "--agent", "nobody"), 2, "tool.not_found"),
        (("calculate", *as_agent, "--args", '{"expression": "1/0"}'), 1, "error"),
        (("run_shell", *as_agent, "--args", LIST_FILES, "--wait", "0"), 3, "denied"),
        (("calculate", *as_agent, "--config", "none.toml"), 2, "toolcell init"),
    ):
        done = host("call", *arguments)
        assert (done.code, done.out) == (exit_code, ""), arguments
        assert told in done.err


@pytest.mark.promise("E-78")
def test_nothing_that_a_terminal_obeys_is_printed(host: Command) -> None:
    code = json.dumps({"code": "print('\\x1b[2J\\u202e')"})
    done = host("call", "run_python", "--agent", "assistant", "--args", code)
    unseen = host("call", "x\x1b[2J", "--agent", "a\x1b[2J")
    seen = [done.out, unseen.err, host("audit", "tail").out]

    assert (done.code, unseen.code) == (0, 2)
    assert not [text for text in seen if "\x1b" in text or "\u202e" in text]


def test_tools_are_listed_shown_and_exported(host: Command) -> None:
    names = [line.split("\t")[0] for line in host("tools", "list").out.splitlines()]
    of_agent = host("tools", "list", "--agent", "assistant", "--json").json
    of_nobody = host("tools", "list", "--agent", "nobody", "--json")
    shown = host("tools", "show", "run_python", "--json").json

    assert names == ["calculate", "get_today_date", "run_python", "run_shell"]
    assert [tool["name"] for tool in of_agent] == names
    assert (of_nobody.code, of_nobody.out) == (2, "")
    assert (shown["tags"], shown["version"]) == (["code"], "1.0.0")
    assert "definition_hash" in host("tools", "show", "run_python").out
    for shape, key in (
        ("mcp", "inputSchema"),
        ("anthropic", "input_schema"),
        ("openai", "function"),
    ):
        schema = host("tools", "schema", "calculate", "--for", shape, "--json").json
        assert key in schema
    missing = host("tools", "show", "calculat")
    assert missing.code == 2
    assert "did you mean calculate" in missing.err


def test_looking_makes_nothing(host: Command, tmp_path: Path) -> None:
    host("tools", "list")
    host("policy", "check")

    assert [path.name for path in tmp_path.iterdir()] == ["toolcell.toml"]


def test_policies_are_checked(host: Command, tmp_path: Path) -> None:
    good = host("policy", "check", "--json").json
    (tmp_path / "bad.toml").write_text("[[policies]]\nagent_id = 'a'\nalow = []")
    bad = host("policy", "check", "bad.toml")

    assert (good["ok"], good["agents"]) == (True, ["assistant"])
    assert bad.code == 2
    assert "line 3, column 1" in bad.err


def test_a_decision_is_explained_and_costs_nothing(host: Command) -> None:
    as_agent = ("--agent", "assistant")
    before = host("budget", "--json").json
    allowed = host("policy", "explain", "calculate", *as_agent, "--args", SUM, "--json")
    shell = ("policy", "explain", "run_shell", *as_agent, "--args", LIST_FILES)
    asked = host(*shell, "--json")
    denied = host("policy", "explain", "rm", *as_agent)

    assert (allowed.code, allowed.json["verdict"]) == (0, "allow")
    assert (asked.code, asked.json["rule"]) == (3, "assistant.ask[0]")
    assert denied.code == 3
    assert "not_allowed" in denied.out
    assert host("budget", "--json").json == before


def test_what_is_left_is_shown(host: Command) -> None:
    rate, day = "assistant 60 calls/60 s", "assistant wall_ms/day"
    before = host("budget", "--json").json["assistant"]
    host("call", "calculate", "--agent", "assistant", "--args", SUM)
    after = host("budget", "--agent", "assistant", "--json").json["assistant"]

    assert (before[rate], after[rate]) == (60, 59)
    assert before[day] == 3_600_000
    assert after[day] <= before[day]
    assert rate in host("budget").out
    assert host("budget", "--agent", "nobody").code == 2


def test_a_person_approves_what_another_process_asks_for(
    host: Command, tmp_path: Path
) -> None:
    outcome: list[Any] = []
    call = ("call", "run_shell", "--agent", "assistant", "--args", LIST_FILES)

    def ask() -> None:
        outcome.append(toolcell(*call, "--config", str(tmp_path / "toolcell.toml")))

    asking = threading.Thread(target=ask)
    asking.start()
    while not (waiting := host("approvals", "list", "--json").json):
        assert asking.is_alive()
    request = waiting[0]["id"]
    shown = host("approvals", "show", request)
    listed = host("approvals", "list")
    seen = ("--seen", waiting[0]["digest"])
    done = host("approvals", "approve", request, *seen, "--by", "anna", "--json")
    asking.join(60)

    assert 'arguments: {"command": "ls"}' in shown.out
    assert listed.out.startswith(f"{request}\tassistant\trun_shell")
    answer = {"request": request, "answer": "approve", "approver": "anna"}
    assert done.json.items() > answer.items()
    assert outcome[0].returncode == 0, outcome[0].stderr
    assert host("approvals", "list", "--json").json == []
    again = host("approvals", "approve", request, *seen, "--by", "anna")
    assert (again.code, "no longer waits" in again.err) == (2, True)
    assert "its state is used" in host("approvals", "show", request).err


def test_a_person_denies_with_a_reason(host: Command) -> None:
    shell = ("call", "run_shell", "--agent", "assistant", "--args", LIST_FILES)
    assert host(*shell, "--wait", "0.01").code == 3
    [request] = host("approvals", "list", "--json").json
    seen = ("--seen", request["digest"])
    own = host("approvals", "approve", request["id"], *seen, "--by", "Assistant")
    done = host("approvals", "deny", request["id"], "--by", "anna", "--reason", "no")
    after = host(*shell)

    assert (own.code, "may not answer" in own.err) == (2, True)
    assert (done.code, done.out) == (0, f"reject: {request['id']}\n")
    assert after.code == 3
    assert "no" in json.loads(after.err)["error"]["details"]["detail"]
    assert host("approvals", "show", "none").code == 2


@pytest.mark.promise("A19")
def test_hidden_parts_are_opened_before_they_are_approved(host: Command) -> None:
    code = "echo 1 # -----BEGIN PRIVATE KEY-----\necho hidden"
    arguments = json.dumps({"command": code})
    shell = ("call", "run_shell", "--agent", "assistant", "--args", arguments)
    assert host(*shell, "--wait", "0.01").code == 3
    [request] = host("approvals", "list", "--json").json
    approve = ("approvals", "approve", request["id"], "--by", "anna")
    show = ("approvals", "show", request["id"])
    shown, unseen = host(*show), host(*approve)
    closed = host(*approve, "--seen", request["digest"])
    opened = host(*show, "--reveal", "--by", "anna", "--json").json
    done = host(*approve, "--seen", opened["digest"])

    assert [part["path"] for part in request["hidden"]] == [f"command[9:{len(code)}]"]
    assert "echo hidden" not in shown.out + host("approvals", "list").out
    assert (unseen.code, "approvals show" in unseen.err) == (2, True)
    assert (closed.code, "--reveal" in closed.err) == (2, True)
    assert (opened["arguments"], opened["hidden"]) == ({"command": code}, [])
    assert done.code == 0
    assert host(*shell, "--json").json["content"]["stdout"] == "1\nhidden\n"
    assert "approval_opened" in host("audit", "tail").out


def test_edited_arguments_are_what_runs(host: Command) -> None:
    shell = ("call", "run_shell", "--agent", "assistant", "--args", LIST_FILES)
    assert host(*shell, "--wait", "0.01").code == 3
    [request] = host("approvals", "list", "--json").json
    edited = ("--args", '{"command": "echo instead"}', "--by", "anna")
    assert host("approvals", "approve", request["id"], *edited).code == 0

    assert host(*shell, "--json").json["content"]["stdout"] == "instead\n"


def test_an_account_is_one_of_several_people(
    host: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path("toolcell.toml")
    two = 'ask = [{ tools = ["run_shell"], approvers = 2 }]'
    config.write_text(config.read_text().replace('ask = ["run_shell"]', two))
    shell = ("call", "run_shell", "--agent", "assistant", "--args", LIST_FILES)
    assert host(*shell, "--wait", "0.01").code == 3
    [request] = host("approvals", "list", "--json").json
    approve = ("approvals", "approve", request["id"], "--seen", request["digest"])
    own = host(*approve)
    named = host(*approve, "--by", "berta")
    monkeypatch.setenv("LOGNAME", "berta")
    pretended = host(*approve)
    monkeypatch.delenv("LOGNAME")
    again = host(*approve)
    [shown] = host("approvals", "list", "--json").json
    denied = host("approvals", "deny", request["id"], "--by", "berta")

    assert (request["approvers"], request["approved_by"]) == (2, [])
    assert own.out == f"approve: {request['id']} (1 of 2 people)\n"
    assert [each.code for each in (own, named, pretended, again)] == [0, 2, 2, 2]
    assert shown["approved_by"] == [account_name()]
    assert denied.code == 0


def test_what_a_person_approved_is_withdrawn(host: Command) -> None:
    shell = ("call", "run_shell", "--agent", "assistant", "--args", LIST_FILES)
    assert host(*shell, "--wait", "0.01").code == 3
    [request] = host("approvals", "list", "--json").json
    approve = ("approvals", "approve", request["id"], "--seen", request["digest"])
    assert host(*approve, "--by", "anna").code == 0
    done = host("approvals", "withdraw", "Anna", "--by", "eva")
    again = host("approvals", "withdraw", "anna", "--json")
    waits = host(*shell, "--wait", "0.01")
    nobody = host("approvals", "withdraw", "-")

    assert done.out == "withdrawn: 1 approval, 0 grants\n"
    assert again.json == {"person": "anna", "requests": [], "grants": []}
    assert (waits.code, nobody.code) == (3, 2)
    assert host("approvals", "list", "--json").json == [request]
    assert "approvals_withdrawn\t\t\tAnna by eva" in host("audit", "tail").out


def test_approvals_need_a_place_that_is_shared(
    host: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("memory.toml").write_text("")
    done = host("approvals", "list", "--config", "memory.toml")

    assert done.code == 2
    assert "name a folder in [state]" in done.err


def test_the_audit_log_is_shown_and_verified(host: Command) -> None:
    host("call", "calculate", "--agent", "assistant", "--args", SUM)
    good = host("audit", "verify", "--json")
    head = good.json["head"]
    anchored = host("audit", "verify", "--anchor", head)
    last = host("audit", "tail", "--lines", "1", "--json").json
    shown = host("audit", "tail").out.splitlines()

    assert (good.code, good.json["records"]) == (0, 2)
    assert (last["event"], last["status"]) == ("outcome", "ok")
    assert [line.split("\t")[2] for line in shown] == ["decision", "outcome"]
    assert "anchored" in anchored.out

    log = Path(".toolcell/audit.jsonl")
    log.write_text(log.read_text().replace("calculate", "run_shell"))
    edited = host("audit", "verify", "--json")
    assert (edited.code, edited.json["ok"]) == (1, False)
    log.write_text("")
    assert host("audit", "verify", "--anchor", head).code == 1
    assert host("audit", "verify", "--file", "none.jsonl").code == 2
    assert host("audit", "tail", "--file", "none.jsonl").code == 2


@pytest.mark.promise("A22")
def test_a_forged_log_without_a_key_does_not_pass_for_one_with_it(
    host: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "a-key-of-sixteen-or-more"
    with AuditLog("true.jsonl", key=key.encode()) as log:
        log.append("hello")
    with AuditLog("forged.jsonl") as log:
        log.append("hello")

    def verify(name: str, *more: str) -> int:
        return host("audit", "verify", "--file", f"{name}.jsonl", *more).code

    monkeypatch.setenv("KEY", key)
    named = ("--key", "env:KEY")
    assert [verify("true", *named), verify("forged", *named)] == [0, 1]
    assert [verify("true"), verify("forged")] == [1, 5]
    told = host("audit", "verify", "--file", "forged.jsonl", "--json")
    assert (told.json["keyed"], "without a key" in told.err) == (False, True)
    monkeypatch.setenv("TOOLCELL__AUDIT__KEY", "env:KEY")
    assert [verify("true"), verify("forged")] == [0, 1]
    monkeypatch.delenv("KEY")
    assert verify("forged") == 2


def test_the_tail_tells_who_answered(host: Command) -> None:
    shell = ("call", "run_shell", "--agent", "assistant", "--args", LIST_FILES)
    host(*shell, "--wait", "0.01")
    [request] = host("approvals", "list", "--json").json
    seen = ("--seen", request["digest"])
    host("approvals", "approve", request["id"], *seen, "--by", "anna")

    assert "approved by anna" in host("audit", "tail").out


def test_the_tail_goes_back_through_rotated_files(host: Command) -> None:
    with AuditLog("long.jsonl", rotate_bytes=4_096) as log:
        for number in range(100):
            log.append("note", number=number)
    shown = host("audit", "tail", "--file", "long.jsonl", "--lines", "60", "--json")
    records = [json.loads(line) for line in shown.out.splitlines()]

    assert len(records) == 60
    assert len({record["event"] for record in records}) == 2
    numbers = [record["number"] for record in records if record["event"] == "note"]
    assert numbers == list(range(100 - len(numbers), 100))


def test_a_log_with_a_key_is_verified_with_it(
    host: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCELL__AUDIT__KEY", "env:KEY")
    monkeypatch.setenv("KEY", "a-key-of-sixteen-or-more")
    with AuditLog("other.jsonl", key=b"another-key-of-sixteen") as log:
        log.append("hello")
    host("call", "calculate", "--agent", "assistant", "--args", SUM)

    assert host("audit", "verify").code == 0
    monkeypatch.setenv("TOOLCELL__AUDIT__PATH", "other.jsonl")
    assert host("audit", "verify").code == 1
    monkeypatch.delenv("KEY")
    missing = host("audit", "verify")
    assert (missing.code, "env:KEY is not set" in missing.err) == (2, True)


@pytest.mark.parametrize("group", ["tools", "policy", "approvals", "audit"])
def test_every_command_says_what_it_does(command: Command, group: str) -> None:
    done = command(group, "--help")

    assert done.code == 0
    assert "--help" in done.out


OWN = """
import os
from toolcell.tools import tool

@tool
def chatty() -> int:
    "Prints in three ways."
    print("printed")
    os.write(1, b"written")
    os.system("echo echoed")
    return 42
"""


def test_what_a_tool_prints_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "own_tools.py").write_text(OWN)
    config = tmp_path / "toolcell.toml"
    config.write_text(
        "[tools]\npython = ['own_tools:chatty']\n"
        "[[policies]]\nagent_id = 'a'\nallow = ['chatty']"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    options = ("--agent", "a", "--json", "--config", str(config))
    done = toolcell("call", "chatty", *options, env=environ)

    assert json.loads(done.stdout)["content"] == 42
    assert all(said in done.stderr for said in (b"printed", b"written", b"echoed"))


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf"])
def test_nobody_waits_for_such_a_time(host: Command, seconds: str) -> None:
    as_agent = ("--agent", "assistant", "--args", SUM)
    done = host("call", "calculate", *as_agent, f"--wait={seconds}", "--out", "out")

    assert (done.code, done.out) == (2, "")
    assert "cannot wait" in done.err
    assert not Path("out").exists()


@pytest.mark.parametrize(("name", "exit_code"), [("none", 2), ("run_shell", 3)])
def test_a_call_that_did_not_run_leaves_no_folder(
    host: Command, name: str, exit_code: int
) -> None:
    as_agent = ("--agent", "assistant", "--args", LIST_FILES, "--wait", "0")

    assert host("call", name, *as_agent, "--out", "out").code == exit_code
    assert not Path("out").exists()
