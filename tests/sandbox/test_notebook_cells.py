"""Cells of a session and of a notebook, which have more than plain Python."""

from __future__ import annotations

import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import (
    CodePolicy,
    Limits,
    SandboxConfig,
    SandboxManager,
    notebook_program,
)
from toolcell.sandbox.spi import OpaqueValue

pytestmark = pytest.mark.anyio

# Of one session, in this order: code, value and what is printed.
CELLS: tuple[tuple[str, object, str], ...] = (
    ("x = 5\nx", 5, ""),
    ("_ + 1", 6, ""),
    ("_ * __", 30, ""),
    ("7;", None, ""),
    ("_ - ___", 25, ""),
    ("import asyncio\nawait asyncio.sleep(0, 7)", 7, ""),
    ("async def twice(n):\n    return 2 * n\ny = await twice(4)\ny", 8, ""),
    ("print(await twice(1)); [await twice(n) for n in range(3)]", [0, 2, 4], "2\n"),
    ("task = asyncio.ensure_future(twice(5))", None, ""),
    ("await task", 10, ""),
    ("asyncio.run(twice(6))", 12, ""),
    ("    z = 1\n    z + 1", 2, ""),
    ("\n\n  text = '''\n  a'''\n  text", "\na", ""),
    ("!echo hi {x} $x; echo $((1+1))", None, "hi 5 5\n2\n"),
    ("for n in range(2):\n    !echo {n}\n    !echo \\\n      -", None, "0\n-\n1\n-\n"),
    ("lines = !echo a; echo b >&2\nlines.s, list(lines)[-1:]\nlines.n", "a\nb", ""),
    ("!exit 3\n_exit_code", 3, ""),
    ("%%bash\ncd /\npwd\necho {x}", None, "/\n{x}\n"),
    ("%%bash --out o --err e\necho a; echo b >&2", None, ""),
    ("[o, e]", ["a\n", "b\n"], ""),
    ("%%sh --no-raise-error\nexit 3", None, ""),
    ("%%bash --bg --proc p\nread line; echo $line > late\nagain", None, ""),
    ("p.wait()\n!rm late && echo gone", None, "gone\n"),
    ("text = '''\n%matplotlib inline\n!ls'''\n%matplotlib inline\nlen(text)", 23, ""),
    ("'%s' % (\n1\n% 2)\n%pwd\n'a' \\\n% ()", "a", ""),
    ("a, b = %time (1, 2)\nb", 2, "CPU times"),
    ("%time x + 1", 6, "CPU times"),
    ("%timeit -n 2 -r 2 x", None, "2 runs, 2 loops each"),
    ("%%time\nw = x\nw", 5, "Wall time"),
    ("%timeit -n 1 -r 1 max(1,\n  2)", None, "1 loops each"),
    ("%%writefile own.py\nq = 9\n", None, "Writing own.py\n"),
    ("%%writefile -a own.py\nq += {x}", None, "Appending to own.py\n"),
    ("x = 1\n%cat own.py", None, "q = 9\nq += {x}\n"),
    ("%%writefile more.py\nq = x\n", None, "Writing more.py\n"),
    ("%run more.py\nq", 1, ""),
    ("%ls", None, "more.py\nown.py\n"),
    ("%%capture taken\nprint(1)\n!echo 2\ndisplay(3)\n4", None, ""),
    ("[taken.stdout, len(taken.outputs)]", ["1\n2\n", 2], ""),
    ("%env COLOR=red\n!echo $COLOR", None, "env: COLOR=red\nred\n"),
    ("%cd /\n%pwd", "/", "/\n"),
    ("get_ipython().run_line_magic('pwd', '')", "/", ""),
    ("twice?", None, "Signature: twice(n)\n"),
    ("%config A.b = 1\n%load_ext c\n%load_ext d", None, ""),
)


