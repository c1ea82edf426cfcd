"""Programs are shown as programs, output as on a terminal, errors by their line."""

from __future__ import annotations

import re
import time

import pytest
from markupsafe import Markup

from toolcell.core.text.printable import escaped
from toolcell.host.console.web import programs
from toolcell.host.console.web.programs import (
    MAX_COLOURED,
    Failure,
    failure,
    frames_of_tools,
    language_of,
    program,
    terminal,
)
from toolcell.host.console.web.templating import table

from ...support.console.client import Client
from ...support.console.person import Client as Person
from ...support.console.served import Service, runs_programs
from ...support.corpora import naughty_strings

CODE = runs_programs("coder")
FAILS = """\
def third(x):
    return x / 0 < 1

print("\\x1b[31mred\\x1b[0m\\n50%\\r99%", flush=True)
third(1)
"""

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAA"
    "AABJRU5ErkJggg=="
)
DRAWS = f"""
import base64
class Figure:
    def _repr_png_(self): return base64.b64decode("{PNG}")
class Frame:
    def _repr_html_(self):
        return "<table><tr><th>tea|cake<th>sum<tr><td><b>a&lt;i&gt;</b><td>7</table>"
display(Figure())
Frame()
"""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def unmarked(shown: Markup) -> str:
    """Return the text that a browser shows of markup."""
    return Markup(re.sub(r"<span class=\"[-a-z0-9 ]*\">|</span>", "", shown)).unescape()


@pytest.mark.promise("D2")
@pytest.mark.promise("D4")
@pytest.mark.promise("D13")
def test_a_program_that_fails_is_shown_with_its_line(
    service: Service, viewer: Client
) -> None:
    assert service.call("run_python", "coder", code=FAILS).result(60).status == "ok"
    found = service.host.executor.records.page(limit=1)[0].number
    page = viewer.page(f"/runs/{found}")
    _, table, listed = viewer.page("/runs").partition("Took")

    assert "ZeroDivisionError: division by zero, in line 2" in page
    assert "red\n99%\n" in page
    assert table
    assert "error" in listed
    assert " ok" not in listed


@pytest.mark.promise("D2")
def test_the_line_that_failed_is_marked() -> None:
    first, second = program("x = 1\nreturn 0", "python", failed=2).split("\n")

    assert first.startswith('<span class="n"></span>')
    assert second.startswith(
        '<span class="n failed"></span><span class="c-k">return</span> '
    )


@pytest.mark.promise("D2")
def test_markup_adds_no_text_and_hides_none() -> None:
    for text in [
        *naughty_strings(),
        "<b>&amp;\n\n x",
        "'''\nx\n'''",
        "a\u202eb\x1b[2J",
    ]:
        for shown in (program(text, "python"), program(text, "text"), program(text)):
            assert unmarked(shown) == escaped(text)
        assert unmarked(terminal(text)) == escaped(_COLOURS.sub("", text))


