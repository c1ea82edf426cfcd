"""`toolcell repl` in a real terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...support.terminal import Terminal
from ...support.toolcell_command import toolcell

REPL = ("repl", "--backend", "subprocess")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    with opened(tmp_path) as terminal:
        yield terminal


def opened(folder: Path, *options: str) -> Terminal:
    terminal = Terminal(
        *(*REPL, "--history", str(folder / "history"), *options), folder=folder
    )
    terminal.expect(">>> ")
    return terminal


def say(terminal: Terminal, text: str, prompt: str = "\n>>> ") -> str:
    """Type a line; return what is shown until the next prompt."""
    terminal.send(f"{text}\n")
    terminal.expect(f"{text}\n")
    shown = terminal.expect(prompt.lstrip("\n"))
    return shown.removesuffix(prompt.lstrip("\n")).strip("\n")


def test_what_is_typed_runs_and_stays(terminal: Terminal, tmp_path: Path) -> None:
    assert say(terminal, "x = 41") == ""
    assert say(terminal, "x + 1") == "42"
    assert say(terminal, "print('no line end', end='')") == "no line end"
    assert say(terminal, "'text'") == "'text'"
    assert say(terminal, "object") == "<class 'object'>"
    assert "ZeroDivisionError" in say(terminal, "1 / 0")
    assert say(terminal, "x") == "41"
    terminal.send(":quit\n")
    assert terminal.wait() == 0


def test_a_program_may_have_many_lines(terminal: Terminal) -> None:
    assert say(terminal, "def double(n):", prompt="... ") == ""
    assert say(terminal, "    return 2 * n", prompt="... ") == ""
    say(terminal, "")
    assert say(terminal, "double(21)") == "42"
    assert say(terminal, "[1,", prompt="... ") == ""
    assert say(terminal, "2]") == "[1, 2]"
    assert "SyntaxError" in say(terminal, "1 +* 2")


def test_ctrl_c_interrupts_the_code_and_not_the_tool(terminal: Terminal) -> None:
    say(terminal, "x = 5")
    terminal.send("print('o' + 'n'); any(0 for _ in iter(int, 1))\n")
    terminal.expect("on\n")
    terminal.send("\x03")
    assert "cancelled" in terminal.expect(">>> ")
    assert say(terminal, "x") == "5"

    # What is typed and not sent is dropped.
    terminal.send("x = 99")
    terminal.expect("x = 99")
    terminal.press("\x03", ">>> ")
    assert say(terminal, "x") == "5"


def test_ctrl_c_is_not_lost_before_the_code_has_begun(terminal: Terminal) -> None:
    terminal.send("any(0 for _ in iter(int, 1))\n")
    terminal.expect("\n")
    terminal.send("\x03")
    terminal.expect(">>> ")


def test_code_that_will_not_stop_is_stopped(terminal: Terminal) -> None:
    say(terminal, "open('f', 'w').close()")
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    terminal.send(
        f"{deaf}; print('o' + 'n', flush=True); any(0 for _ in iter(int, 1))\n"
    )
    terminal.expect("on\n")
    terminal.send("\x03")
    assert "variables are lost" in terminal.expect(">>> ")
    assert "f" in say(terminal, ":files")
    assert "NameError" in say(terminal, "signal")


def test_forks_can_be_gone_back_to(terminal: Terminal) -> None:
    say(terminal, "x = 1")
    assert "fork 1" in say(terminal, ":fork")
    say(terminal, "x = 2; open('made', 'w').close()")
    assert say(terminal, ":fork").endswith("fork 2")
    say(terminal, "x = 3")
    assert say(terminal, ":rollback") == "back at fork 2"
    assert say(terminal, "x") == "2"
    assert "made" in say(terminal, ":files")
    say(terminal, ":rollback 1")
    assert say(terminal, "x") == "1"
    assert say(terminal, ":files") == ""
    say(terminal, ":rollback 2")
    assert say(terminal, "x") == "2"
    assert "no fork 9" in say(terminal, ":rollback 9")


def test_commands_say_what_they_are(terminal: Terminal) -> None:
    helped = say(terminal, ":help")
    for name in (":files", ":fork", ":rollback", ":quit"):
        assert name in helped
    assert "no command :nonsense" in say(terminal, ":nonsense")
    assert "takes nothing more" in say(terminal, ":fork x")
    terminal.send("\x04")
    assert terminal.wait() == 0


def test_artifacts_are_saved_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with opened(tmp_path, "--out", str(out)) as terminal:
        say(terminal, "import os; os.mkdir('artifacts')")
        made = say(terminal, "_ = open('artifacts/a.txt', 'w').write('one')")
        again = say(terminal, "0")
        say(terminal, "_ = open('artifacts/a.txt', 'w').write('two')")

    assert f"saved as {out / '2' / 'a.txt'}" in made.replace("\n", "")
    assert again == "0"
    found = {path.read_text() for path in out.rglob("a.txt")}
    assert found == {"one", "two"}


def test_what_was_typed_is_there_the_next_time(tmp_path: Path) -> None:
    with opened(tmp_path) as terminal:
        say(terminal, "x = 'kept in the history'")
        terminal.send(":quit\n")
        terminal.wait()
    with opened(tmp_path) as terminal:
        # Up: the last line is `:quit`, the one before it the assignment.
        terminal.send("\x1b[A\x1b[A\n")
        terminal.expect("kept in the history")
        terminal.expect(">>> ")
        assert say(terminal, "x") == "'kept in the history'"

    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600


def test_a_lost_cell_begins_anew(terminal: Terminal) -> None:
    say(terminal, "x = 1")
    said = say(terminal, "import os; os.kill(os.getpid(), 9)")
    assert "killed, SIGKILL" in said
    assert "variables are lost" in said
    assert "NameError" in say(terminal, "x")


@pytest.mark.promise("E-78")
def test_output_cannot_act_on_the_terminal(terminal: Terminal) -> None:
    say(terminal, r"'\x1b]0;title\x07'")
    say(terminal, r"print('\x1b[2J\x1b]52;c;aGk=\x07')")
    say(terminal, r"class C: __repr__ = lambda self: '\x1b[2J'", prompt="... ")
    say(terminal, "")
    shown = say(terminal, "C()")

    assert "\\u{1b}[2J" in shown


def test_lines_may_come_from_a_pipe() -> None:
    lines = b"x = 20\nfor i in (1, 2):\n    x += i\n\nx\n:fork\n:rollback\n"
    done = toolcell(*REPL, stdin=lines)

    assert done.returncode == 0, done.stderr
    assert done.stdout == b"23\nfork 1\nback at fork 1\n"
