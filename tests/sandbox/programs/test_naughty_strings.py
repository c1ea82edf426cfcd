"""Strings and bytes that break careless software come back as they are."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from toolcell.core.text.printable import escaped
from toolcell.sandbox import ExecutionResult, Session
from toolcell.sandbox.cell.wire.frames import FrameError, strict_json
from toolcell.sandbox.spi import OpaqueValue

from ...conftest import BackendRow
from ...support.cells.engine_stand_in import is_asked
from ...support.child import Child
from ...support.corpora import naughty_strings, records
from ...support.polling import until
from ...support.toolcell_command import TOOLCELL, options_of, toolcell

pytestmark = [pytest.mark.anyio, pytest.mark.corpus]

# Marks that reorder text on a terminal.
REORDERING = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e") | set(
    "\u2066\u2067\u2068\u2069"
)


def joined(strings: list[str]) -> bytes:
    """Return strings as a program writes them: a NUL after each."""
    assert not any("\0" in string for string in strings)
    return "".join(f"{string}\0" for string in strings).encode()


async def test_strings_as_input_output_and_value(cell: Session) -> None:
    strings = naughty_strings()
    code = (
        "import sys\n"
        "for each in texts:\n"
        "    print(each, end='\\0')\n"
        "    print(each, end='\\0', file=sys.stderr)\n"
        "texts"
    )
    result = await cell.run(code, fresh=True, inputs={"texts": strings})

    assert (result.status, result.value) == ("ok", strings)
    assert result.stdout_bytes == result.stderr_bytes == joined(strings)
    assert result.stdout.encode() == result.stderr.encode() == joined(strings)


async def test_strings_as_keys_and_as_an_exception(cell: Session) -> None:
    strings = naughty_strings()
    keys = {each: number for number, each in enumerate(strings)}
    inputs = {"keys": keys, "texts": strings}
    returned = await cell.run("keys", fresh=True, inputs=inputs)
    raised = await cell.run(
        "raise ValueError('\\0'.join([*texts, '']))", fresh=True, inputs=inputs
    )

    assert returned.value == keys
    assert raised.exception is not None
    assert raised.exception.message.encode() == joined(strings)


async def test_strings_in_the_program_itself(cell: Session) -> None:
    """As comments and literals; the source that a traceback shows is the program's."""
    strings = naughty_strings()
    comments = "".join(f"# {string}\n" for string in strings)
    literals = json.dumps(strings, ensure_ascii=False).replace("\x7f", "\\x7f")
    code = (
        f"{comments}texts = {literals}\nimport linecache\n"
        "print(''.join(linecache.getlines(__file__)), end='')\n"
        "texts"
    )
    result = await cell.run(code, fresh=True)

    assert (result.status, result.value) == ("ok", strings)
    # The runner ends the last line as an editor would.
    assert result.stdout_bytes.rstrip(b"\n") == code.encode()


async def test_a_traceback_shows_the_line_that_raised(cell: Session) -> None:
    comments = "".join(f"# {string}\n" for string in naughty_strings())
    result = await cell.run(f"{comments}1 / 0  # here", fresh=True)

    assert result.exception is not None
    assert "1 / 0  # here" in result.exception.traceback


async def test_strings_in_bash(cell: Session) -> None:
    """As environment variables, arguments and comments."""
    strings = naughty_strings()
    comments = "".join(f"# {string}\n" for string in strings)
    values = await bash_values(cell, strings, comments)

    assert values == joined(strings)


async def test_injected_commands_are_literal_values(cell: Session) -> None:
    payloads = [
        record["payload"]
        for record in records("path_and_command_payloads/payloads.jsonl")
        if record["kind"] == "command"
    ]
    assert len(payloads) == 252

    assert await bash_values(cell, payloads) == joined(payloads)
    code = "import subprocess\nsubprocess.run(['printf', r'%s\\0', *texts])\n0"
    result = await cell.run(code, fresh=True, inputs={"texts": payloads})
    assert (result.status, result.stderr) == ("ok", "")
    assert result.stdout_bytes == joined(payloads)


