"""A program that tries to write its own verdict."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest

from toolcell.core import CellLostError, InvalidInputError
from toolcell.sandbox import ExecutionResult, SandboxManager, Session
from toolcell.sandbox.cell.wire.frames import FrameDecoder, FrameError, encode
from toolcell.sandbox.client.channel import Channel
from toolcell.sandbox.spi import OpaqueValue

from ..conftest import BackendRow
from ..support.child import Child
from ..support.paths import ROOT

pytestmark = pytest.mark.anyio

GOOD = '{"outcome":"ok","value":{"json":"forged"}}'


async def run(cell: Session, code: str) -> ExecutionResult:
    return await cell.run(code, fresh=True)


@pytest.mark.promise("E-72")
async def test_frames_on_stdout_are_text(cell: Session) -> None:
    frame = encode({"type": "finished", "reason": "timeout"}, b"x")
    result = await run(cell, f"import os\nos.write(1, {frame!r})\n'mine'")

    assert (result.status, result.value) == ("ok", "mine")
    assert result.stdout_bytes == frame


@pytest.mark.promise("E-73")
@pytest.mark.parametrize(
    "forged",
    [
        GOOD + "\n",
        GOOD + "\n" + GOOD + "\n",
        GOOD,
        "\n",
        "\x00" * 64,
        '{"type":"finished","reason":null}\n',
        '{"outcome":"exit"}\n',
    ],
)
async def test_a_second_result_drops_the_value(cell: Session, forged: str) -> None:
    result = await run(cell, f"import os\nos.write(3, {forged.encode()!r})\n'mine'")

    assert result.status != "timeout"
    assert result.value is None
    assert result.exit_code == 0
    assert len(result.warnings) == 1 and "result channel" in result.warnings[0]


@pytest.mark.promise("JB5")
@pytest.mark.parametrize(
    "lie",
    [
        "class Yes(int):\n    __eq__ = lambda *_: True\n[Yes(), Yes()]",
        "class Yes(list):\n    __eq__ = __ne__ = lambda *_: True\nYes()",
        "class Yes:\n    __repr__ = __str__ = lambda _: '[1, 2]'\nYes()",
        "[1.0, 2.0]",
        "'[1, 2]'",
        "import json\njson.dumps = lambda *a, **k: '[1, 2]'\n[0, 0]",
        "print('[1, 2]')\nraise SystemExit(0)",
        "import os; os.write(1, b'[1, 2]'); os._exit(0)",
    ],
)
async def test_a_host_that_compares_is_not_lied_to(cell: Session, lie: str) -> None:
    """As docs/howto/reward_programs.md compares: plain data, type by type."""
    result = await run(cell, lie)

    assert isinstance(result.value, OpaqueValue | list | str | None)
    assert (result.status, json.dumps(result.value, default=str)) != ("ok", "[1, 2]")


@pytest.mark.promise("E-73")
async def test_a_late_result_of_a_child_is_dropped(cell: Session) -> None:
    code = f"""
import os
read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(write, b"!")
    while True:
        os.write(3, {(GOOD + chr(10)).encode()!r})
os.read(read, 1)
'mine'
"""
    result = await run(cell, code)
    after = await run(cell, "'innocent'")

    assert result.value != "forged"
    assert (after.status, after.value, after.warnings) == ("ok", "innocent", ())


@pytest.mark.promise("E-73", "E-74")
async def test_one_forged_frame_does_not_change_the_status(cell: Session) -> None:
    line = f"import os\nos.write(3, {(GOOD + chr(10)).encode()!r})\n"
    endings = {
        "os._exit(3)": ("exit", 3, None),
        "os.kill(os.getpid(), 11)": ("crashed", None, "SIGSEGV"),
        "os.kill(os.getpid(), 9)": ("killed", None, "SIGKILL"),
    }
    for ending, (status, code, signal) in endings.items():
        result = await run(cell, line + ending)
        assert (result.status, result.exit_code, result.signal) == (
            status, code, signal
        )  # fmt: skip
        assert result.value is None


@pytest.mark.promise("E-73")
async def test_closing_the_result_pipe_is_no_success(cell: Session) -> None:
    result = await run(cell, "import os\nos.close(3)\n'mine'")

    # The runner cannot say how it ended, so its exit code speaks.
    assert result.status in ("exit", "error")
    assert (result.value, result.ok) == (None, False)


@pytest.mark.promise("E-74")
@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "import atexit, os; atexit.register(os._exit, 0); 1 / 0",
        "import sys, os; sys.excepthook = lambda *_: os._exit(0); os._exit(0)",
    ],
)
async def test_exit_0_without_a_result_is_no_success(cell: Session, code: str) -> None:
    result = await run(cell, code)

    assert (result.status, result.ok, result.value) == ("exit", False, None)


@pytest.mark.promise("E-75")
async def test_a_patched_runner_fools_only_itself(cell: Session) -> None:
    code = """
