"""The program's own file, streams and user are those that plain Python would find."""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.sandbox import Limits, Sandbox

from ..conftest import CONFINED, BackendRow, need_shared_memory

pytestmark = pytest.mark.anyio

SPAWN = """
import multiprocessing
def square(x): return x * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, [1, 2]))
"""
THREAD = "import threading\nthreading.Thread(target=lambda: 1 / 0).start()\n"


@pytest.mark.promise("FP7", "FP8")
async def test_a_program_has_its_own_file(sandbox: Sandbox) -> None:
    code = f"import os\n{THREAD}[__file__, os.listdir(), open(__file__).read()]"
    first = await sandbox.run(code)
    other = {"main.py": "another\nmain\nprogram", "app.py": "# the same name"}
    second = await sandbox.run(code, argv=["app.py", "x"], files=other)

    assert isinstance(first.value, list) and isinstance(second.value, list)
    home = str(first.value[0]).removesuffix("/main.py")
    assert first.value == [f"{home}/main.py", ["main.py"], code]
    # A `confined` cell has a folder of another name.
    assert str(second.value[0]).endswith("/app-1.py")
    for result, [file, *_] in ((first, first.value), (second, second.value)):
        assert "threading.Thread(target=lambda: 1 / 0).start()\n" in result.stderr
        assert f'File "{file}", line 3' in result.stderr


