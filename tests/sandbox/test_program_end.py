"""A program ends as one of plain Python does: in runs, and in forks of sessions."""

from __future__ import annotations

import pytest

from toolcell.sandbox import Sandbox

pytestmark = pytest.mark.anyio

ENDS = {
    "buffers of files": (
        "import csv, gzip, os\nos.mkdir('artifacts')\n"
        "f = open('artifacts/a', 'w'); f.write('a,b\\n' * 100_000)\n"
        "g = gzip.open('artifacts/b', 'wt'); g.write('x')\n"
        "class Log:\n    def write(self): csv.writer(f).writerow('zz')\n",
        "",
    ),
    "files that something older holds": (
        "import builtins, os\nos.mkdir('artifacts')\n"
        "builtins.f = open('artifacts/a', 'w'); f.write('a,b\\n')\n",
        "",
    ),
    "destructors": (
        "class A:\n    def __del__(self): print('released')\n"
        "def names(): return a\na = A()\n",
        "released\n",
    ),
    "destructors of what is old": (
        "import gc\nclass A:\n    def __del__(self): print('released')\n"
        "a = A(); a.me = a\ngc.collect()\n",
        "released\n",
    ),
    "generators": (
        "def g():\n    try: yield\n    finally: print('closed')\nx = g(); next(x)\n",
        "closed\n",
    ),
    "printf": ("import ctypes; ctypes.CDLL(None).printf(b'line\\n')\n", "line\n"),
    "threads, then exit handlers": (
        "import atexit, threading, time\natexit.register(print, 'bye')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('done'))).start()\n",
        "done\nbye\n",
    ),
    "a hook": (
        "import sys\nsys.excepthook = lambda kind, *_: print('hook', kind)\n1 / 0\n",
        "hook <class 'ZeroDivisionError'>\n",
    ),
    "a hook that fails": ("import sys\nsys.excepthook = 5\n1 / 0\n", ""),
    "a hook that exits": (
        "import sys\nsys.excepthook = lambda *_: sys.exit(7)\n1 / 0\n",
        "",
    ),
}
CODES = {"a hook": 1, "a hook that fails": 1, "a hook that exits": 7}
SIZES = {
    "buffers of files": {"a": 400_000, "b": 29},
    "files that something older holds": {"a": 4},
}


@pytest.mark.promise("FP1", "FP17", "FP18")
@pytest.mark.parametrize("name", ENDS)
async def test_the_end_of_a_program(sandbox: Sandbox, name: str) -> None:
    code, stdout = ENDS[name]
    result = await sandbox.run(code)
    assert (result.stdout, result.exit_code) == (stdout, CODES.get(name, 0))
    sizes = {artifact.name: artifact.size for artifact in result.artifacts}
    assert sizes == SIZES.get(name, {})


@pytest.mark.promise("FP18")
async def test_text_of_c_is_printed_by_the_end_of_its_cell(sandbox: Sandbox) -> None:
    """After what Python printed, as a program of plain Python has it."""
    code = "import ctypes\nprintf = ctypes.CDLL(None).printf\nprintf(b'c')\nprint('a');"
    failed = "printf(b'd')\nprint('b')\n1 / 0"
    spoilt = (
        "import sys\ndef refuse(*_): raise RuntimeError\nprintf(b'f')\nprint('e')\n"
    )
    async with sandbox.session() as session:
        for program, stdout in (
            (code, "a\nc"),
            (failed, "b\nd"),
            (f"{spoilt}sys.addaudithook(refuse)", "e\nf"),
        ):
            assert (await session.run(program)).stdout == stdout


FORK = "import os, sys\nx, pid = 1, os.fork()\nif pid == 0:\n    {}\n"
PARENT = "if pid:\n    code = os.WEXITSTATUS(os.waitpid(pid, 0)[1])\n    x = 2\n"
CHILDREN = {
    "pass": 0,
    "sys.exit(3)": 3,
    "exit(4)": 4,
    "raise SystemExit('no')": 1,
    "1 / 0": 1,
    "raise KeyboardInterrupt": 1,
    "os._exit(5)": 5,
    "import atexit; atexit.register(os._exit, 6)": 6,
}


@pytest.mark.promise("FP2")
@pytest.mark.parametrize("ending", CHILDREN)
async def test_a_forked_child_is_never_the_kernel(
    sandbox: Sandbox, ending: str
) -> None:
    code = FORK.format(ending) + PARENT + "print('child' if pid == 0 else 'parent')\n"
    falls_through = ending == "pass" or "atexit" in ending
    stdout = ("child\n" if falls_through else "") + "parent\n"
    async with sandbox.session() as session:
        before = (await session.run("import os\nos.getpid()")).value
        for run in (session.run, sandbox.run):
            result = await run(f"{code}[x, pid and code]")
            assert (result.status, result.value) == ("ok", [2, CHILDREN[ending]])
            assert result.stdout == stdout
        asked = await session.run("input()")
        assert asked.exception is not None and asked.exception.type == "EOFError"
        assert (await session.run("[os.getpid(), x]")).value == [before, 2]