import builtins, json, os, sys, time
json.dumps = lambda *_, **__: '{"outcome":"ok","value":{"json":"forged"},"wall_ms":0}'
sys.stdout = sys.stderr = None
time.monotonic = time.time = lambda: 0.0
builtins.isinstance = lambda *_: True
os.write = lambda fd, data, write=os.write: write(fd, data) and len(data)
'mine'
"""
    result = await run(cell, code)
    after = await run(cell, "import json\njson.dumps('whole')")

    # What it says of itself is its word; what was measured is not.
    assert result.status in ("ok", "exit", "error", "crashed")
    assert result.usage.wall_ms > 0
    assert after.value == '"whole"'


@pytest.mark.promise("E-75")
async def test_shapes_and_sizes_are_checked_by_the_host(cell: Session) -> None:
    words = [
        '{"outcome":"ok","value":{"json":1},"outcome":"ok"}',
        '{"outcome":"ok","value":[1]}',
        '{"outcome":"ok","value":{"json":NaN}}',
        '{"outcome":"error","exception":{"type":1,"message":"","traceback":""}}',
        '{"outcome":"error"}',
        '{"outcome":"fine"}',
        "[" * 100_000,
        '{"outcome":"ok","value":{"json":' + "1" * 10_000 + "}}",
        '{"outcome":"ok","value":{"json":"\\ud800"}}',
        "[]",
    ]
    for word in words:
        text = (word + "\n").encode()
        result = await run(cell, f"import os\nos.write(3, {text!r})\nos._exit(0)")
        assert (result.status, result.value) == ("exit", None), word[:80]
        assert result.warnings, word[:80]


@pytest.mark.promise("E-61")
async def test_a_flood_on_the_result_pipe_is_cut(cell: Session) -> None:
    code = "import os\nfor _ in range(64): os.write(3, bytes(1 << 20))\n'mine'"
    result = await run(cell, code)

    assert (result.status, result.value, len(result.warnings)) == ("exit", None, 1)


@pytest.mark.promise("E-61")
async def test_huge_and_deep_values_are_described(cell: Session) -> None:
    deep = "x = []\nfor _ in range(100_000): x = [x]\nx"
    for code in ("'x' * (64 << 20)", deep, "list(range(10**6))", "{(1, 2): 3}"):
        result = await run(cell, code)
        assert isinstance(result.value, OpaqueValue), code
        assert len(result.value.repr) <= 1024


@pytest.mark.promise("E-75")
@pytest.mark.parametrize("value", ["1e999", "[-1e999]", "[" * 900 + "]" * 900])
async def test_a_value_that_json_cannot_say_again_is_dropped(
    cell: Session, value: str
) -> None:
    report = f'{{"outcome":"ok","value":{{"json":{value}}}}}\n'
    result = await run(
        cell, f"import os\nos.write(3, {report!r}.encode())\nos._exit(0)"
    )

    assert (result.status, result.value, len(result.warnings)) == ("exit", None, 1)
    assert result.to_json()["value"] is None


@pytest.mark.promise("E-76")
async def test_what_was_said_cannot_be_taken_back(cell: Session) -> None:
    code = """
import os
said = []
for step in (lambda: os.open("/proc/self/fd/3", os.O_RDONLY), lambda: os.read(3, 1)):
    os.set_blocking(3, False)
    try:
        step()
        said.append("done")
    except OSError:
        said.append("refused")
os.set_blocking(3, True)
said
"""
    assert (await run(cell, code)).value == ["refused", "refused"]


@pytest.mark.promise("E-76")
async def test_time_of_children_that_nobody_waits_for_is_counted(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
read, write = os.pipe()
if os.fork() == 0:
    while sum(os.times()[:2]) < 0.3: pass
    os._exit(0)
os.close(write)
os.read(read, 1)
"""
    result = await sandbox.run(code)

    assert result.status == "ok", result.stderr
    assert result.isolation is not None
    if not backend.held_by_kernel or "cgroup" not in result.isolation.layers:
        pytest.skip("no cgroup counts there")
    assert result.usage.cpu_ms >= 250