@pytest.mark.promise("FP7")
async def test_tracebacks_of_sessions_show_their_own_lines(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        await session.run("def f(n):\n    y = n\n    return y / 0")
        raised = await session.run("a = 1\nb = 2\nc = 3\nf(3)")
        source = await session.run("import inspect\ninspect.getsource(f)")
        listed = [file.path for file in await session.list_files()]
    assert raised.exception is not None
    assert "    return y / 0\n" in raised.exception.traceback
    assert "    f(3)\n" in raised.exception.traceback
    assert source.value == "def f(n):\n    y = n\n    return y / 0\n"
    assert listed == []


RAISE = "import threading\ndef f():\n    return 1 / 0\n"
STARTS = {
    "a thread": "t = threading.Thread(target=f)\nt.start()\nt.join()",
    "a fork": "import os\nif os.fork() == 0:\n    f()\nos.wait()",
    "a fork of multiprocessing": (
        "import multiprocessing as m\np = m.get_context('fork').Process(target=f)\n"
        "p.start()\np.join()"
    ),
    "a new interpreter": (
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    p = m.get_context('spawn').Process(target=f)\n    p.start()\n    p.join()"
    ),
}


@pytest.mark.promise("FP7")
@pytest.mark.parametrize("name", STARTS)
async def test_threads_and_children_show_lines_of_their_functions(
    sandbox: Sandbox, name: str
) -> None:
    """A new interpreter imports the last program alone."""
    together = f"{RAISE}{STARTS[name]}\nNone"
    started = f"x = 1\ny = 2\nz = 3\n{STARTS[name]}\nNone"
    async with sandbox.session() as session:
        found = [await sandbox.run(together), await session.run(together)]
        if name != "a new interpreter":
            await session.run(RAISE)
            found.append(await session.run(started))
    for result in found:
        assert ", line 3, in f\n    return 1 / 0\n" in result.stderr
        assert "ZeroDivisionError" in result.stderr


@pytest.mark.promise("FP20")
async def test_new_processes_find_the_functions_of_a_program(sandbox: Sandbox) -> None:
    need_shared_memory()
    alone = await sandbox.run(SPAWN)
    async with sandbox.session() as session:
        together = await session.run(SPAWN)
    assert alone.stdout == together.stdout == "[1, 4]\n", (alone, together)


@pytest.mark.promise("FP13")
async def test_a_script_finds_its_folder(sandbox: Sandbox) -> None:
    code = 'cd / && cd - >/dev/null; cd "$(dirname "$0")" && cat data; echo "$0"'
    data = {"data": b"here\n"}
    alone = await sandbox.run(code, language="bash", files=data, argv=["a.sh"])
    assert alone.stdout == "here\na.sh\n"
    async with sandbox.session() as session:
        await session.write_file("data", b"here\n")
        result = await session.run(code, language="bash")
        assert result.stdout.startswith("here\n")
        assert [file.path for file in await session.list_files()] == ["data"]


@pytest.mark.promise("FP19")
async def test_the_compiler_goes_as_deep_as_plain(sandbox: Sandbox) -> None:
    """And gives the value of a deep program, at its own line of a traceback."""
    terms = " + \n".join(map(str, range(1200)))
    result = await sandbox.run(f"s = ({terms})\nprint(s)")
    assert result.stdout == "719400\n"
    deep = await sandbox.run(f"x = 1; (x + {terms})")
    above = await sandbox.run(f"x = ({terms})\nx")
    assert (deep.value, above.value) == (719401, 719400)
    raised = await sandbox.run(f"x = 1\n(x + {terms} +\n'a')")
    assert "line 2, in <module>" in raised.stderr
    alone = await sandbox.run(f"({terms})")
    assert alone.value == 719400


@pytest.mark.promise("FP27")
async def test_errors_of_the_compiler_show_their_line(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        for run in (sandbox.run, session.run):
            result = await run("x = 1\nreturn x")
            assert "    return x\n" in result.stderr


@pytest.mark.promise("FP4")
async def test_streams_are_opened_by_name(sandbox: Sandbox) -> None:
    code = "echo a > /dev/stdout; echo b > /dev/stderr; echo c | tee /dev/stderr"
    async with sandbox.session() as session:
        command = await session.exec(code)
        for result in (
            await sandbox.run(code, language="bash"),
            await session.run(code, language="bash"),
            await command.wait(),
        ):
            assert (result.stdout, result.stderr) == ("a\nc\n", "b\nc\n")


@pytest.mark.promise("FP11")
async def test_children_of_python_get_no_flags_of_ours(sandbox: Sandbox) -> None:
    code = (
        "import getpass, os, subprocess, sys\nopen('helper.py', 'w').close()\n"
        "flags = subprocess._args_from_interpreter_flags()\n"
        "subprocess.run([sys.executable, *flags, '-c', 'import helper'], check=True)\n"
        "[flags, getpass.getuser(), os.environ['LOGNAME']]"
    )
    result = await sandbox.run(code)
    assert result.value == [[], "user", "user"], result.stderr


@pytest.mark.promise("FP12")
async def test_the_user_of_a_program_has_a_name(
    backend: BackendRow, sandbox: Sandbox
) -> None:
    code = (
        "import grp, os, pwd, subprocess\n"
        "names = [pwd.getpwuid(os.getuid()).pw_name, subprocess.getoutput('id -un')]\n"
        "[names, os.environ['USER'], os.environ['LOGNAME'],"
        " grp.getgrgid(os.getgid()).gr_name]"
    )
    found: Any = (await sandbox.run(code)).value
    [name, by_id], *variables, group = found
    assert variables == ["user", "user"] and group
    # A `confined` cell reads this machine's names.
    assert name == by_id and (name == "user" or backend is CONFINED)


@pytest.mark.promise("FP6")
async def test_no_byte_is_lost_under_signals(sandbox: Sandbox) -> None:
    code = (
        "import signal, sys\nsignal.signal(signal.SIGALRM, lambda *_: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "for _ in range(20): sys.stdout.write(('x' * 999 + '\\n') * 40)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    result = await sandbox.run(code, limits=Limits(output_bytes=1_000_000))
    assert len(result.stdout) == 800_000


@pytest.mark.promise("FP5")
async def test_the_input_of_a_program_is_buffered(sandbox: Sandbox) -> None:
    code = "import sys\n[type(sys.stdin.buffer).__name__, list(sys.stdin.buffer)[-1]]"
    result = await sandbox.run(f"{code[:-1]}.decode()]", stdin=b"a\n\xff\nend")
    assert result.value == ["BufferedReader", "end"]
