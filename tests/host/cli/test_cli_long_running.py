"""Commands of a host that go on for a while, or make something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError
from toolcell.host import Host, HostConfig

from ...support.child import Child
from ...support.terminal import Terminal
from ...support.toolcell_command import TOOLCELL, toolcell

CONFIG = """
[sandbox]
backend = "subprocess"
[tools]
builtin = ["arithmetic", "code"]
[state]
folder = "state"
[[policies]]
agent_id = "a"
allow = ["run_python"]
ask = ["calculate"]
"""
SUM = '{"expression": "6 * 7"}'
HIDDEN_SUM = '{"expression": "6 * 7 # token=x-or-y-and-z"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toolcell.toml").write_text(CONFIG)
    return tmp_path


NAMELESS = """
import pwd
from toolcell.host import main

pwd.getpwuid = {}.__getitem__
main()
"""
"""The command, run by a uid that the machine has no name of."""


class Asking:
    """A command that calls a tool and waits for a person."""

    def __init__(self, folder: Path, run: str = "r", sum_: str = SUM) -> None:
        words = ("call", "calculate", "--agent", "a", "--args", sum_, "--run", run)
        self._process = Child(
            [TOOLCELL, *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def told(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def outcome(self) -> tuple[int, str]:
        out, _ = self._process.communicate(timeout=120)
        return self._process.returncode, out


class Watching:
    """`approvals watch --json`, spoken to in lines."""

    def __init__(self, folder: Path) -> None:
        self.process = Child(
            [TOOLCELL, "approvals", "watch", "--json", "--by", "anna"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def say(self, line: str | dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        text = line if isinstance(line, str) else json.dumps(line)
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self.told()


@pytest.fixture
def watching(folder: Path) -> Iterator[Watching]:
    watch = Watching(folder)
    yield watch
    watch.process.kill()
    watch.process.communicate()


def test_answers_may_come_as_lines(folder: Path, watching: Watching) -> None:
    first = Asking(folder, "1")
    request = watching.told()
    assert request["arguments"] == {"expression": "6 * 7"}
    instead = {"answer": "approve", "arguments": {"expression": "1 + 1"}}
    done = watching.say({"request": request["id"], **instead})
    assert done == {"request": request["id"], "answer": "approve", "approver": "anna"}
    assert first.outcome() == (0, "2\n")

    second = Asking(folder, "2")
    request = watching.told()
    for bad in ("nonsense", '{"request": "x"}', {"request": "none", "answer": "deny"}):
        assert watching.say(bad)["error"] == "invalid_input"
    assert watching.say({"request": request["id"], "answer": "deny"})
    assert second.outcome()[0] == 3


@pytest.mark.promise("A19")
def test_lines_open_what_is_hidden(folder: Path, watching: Watching) -> None:
    asking = Asking(folder, sum_=HIDDEN_SUM)
    request = watching.told()
    approve = {"request": request["id"], "answer": "approve"}
    assert watching.say(approve)["error"] == "invalid_input"
    closed = watching.say({**approve, "seen": request["digest"]})
    assert "hidden part" in closed["message"]
    opened = watching.say({"request": request["id"], "answer": "reveal"})
    assert watching.say({**approve, "seen": opened["digest"]})["answer"] == "approve"

    assert [each["characters"] for each in request["hidden"]] == [12]
    assert "x-or-y-and-z" not in json.dumps(request)
    assert opened["arguments"] == json.loads(HIDDEN_SUM)
    assert asking.outcome() == (0, "42\n")


@pytest.mark.promise("A19")
def test_a_person_opens_what_is_hidden_in_a_terminal(folder: Path) -> None:
    with Terminal("approvals", "watch", "--by", "anna", folder=folder) as terminal:
        asking = Asking(folder, sum_=HIDDEN_SUM)
        shown = terminal.expect("leaves it waiting: ")
        terminal.send("o\n")
        opened = terminal.expect("leaves it waiting: ")
        terminal.send("y\n")
        terminal.expect("approve: ")
        assert asking.outcome() == (0, "42\n")

    assert "x-or-y-and-z" not in shown and "[o]pen" in shown
    assert "x-or-y-and-z" in opened


def test_watching_ends_with_its_input(folder: Path) -> None:
    watch = ("approvals", "watch", "--json", "--by", "anna", "--config")
    answer = b'{"request": "none", "answer": "deny"}\n'
    done = toolcell(*watch, str(folder / "toolcell.toml"), stdin=answer)

    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["error"] == "invalid_input"


def test_watching_ends_when_nobody_reads(watching: Watching) -> None:
    process = watching.process
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.write("nonsense\n")
    process.stdin.flush()

    assert process.wait(120) == 141


def test_a_user_without_a_name_answers(folder: Path, tmp_path: Path) -> None:
    asking = Asking(folder)
    request = asking.told().split()[-1]
    config = str(folder / "toolcell.toml")
    show = toolcell("approvals", "show", request, "--json", "--config", config)
    seen = ("--seen", json.loads(show.stdout)["digest"])
    answer = ["approvals", "approve", request, *seen, "--json", "--config", config]
    nobody = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS, *answer],
        capture_output=True,
        check=False,
        env=nobody,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["approver"] == f"uid:{os.getuid()}"
    assert asking.outcome() == (0, "42\n")


def test_a_call_says_what_it_waits_for(folder: Path) -> None:
    asking = Asking(folder)
    told = asking.told()
    command = told.removeprefix("toolcell: waits for a person: ").split()
    config = ("--config", str(folder / "toolcell.toml"))
    shown = toolcell(*command[1:], *config).stdout.decode()
    seen = shown.rstrip().rpartition("seen: ")[2]
    approve = ("approvals", "approve", command[-1], "--seen", seen)
    done = toolcell(*approve, "--by", "anna", *config)

    assert command[:3] == ["toolcell", "approvals", "show"]
    assert done.returncode == 0
    assert asking.outcome() == (0, "42\n")


def test_a_person_answers_in_a_terminal(folder: Path) -> None:
    watch = ("approvals", "watch", "--by", "anna")
    with Terminal(*watch, folder=folder) as terminal:
        asking = Asking(folder)
        shown = terminal.expect("leaves it waiting: ")
        terminal.send("y\n")
        terminal.expect("approve: ")
        assert asking.outcome() == (0, "42\n")
        again = Asking(folder, "another")
        terminal.expect("leaves it waiting: ")
        terminal.send("n\n")
        terminal.expect("reject: ")
        assert again.outcome()[0] == 3
        terminal.send("\x03")
        assert terminal.wait() == 130

    assert 'arguments: {"expression":"6 * 7"}' in shown.replace('": ', '":')


def test_what_was_typed_before_a_question_answers_nothing(folder: Path) -> None:
    with Terminal("approvals", "watch", "--by", "anna", folder=folder) as terminal:
        terminal.send("y\ny\ny\n")
        terminal.expect("y")
        asking = Asking(folder)
        terminal.expect("leaves it waiting: ")
        terminal.send("n\n")
        terminal.expect("reject: ")
        assert asking.outcome()[0] == 3


def test_to_watch_takes_a_terminal_or_lines(folder: Path) -> None:
    done = toolcell(
        "approvals", "watch", "--config", str(folder / "toolcell.toml"), stdin=b"y\n"
    )

    assert done.returncode == 2
    assert b"--json takes answers" in done.stderr


def test_artifacts_of_a_call_are_saved(folder: Path) -> None:
    code = "import os\nos.mkdir('artifacts')\nopen('artifacts/a.txt', 'w').write('hi')"
    out = folder / "out"
    words = ("--agent", "a", "--args", json.dumps({"code": code}), "--json")
    config = ("--config", str(folder / "toolcell.toml"))
    done = toolcell("call", "run_python", *words, *config, "--out", str(out))
    again = toolcell("call", "run_python", *words, *config, "--out", str(out))

    [artifact] = json.loads(done.stdout)["content"]["artifacts"]
    assert artifact["reference"] == str(out / "a.txt")
    assert (out / "a.txt").read_text() == "hi"
    assert again.returncode == 2
    assert b"name a new one" in again.stderr


def test_this_machine_is_measured() -> None:
    done = toolcell("bench", "--runs", "3", "--backend", "subprocess", "--json")
    told = json.loads(done.stdout)
    ratios = {row["work"]: row["ratio"] for row in told["rows"]}

    assert done.returncode == 0
    assert told["runs"] == 3
    assert ratios[told["baseline"]] == 1
    assert len(ratios) == 4
    assert min(ratios.values()) > 0


def completed(folder: Path, line: str) -> list[str]:
    """Return what bash would offer at the end of a line."""
    environ = {
        **os.environ,
        "_TOOLCELL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run(
        [TOOLCELL], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout.split()


def test_a_shell_completes_commands_tools_and_agents(folder: Path) -> None:
    assert completed(folder, "toolcell appr") == ["approvals"]
    assert "watch" in completed(folder, "toolcell approvals ")
    assert completed(folder, "toolcell call run_") == ["run_python", "run_shell"]
    assert completed(folder, "toolcell call calculate --agent ") == ["a"]
    (folder / "toolcell.toml").write_text("no configuration")
    assert completed(folder, "toolcell call run_") == []


def package(folder: Path, name: str, value: str) -> None:
    """Lay down an installed package with an entry point of the name `loud`."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(f"[toolcell.tools]\nloud = {value}\n")


@pytest.mark.anyio
async def test_tools_come_from_entry_points_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loud_tools.py").write_text(
        'def shout(text: str) -> str:\n    """Shout."""\n    return text.upper()\n'
    )
    package(tmp_path, "loud-package", "loud_tools:shout")
    policy = {"agent_id": "a", "allow": ["*"]}

    def config(*names: str) -> HostConfig:
        return HostConfig.model_validate(
            {"tools": {"entry_points": names}, "policies": [policy]}
        )

    async with Host(config(), environ={}) as host:
        assert host.tools("a") == []
    async with Host(config("loud"), environ={}) as host:
        result = await host.call("shout", {"text": "hey"}, agent_id="a")
    assert result.content == "HEY"
    assert "loud_tools" in sys.modules

    with pytest.raises(ConfigError, match="0 packages have 'quiet'"):
        async with Host(config("quiet"), environ={}):
            pass
    package(tmp_path, "louder-package", "loud_tools:shout")
    with pytest.raises(ConfigError, match="2 packages have 'loud'"):
        async with Host(config("loud"), environ={}):
            pass