@pytest.mark.promise("FP24")
async def test_exit_leaves_a_session_its_input(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        left = await session.run("x = 5\nexit()")
        assert (left.status, left.state) == ("exit", "kept")
        asked = await session.run("input()")
        assert asked.exception is not None and asked.exception.type == "EOFError"
        assert (await session.run("x")).value == 5


async def test_a_chain_of_errors_is_printed_once(sandbox: Sandbox) -> None:
    """Though the first of them has a hint, which only the interpreter knows."""
    code = "value = 1\ntry: valeu\nexcept NameError: raise AttributeError('x')"
    result = await sandbox.run(code)

    assert result.stderr.count("Traceback") == 2
    assert result.stderr.endswith("\nAttributeError: x\n")


SPOILS = {
    "a closed stream": "import sys\nprint('a')\nsys.stdout.buffer.close()",
    "a closed descriptor": "import os\nprint('a')\nos.close(1)",
    "isinstance": "import builtins\nprint('a')\nbuiltins.isinstance = None",
    "other builtins": (
        "import builtins\nprint('a')\n"
        "builtins.len = builtins.map = builtins.type = builtins.getattr = None\n"
        "del builtins.hasattr"
    ),
    "what JSON is made by": (
        "import json.encoder\nprint('a')\njson.encoder.JSONEncoder.encode = None"
    ),
}


@pytest.mark.promise("P-03", "FP27")
@pytest.mark.parametrize("name", SPOILS)
async def test_what_a_program_spoils_costs_neither_value_nor_state(
    sandbox: Sandbox, name: str
) -> None:
    code = f"{SPOILS[name]}\nx = 1\ndef f(): pass\n"
    async with sandbox.session() as session:
        first = await session.run(code + "[x, {'a': 2.5}]")
        found = [first, await session.run("x"), await session.run("'text'")]

    for result, value in zip(found, ([1, {"a": 2.5}], 1, "text"), strict=True):
        assert (result.status, result.value) == ("ok", value), result.stderr
        assert (result.state, result.warnings) == ("kept", ())
    assert first.stdout == "a\n"


async def test_a_session_without_its_channel_says_why_it_ended(
    sandbox: Sandbox,
) -> None:
    """And writes nothing into what a program has in its place."""
    code = "import os, socket\nos.close(3)\n"
    file = "os.open('own', os.O_WRONLY | os.O_CREAT)\n"
    pair = "pair = socket.socketpair()\n"
    async with sandbox.session() as session:
        for more in ("", file, pair):
            result = await session.run(code + more)

            ended = (result.status, result.exit_code, result.state)
            assert ended == ("exit", 70, "lost")
            assert result.stderr == "toolcell: the interpreter ended by OSError\n"
        assert await session.read_file("own") == b""


@pytest.mark.promise("FP27")
async def test_a_long_value_is_shown_whole_whatever_builtins_are_replaced(
    sandbox: Sandbox,
) -> None:
    code = "import builtins\nbuiltins.isinstance = None\n'x' * 600_000"
    result = await sandbox.run(code)

    shown = [output.text() or "" for output in result.outputs]
    assert (result.status, len("".join(shown))) == ("ok", 600_002), result.stderr


@pytest.mark.promise("FP27")
async def test_a_builtin_that_a_thread_puts_back_stays_so(sandbox: Sandbox) -> None:
    code = (
        "import builtins, os, threading, time\nplain = builtins.print\n"
        "def put_back():\n    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    builtins.print = plain\n    open('done', 'w').close()\n"
        "builtins.print = lambda *_: None\nthreading.Thread(target=put_back).start()"
    )
    wait = "touch go; until [ -e done ]; do sleep 0.01; done"
    async with sandbox.session() as session:
        await session.run(code)
        # No program runs meanwhile.
        await (await session.exec(["sh", "-c", wait])).wait()
        await session.run("None")
        after = await session.run("print('a')\nbuiltins.print is plain")

    assert (after.stdout, after.value) == ("a\n", True)


@pytest.mark.promise("P-03", "FP27")
async def test_an_audit_hook_that_refuses_all_costs_no_value_and_no_state(
    sandbox: Sandbox,
) -> None:
    code = (
        "import sys\ndef refuse(*_): raise RuntimeError\nsys.addaudithook(refuse)\n42"
    )
    async with sandbox.session() as session:
        found = [await sandbox.run(code), await session.run(code)]
        refused = await session.run("def f(): pass")

    assert [(each.status, each.value) for each in found] == [("ok", 42)] * 2
    assert refused.exception is not None
    assert refused.exception.type == "RuntimeError"
    assert (refused.status, refused.state) == ("error", "kept")