async def bash_values(cell: Session, strings: list[str], head: str = "") -> bytes:
    """Return what bash makes of strings that it gets as inputs."""
    inputs: dict[str, Any] = {f"x{n}": each for n, each in enumerate(strings)}
    code = (
        f"{head}"
        "for ((i = 0; i < count; i++)); do\n"
        "    name=x$i value=${!name}\n"
        "    printf '%s\\0' \"$value\"\n"
        "    printf '%s\\0' \"$value\" >&2\n"
        "done"
    )
    result = await cell.run(
        code, fresh=True, language="bash", inputs={**inputs, "count": len(strings)}
    )

    assert result.status == "ok", result.stderr
    assert result.stdout_bytes == result.stderr_bytes
    return result.stdout_bytes


def test_a_pipe_gets_the_bytes_of_the_program(backend: BackendRow) -> None:
    strings = naughty_strings()
    code = (
        "import os\n"
        "print('\\0'.join([*texts, '']), end='', flush=True)\n"
        "os.write(1, bytes(range(256)))"
    )
    options = [*options_of(backend), "--input", f"texts={json.dumps(strings)}"]
    done = toolcell("run", "-", *options, stdin=code.encode())

    assert (done.returncode, done.stdout) == (0, joined(strings) + bytes(range(256)))


def test_json_is_one_line_that_holds_the_strings(backend: BackendRow) -> None:
    strings = naughty_strings()
    code = "import sys\nfor f in (sys.stdout, sys.stderr): print(*texts, file=f)\ntexts"
    options = [
        *options_of(backend),
        "--json",
        "--input",
        f"texts={json.dumps(strings)}",
    ]
    done = toolcell("run", "-", *options, stdin=code.encode())

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"\n") and done.stdout[:-1].isascii()
    assert not any(byte < 0x20 or byte == 0x7F for byte in done.stdout[:-1])
    result = json.loads(done.stdout)
    assert result["value"] == strings
    assert result["stdout"] == result["stderr"] == " ".join(strings) + "\n"


@pytest.mark.parametrize("stream", [1, 2])
def test_a_terminal_gets_nothing_to_obey(backend: BackendRow, stream: int) -> None:
    strings = naughty_strings()
    # Few bytes a write: a character may come in pieces, or never become whole.
    code = (
        "import os\n"
        "data = '\\n'.join([*texts, '']).encode() + bytes(range(256)) + b'\\xe2\\x80'\n"
        f"for n in range(0, len(data), 7): os.write({stream}, data[n : n + 7])"
    )
    options = [*options_of(backend), "--input", f"texts={json.dumps(strings)}"]
    shown = on_a_terminal("run", "-", *options, stdin=code.encode())

    text = shown.decode("utf-8")
    assert raw_controls(text) == set()
    lines = text.split("\r\n")
    assert lines[: len(strings)] == [escaped(string) for string in strings]
    assert "toolcell: ok" in lines[-2]


def is_obeyed(character: str) -> bool:
    """Whether a terminal would obey a character and not show it; tabs are fine."""
    if character in REORDERING:
        return True
    return unicodedata.category(character) == "Cc" and character not in "\n\t"


def raw_controls(text: str) -> set[str]:
    """Return what of a text a terminal would obey, but for its own line ends."""
    return {each for each in text.replace("\r\n", "\n") if is_obeyed(each)}


def test_a_message_about_a_naughty_name_is_harmless() -> None:
    """What a user, a model or an image names must not steer the terminal."""
    naughty = {each for text in naughty_strings() for each in text if is_obeyed(each)}
    assert "\x1b" in naughty
    done = toolcell("run", "".join(sorted(naughty)))

    assert done.returncode == 2
    assert raw_controls(done.stderr.decode()) == set()