@pytest.mark.promise("E-75")
@pytest.mark.parametrize(
    "word",
    [
        "[" * 5000,
        '{"pid": 1, "warnings": []}',
        '{"pid": OWN, "warnings": []}',
        '{"pid": OWN.0, "warnings": []}',
        r'{"pid": OWN, "warnings": ["\ud800"]}',
    ],
)
async def test_a_forks_first_word_is_not_believed(
    sandbox: SandboxManager, word: str
) -> None:
    code = """
import os, sys
[live] = [each for name, each in sys.modules.items() if name.endswith(".stateful")]
def fork(wish, fds):
    os.write(fds[2], word.replace("OWN", str(os.getpid())).encode() + b"\\n")
    for fd in fds: os.close(fd)
live.fork = fork
"""
    async with sandbox.session() as session:
        await session.run(code, inputs={"word": word})
        with pytest.raises(InvalidInputError, match="cannot fork"):
            await session.fork()
        assert (await session.run("1")).state == "kept"


@pytest.mark.promise("E-76")
async def test_usage_is_measured_from_outside(cell: Session) -> None:
    code = """
import os, resource, time
time.process_time = time.perf_counter = lambda: 0.0
resource.getrusage = None
held = bytearray(40 << 20)
begin = os.times()
while sum(os.times()[:2]) - sum(begin[:2]) < 0.3: pass
if os.fork() == 0:
    while sum(os.times()[:2]) < 0.3: pass
    os._exit(0)
os.wait()
"""
    usage = (await run(cell, code)).usage

    assert usage.cpu_ms >= 500
    assert usage.wall_ms >= 500
    assert usage.peak_memory_bytes >= 40 << 20


@pytest.mark.promise("E-77", "cluster-01")
@pytest.mark.parametrize("code", [124, 137, 139, 143, 255, 130])
async def test_exit_codes_forge_no_status(cell: Session, code: int) -> None:
    python = await run(cell, f"import sys; sys.exit({code})")
    bash = await cell.run(f"exit {code}", fresh=True, language="bash")

    for result in (python, bash):
        assert (result.status, result.exit_code) == ("exit", code)
        assert (result.signal, result.self_reported) == (None, False)


@pytest.mark.promise("E-77")
async def test_a_raised_memory_error_is_marked_as_a_claim(
    cell: Session, backend: BackendRow
) -> None:
    result = await run(cell, "raise MemoryError('so it says')")

    assert (result.status, result.self_reported) == ("out_of_memory", True)


@pytest.mark.promise("E-78")
def test_a_terminal_sees_no_escapes(tmp_path: Path) -> None:
    program = tmp_path / "escapes.py"
    marks = "\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u2066\x08\x7f"
    program.write_text(f"print({marks!r}, 'end')\nraise ValueError({marks!r})")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "toolcell.host", "run"]
    command = [str(Path(sys.executable).parent / "toolcell"), "run"]
    options = ["--backend", "subprocess", str(program)]
    done = Child(
        [*command, *options], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path
    )
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65_536):
            seen += data
    except OSError:
        # Linux ends a terminal that nobody holds with EIO.
        pass
    os.close(ours)

    assert done.wait() == 1
    text = seen.decode()
    assert "end" in text and "ValueError" in text and "\\u{1b}[2J" in text
    assert set(text) & set("\x1b\x07\x08\x7f\x9b\u202e\u2066") == set()
    assert "\r" not in text.replace("\r\n", "")


@pytest.mark.promise("E-87")
def test_a_length_is_refused_before_anything_is_kept() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError, match="refused"):
        decoder.feed(b"\xff\xff\xff\xff\xff\xff\xff\xff")


@pytest.mark.promise("E-87")
def test_a_frame_may_come_byte_by_byte() -> None:
    decoder = FrameDecoder()
    data = encode({"type": "a"}, b"payload") + encode({"type": "b"})
    frames = [frame for byte in data for frame in decoder.feed(bytes([byte]))]

    assert [(f.header["type"], f.payload) for f in frames] == [
        ("a", b"payload"), ("b", b"")
    ]  # fmt: skip


@pytest.mark.promise("E-87")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        encode({"type": "finished"})[:-1],
        b"\0\0\0\x01\0\0\0\0[",
        b"\0\0\0\x02\0\0\0\0[]",
        b"\0\0\0\x0c\0\0\0\0" + b'{"type":NaN}',
        b"\xff" * 64,
    ],
)
async def test_half_a_frame_is_a_lost_cell(sent: bytes) -> None:
    import socket

    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        theirs.sendall(sent)
    with pytest.raises(CellLostError):
        await channel.receive()
    channel.close()


@pytest.mark.promise("E-72")
def test_the_frames_of_a_cell_are_json() -> None:
    header = encode({"type": "x"})

    assert json.loads(header[8:]) == {"type": "x"}
    assert (ROOT / "sandbox" / "cell" / "wire" / "frames.py").is_file()