@pytest.mark.promise("FP9", "FP21", "FP25", "S2", "S4", "S6")
@pytest.mark.smoke
async def test_cells_of_a_session_are_those_of_a_notebook(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        for code, value, printed in CELLS:
            result = await session.run(code)

            assert (result.status, result.value) == ("ok", value), (code, result.stderr)
            found = result.stdout
            assert printed in found if printed else not found, (code, result.stdout)
    assert result.stderr.count("has no meaning here and was passed over") == 2


@pytest.mark.promise("FP9", "S2")
async def test_what_a_cell_cannot_do_is_said_and_its_variables_stay(
    sandbox: SandboxManager,
) -> None:
    """Frames of a traceback are the program's own."""
    async with sandbox.session() as session:
        cases = (
            ("x = 5\n%nope 3", "UsageError", "%nope 3"),
            ("x +", "SyntaxError", "x +"),
            ("!ls\nx +", "SyntaxError", "x +"),
            ("%%bash --out\nls", "UsageError", "expected one argument"),
            ("%%bash --bg --out o\nls", "UsageError", "its output is not kept"),
            ("%%bash\nexit 4", "subprocess.CalledProcessError", "exit status 4"),
            ("async def f():\n    1 / 0\nawait f()", "ZeroDivisionError", "in f"),
            ("%time 1 / 0", "ZeroDivisionError", "1 / 0"),
            ("def f():\n    await g()", "SyntaxError", "outside async function"),
        )
        for code, kind, said in cases:
            result = await session.run(code)

            assert result.exception is not None, code
            assert result.exception.type == kind
            assert said in result.stderr
            assert "toolcell_cell" not in result.stderr
            assert "asyncio/" not in result.stderr
        assert (await session.run("x")).value == 5


@pytest.mark.promise("FP21")
async def test_a_cell_that_waits_is_interrupted_and_keeps_its_state(
    sandbox: SandboxManager,
) -> None:
    code = (
        "import asyncio\n"
        "try:\n    await asyncio.sleep(600)\n"
        "except asyncio.CancelledError:\n    x = 'cancelled'\n    raise"
    )
    async with sandbox.session() as session:
        await session.run("import asyncio")
        late = await session.run(code, limits=Limits(wall_seconds=1))

        assert (late.status, late.state) == ("timeout", "kept")
        assert (await session.run("await asyncio.sleep(0, x)")).value == "cancelled"


async def test_a_program_may_use_underscores_itself(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        await session.run("1")
        await session.run("_ = 'own'")
        await session.run("2")

        assert (await session.run("_")).value == "own"


async def test_a_long_text_of_a_value_is_whole(sandbox: SandboxManager) -> None:
    async with sandbox.session() as session:
        result = await session.run("tuple(range(2000))")

    assert isinstance(result.value, OpaqueValue)
    assert [output.text() for output in result.outputs] == [repr(tuple(range(2000)))]


@pytest.mark.promise("FP10")
@pytest.mark.smoke
async def test_each_cell_of_a_notebook_shows_its_value(sandbox: SandboxManager) -> None:
    cells = (
        "x = 41\nx",
        "!echo {x}",
        "from __future__ import annotations\nx + 1;",
        "await __import__('asyncio').sleep(0, 'late')",
        "from IPython.display import HTML\nHTML('<b>q</b>')",
        "_, None\nNone",
        "[x, _.data]",
    )
    result = await sandbox.run(notebook_program(cells))

    assert result.ok, result.stderr
    assert result.stdout == "41\n"
    texts = [output.text("text/html") or output.text() for output in result.outputs]
    assert texts == ["41", "'late'", "<b>q</b>", "[41, '<b>q</b>']"]
    assert result.value == [41, "<b>q</b>"]


async def test_a_notebook_removes_no_file_of_its_session(
    sandbox: SandboxManager,
) -> None:
    async with sandbox.session() as session:
        await session.write_file("main.py", b"own")
        await session.run(notebook_program(["def f(): pass", "f()"]), fresh=True)
        left = [each.path for each in await session.list_files()]

    assert left == ["main.py"]


async def test_a_program_with_a_nul_is_no_notebook(sandbox: SandboxManager) -> None:
    result = await sandbox.run("print('a')\n\0print('b')")
    assert (result.status, result.stdout) == ("error", "")
    assert result.exception is not None
    assert "null bytes" in result.exception.message


async def test_a_notebook_ends_with_its_first_error(sandbox: SandboxManager) -> None:
    """Which names its cell; a later one that is no Python costs the earlier nothing."""
    result = await sandbox.run(notebook_program(["1", "\n1 / 0", "x +"]))
    broken = await sandbox.run(notebook_program(["1", "x +"]))

    assert result.exception is not None
    assert "cell-2.py" in result.exception.traceback
    assert "line 2" in result.exception.traceback
    assert len(result.outputs) == len(broken.outputs) == 1
    with pytest.raises(InvalidInputError, match="cell 1"):
        notebook_program(["1\0"])


async def test_a_program_of_its_own_is_plain_python(sandbox: SandboxManager) -> None:
    for code in ("!ls", "  x = 1", "await f()", "%time 1"):
        result = await sandbox.run(code)

        assert result.exception is not None, code
        assert result.exception.type in ("SyntaxError", "IndentationError")
        assert (await sandbox.run("'get_ipython' in dir(__builtins__)")).value is False


@pytest.mark.parametrize(
    "cell",
    [
        "!rm x",
        "%time import os",
        "%%time\nimport os",
        "%%capture\nimport os",
        "  import os",
        "x = !ls",
        "%run x.py",
        "await f()\nimport os",
        "%matplotlib inline\nimport os",
        "1\0import os\0",
        "1\0!ls\0",
    ],
)
async def test_a_policy_reads_cells_as_they_are_run(cell: str) -> None:
    config = SandboxConfig(backend="subprocess", code_policy=CodePolicy(imports=()))
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        result = await session.run(cell)

        assert result.status == "refused"
        assert result.reasons