def on_a_terminal(*arguments: str, stdin: bytes) -> bytes:
    """Run the command with a terminal for its output; return what that got."""
    ours, theirs = os.openpty()
    with Child[bytes](
        [TOOLCELL, *arguments], stdin=subprocess.PIPE, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        shown = b"".join(until_hung_up(ours))
    os.close(ours)
    assert process.returncode == 0, shown[-1000:]
    return shown


def until_hung_up(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:
            # EIO: the other side has no process any more.
            return
        if not data:
            return
        yield data


@contextmanager
def host_actions() -> Iterator[list[str]]:
    """Collect what this process does that a payload could have asked for."""
    seen: list[str] = []
    _AUDITED.append(seen)
    try:
        yield seen
    finally:
        _AUDITED.remove(seen)


_AUDITED: list[list[str]] = []
_ACTIONS = {
    "pickle.find_class", "marshal.load", "marshal.loads", "exec", "import",
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.Popen",
    "socket.connect", "open", "ctypes.dlopen",
}  # fmt: skip


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _AUDITED and event in _ACTIONS:
        for seen in _AUDITED:
            seen.append(f"{event}: {arguments[:2]!r:.200}")


@pytest.fixture(scope="module", autouse=True)
def audit() -> None:
    """An audit hook stays for good; it collects only while a test listens."""
    sys.addaudithook(_audit)


def test_the_audit_sees_an_unpickling() -> None:
    with host_actions() as seen:
        import pickle

        pickle.loads(b"cos\ngetpid\n.")  # harmless: it names a function

    assert any(each.startswith("pickle.find_class") for each in seen)


async def test_payloads_stay_bytes(cell: Session) -> None:
    """As output, as values and as what a value's repr says."""
    cases = records("pickles/cases.jsonl")
    assert len(cases) == 45
    payloads = [base64.b64decode(case["b64"]) for case in cases]
    code = (
        "import base64, sys\n"
        "payloads = [base64.b64decode(each) for each in texts]\n"
        "for each in payloads:\n"
        "    sys.stdout.buffer.write(len(each).to_bytes(4, 'big') + each)\n"
    )
    texts = {"texts": [case["b64"] for case in cases]}
    # Long, so that it is an output: what reads those is there before it is listened to.
    plain = {"texts": [base64.b64encode(b"plain" * 300).decode()]}
    await cell.run(code + "payloads[0]", fresh=True, inputs=plain)
    # Threads that remove containers of earlier tests act, too.
    await until(lambda: not is_asked())
    with host_actions() as seen:
        written = await cell.run(
            code + "[repr(each) for each in payloads]", fresh=True, inputs=texts
        )
        described = [
            await cell.run(code + f"payloads[{number}]", fresh=True, inputs=texts)
            for number in range(len(payloads))
        ]

    assert seen == []
    sized = [len(payload).to_bytes(4, "big") + payload for payload in payloads]
    assert written.stdout_bytes == b"".join(sized)
    assert written.value == [repr(payload) for payload in payloads]
    for payload, result in zip(payloads, described, strict=True):
        assert result.value == OpaqueValue(type="bytes", repr=repr(payload)[:1024])


async def test_json_on_the_result_pipe_is_no_result(cell: Session) -> None:
    cases = records("json_parsing/cases.jsonl")
    assert len(cases) == 154
    wrong = {}
    for case in cases:
        data = base64.b64decode(case["b64"])
        result = await written_to_the_result_pipe(cell, data)
        ending = (result.status, result.exit_code, result.value)
        if ending != ("exit", 0, None) or bool(result.warnings) != bool(data):
            wrong[case["id"]] = (ending, result.warnings)
    assert wrong == {}


async def test_json_inside_a_result_is_read_strictly(cell: Session) -> None:
    wrong = {}
    for case in records("json_parsing/cases.jsonl")[::4]:
        data = base64.b64decode(case["b64"])
        word = b'{"outcome":"ok","value":{"json":' + data + b"}}\n"
        result = await written_to_the_result_pipe(cell, word)
        if (result.status, result.value) != strictly_read(word):
            wrong[case["id"]] = (result.status, result.value)
    assert wrong == {}


async def written_to_the_result_pipe(cell: Session, data: bytes) -> ExecutionResult:
    code = f"import os\nos.write(3, {data!r})\nos._exit(0)"
    return await cell.run(code, fresh=True)


def strictly_read(word: bytes) -> tuple[str, Any]:
    """Return the status and value that a program's word must lead to."""
    if word.count(b"\n") > 1:
        return "exit", None
    try:
        return "ok", strict_json(word)["value"]["json"]
    except FrameError:
        return "exit", None


# JSON may be refused for two meanings: a key given twice, half a character.
STRICTER = {
    "y_object_duplicated_key.json",
    "y_object_duplicated_key_and_value.json",
}


def test_the_strict_decoder_agrees_with_the_corpus() -> None:
    for case in records("json_parsing/cases.jsonl"):
        data = base64.b64decode(case["b64"])
        try:
            strict_json(data)
            verdict = "accept"
        except FrameError:
            verdict = "reject"
        if case["id"] in STRICTER:
            assert verdict == "reject", case["id"]
        elif case["expect"] != "either":
            assert verdict == case["expect"], case["id"]