@pytest.mark.promise("D2")
@pytest.mark.parametrize(
    "hostile",
    [
        "echo $'" + r"\77" * 30,
        " \n" * 9_000,
        "match" + " " * 19_000 + "x",
        "1+" * 9_000,
        "<<a" * 6_000,
    ],
)
def test_no_program_keeps_the_console_busy(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns of lexers take long for texts that are written for them."""
    monkeypatch.setattr(programs, "MAX_COLOURED", 20_000)
    start = time.thread_time()
    for tool, argument in (("run_python", "code"), ("run_shell", "command")):
        assert unmarked(program(hostile, language_of(tool, argument))) == hostile

    assert time.thread_time() - start < 3


@pytest.mark.promise("D2")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;32mok\x1b[m.", '<span class="ansi-2 bold">ok</span>.'),
        ("\x1b[8;37;40mseen\x1b[0m", '<span class="ansi-7">seen</span>'),
        ("\x1b[31m<b>\x1b[39m</b>", '<span class="ansi-1">&lt;b&gt;</span>&lt;/b&gt;'),
        ("\x1b[38;5;1mx", "x"),
        ("\x1b[1ma\x1b[22mb", '<span class="bold">a</span>b'),
        ("\x1b]0;title\x07", "\\u{1b}]0;title\\u{7}"),
    ],
)
def test_output_has_the_colours_of_a_terminal(text: str, shown: str) -> None:
    assert terminal(text) == shown


def test_a_long_program_has_numbers_and_no_colours() -> None:
    code = "x = 1\n" * (MAX_COLOURED // 6 + 1)

    assert program(code, "python") == program(code)
    assert program(code).count('<span class="n">') == code.count("\n") + 1


OURS = f'  File "{__file__.split("/tests/")[0]}/tools/execution/x.py", line 9, in run\n'
THEIRS = '  File "/srv/app/pay.py", line 3, in pay\n    raise ValueError("no")\n'


@pytest.mark.promise("D13")
@pytest.mark.parametrize(
    ("traceback", "told"),
    [
        (
            f"Traceback:\n{OURS}{THEIRS}ValueError: no\n",
            Failure("ValueError: no", None),
        ),
        ('  File "/work/main.py", line 2, in f\nKeyError\n', Failure("KeyError", 2)),
        (
            '  File "/tmp/.runs/7/main-3.py", line 5, in <module>\n'
            '  File "/tmp/.runs/7/main-1.py", line 2, in f\nKeyError\n',
            Failure("KeyError", 5),
        ),
        (
            '  File "main.py", line 4, in <module>\n    exec("1/0")\n'
            '  File "<string>", line 1, in <module>\nZeroDivisionError: no\n',
            Failure("ZeroDivisionError: no", 4),
        ),
        (
            '  File "/work/main.py", line 3\n    a b\n      ^\nSyntaxError: bad\n',
            Failure("SyntaxError: bad", 3),
        ),
        (
            f"{THEIRS}ValueError: x\nAll tests passed\n",
            Failure("ValueError: x", None),
        ),
        ("toolcell.core.errors.GuardDeniedError: no", Failure("no", None)),
        ("", Failure("", None)),
    ],
)
def test_a_failure_is_told_by_its_own_line(traceback: str, told: Failure) -> None:
    assert failure(traceback) == told


@pytest.mark.promise("D13")
def test_the_frames_of_a_tool_come_first() -> None:
    whole = f"Traceback:\n{OURS}{THEIRS}ValueError: no\n"

    assert frames_of_tools(whole) == f"{THEIRS}ValueError: no\n"
    assert frames_of_tools(f"{OURS}ValueError") == f"{OURS}ValueError"
    assert frames_of_tools("ValueError") == "ValueError"
    assert frames_of_tools(f"{THEIRS}{OURS}ValueError\n") == f"{THEIRS}ValueError\n"


@pytest.mark.promise("D2")
def test_figures_and_tables_of_a_run_are_shown(service: Service) -> None:
    viewer = Person(service, "viewer")
    assert service.call("run_python", "coder", code=DRAWS).result(60).status == "ok"
    [found] = service.host.executor.records.page(limit=1)
    path = f"/runs/{found.number}"
    page = viewer.get(path).text
    address = page.partition('<img class="figure" src="')[2].partition('"')[0]
    answer = viewer.get(address)
    policy = answer.headers["content-security-policy"]

    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert policy == "sandbox; default-src 'none'"
    assert '<th scope="col">tea|cake</th><th scope="col">sum</th>' in page
    assert (
        '<td data-label="tea|cake">a&lt;i&gt;</td><td data-label="sum">7</td>' in page
    )
    pictures = service.host.live_calls.pictures
    assert pictures is not None
    pictures.run("DELETE FROM pictures")
    assert "A picture of 70 bytes, which is not kept." in viewer.get(path).text
    assert viewer.get(address).status_code == 404


@pytest.mark.parametrize(
    ("text", "heading", "rows", "rest"),
    [
        ("| a | b |\n| --- | --- |\n| 1 | 2 |", ["a", "b"], [["1", "2"]], ""),
        (
            "| a\\|b |\n| --- |\n| c\\\\ |\n\n(more)",
            ["a|b"],
            [["c\\"]],
            "(more)",
        ),
        ("| a |\n| --- |\n| 1", ["a"], [], "| 1"),
        ("| a |\n| --- |\n| 1 | 2 |", ["a"], [["1", "2"]], ""),
    ],
)
def test_a_table_of_a_program_is_read(
    text: str, heading: list[str], rows: list[list[str]], rest: str
) -> None:
    assert table(text) == (heading, rows, rest)


@pytest.mark.parametrize("text", ["", "| a |", "| a |\nb", "a\n| --- |", "| | |\n|"])
def test_other_text_is_no_table(text: str) -> None:
    assert table(text) is None
