"""Outputs of programs as bundles by media type, in order with what was printed."""

from __future__ import annotations

from contextlib import aclosing
from itertools import groupby

import pytest

from toolcell.core import ImagePart, TextPart
from toolcell.sandbox import (
    Displayed,
    Event,
    Finished,
    Limits,
    SandboxConfig,
    SandboxManager,
    Stderr,
    Stdout,
)

from ..conftest import SUBPROCESS

pytestmark = pytest.mark.anyio

WITHOUT_IPYTHON = """
import sys
sys.path[:] = [p for p in sys.path if "packages" not in p and "editable" not in p]
"""

PNG = """
import struct, zlib
def png(width, height, rows=None):
    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\\0" * (width + 1) for _ in range(height)))
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return b"\\x89PNG\\r\\n\\x1a\\n" + b"".join(parts)
"""


async def events_of(sandbox: SandboxManager, code: str) -> list[Event]:
    async with aclosing(sandbox.stream(code)) as stream:
        return [event async for event in stream]


async def test_a_run_tells_of_outputs_as_they_are_displayed(
    sandbox: SandboxManager,
) -> None:
    told: list[str] = []
    result = await sandbox.run(
        "print('a' * 40_000)\ndisplay('first')\nprint('b')\ndisplay('second')\n",
        on_output=lambda _, data: told.append(data.decode().strip("a\n") or "a"),
        on_display=lambda output: told.append(output.text() or ""),
    )

    assert [each for each, _ in groupby(told)] == ["a", "'first'", "b", "'second'"]
    assert len(result.outputs) == 2


async def test_outputs_stand_between_what_is_printed(sandbox: SandboxManager) -> None:
    """Also where a program prints much, and to both streams."""
    *events, end = await events_of(
        sandbox,
        "import sys\n"
        "print('a' * 40_000)\n"
        "display('first')\n"
        "print('b', file=sys.stderr)\n"
        "display('second')\n"
        "print('c')\n",
    )
    told: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, Displayed):
            told.append(("display", event.output.text() or ""))
        elif isinstance(event, Stdout | Stderr):
            kind, text = type(event).__name__, event.data.decode()
            if told and told[-1][0] == kind:
                text = told.pop()[1] + text
            told.append((kind, text))
    assert isinstance(end, Finished)

    assert told == [
        ("Stdout", "a" * 40_000 + "\n"),
        ("display", "'first'"),
        ("Stderr", "b\n"),
        ("display", "'second'"),
        ("Stdout", "c\n"),
    ]
    assert [output.text() for output in end.result.outputs] == ["'first'", "'second'"]


async def test_names_of_ipython_work_without_it(sandbox: SandboxManager) -> None:
    result = await sandbox.run(
        WITHOUT_IPYTHON + PNG + "import IPython\n"
        "from IPython.display import *\n"
        "from IPython.core.display import HTML as same\n"
        "display(HTML('<b>x</b>'), Markdown('# x', metadata={'a': 1}), Latex('$x$'))\n"
        "IPython.display.display(Math('x'), SVG('<svg/>'), Pretty('x'))\n"
        "display(JSON({'x': [1]}), Javascript('x()'), Image(png(2, 3)))\n"
        "clear_output()\n"
        "display(Image(url='https://example.org/x.png'))\n"
        "handle = display('x', display_id=True)\n"
        "handle.update('y')\n"
        "publish_display_data({'text/plain': 'raw', 'x/y+json': {'z': None}})\n"
        "display_html('<i>x</i>', raw=True)\n"
        "same is HTML and IPython.get_ipython() is None\n"
    )

    assert result.status == "ok", result.stderr
    assert result.value is True
    shown = [
        {mime: output.data[mime] for mime in output.mimes if mime != "text/plain"}
        or output.text()
        for output in result.outputs
    ]
    picture = result.outputs[8]
    del shown[8]
    assert shown == [
        {"text/html": "<b>x</b>"},
        {"text/markdown": "# x"},
        {"text/latex": "$x$"},
        {"text/latex": "$\\displaystyle x$"},
        {"image/svg+xml": "<svg/>"},
        "x",
        {"application/json": {"x": [1]}},
        {"application/javascript": "x()"},
        {"text/html": '<img src="https://example.org/x.png"/>'},
        "'x'",
        "'y'",
        {"x/y+json": {"z": None}},
        {"text/html": "<i>x</i>"},
    ]
    assert picture.mimes == ("image/png", "text/plain")
    assert (picture.content("image/png") or b"").startswith(b"\x89PNG")
    assert result.outputs[1].metadata == {"text/markdown": {"a": 1}}
    assert {output.origin for output in result.outputs} == {"program"}


async def test_a_value_has_all_its_representations(sandbox: SandboxManager) -> None:
    """The bundle comes first; a method that raises is left out, and is told."""
    result = await sandbox.run(
        "class Value:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        about = {'text/markdown': {'k': 1}}\n"
        "        return {'text/markdown': 'of the bundle'}, about\n"
        "    def _repr_markdown_(self): return 'of the method'\n"
        "    def _repr_html_(self): return '<p>', {'isolated': True}\n"
        "    def _repr_latex_(self): return None\n"
        "    def _repr_svg_(self): raise ValueError('broken')\n"
        "    def _repr_json_(self): raise NotImplementedError\n"
        "    def __repr__(self): return 'Value()'\n"
        "class Other:\n"
        "    def _ipython_display_(self): display('by itself')\n"
        "display(Other())\n"
        "display(Value(), include={'text/plain'})\n"
        "display(Value(), exclude={'text/plain'})\n"
        "display(Value)\n"
        "Value()\n"
    )

    assert result.status == "ok", result.stderr
    told = [(output.mimes, output.is_value) for output in result.outputs]
    rich = ("text/markdown", "text/html")
    assert told == [
        (("text/plain",), False),
        (("text/plain",), False),
        (rich, False),
        (("text/plain",), False),
        (("text/markdown", "text/plain", "text/html"), True),
    ]
    assert result.outputs[4].data["text/markdown"] == "of the bundle"
    assert result.outputs[4].metadata == {
        "text/markdown": {"k": 1},
        "text/html": {"isolated": True},
    }
    assert result.stderr.count("ValueError: broken") == 3
    assert "NotImplementedError" not in result.stderr


PLOTS = (
    PNG + "import sys, types\n"
    "class Figure:\n"
    "    def __init__(self, side): self.side = side\n"
    "    def savefig(self, file, format, bbox_inches):\n"
    "        assert bbox_inches == 'tight'\n"
    "        file.write(png(self.side, self.side))\n"
    "figures = types.ModuleType('matplotlib.figure')\n"
    "figures.Figure = Figure\n"
    "pyplot = types.ModuleType('matplotlib.pyplot')\n"
    "plots = {}\n"
    "pyplot.get_fignums = lambda: list(plots)\n"
    "pyplot.figure = plots.get\n"
    "pyplot.close = lambda which: plots.clear()\n"
    "sys.modules.update({each.__name__: each for each in (figures, pyplot)})\n"
)


@pytest.mark.promise("FP14", "FP16")
@pytest.mark.parametrize("ending", ["sys.exit(3)", "1 / 0", "raise SystemExit"])
async def test_open_figures_are_shown_however_a_program_ends(
    sandbox: SandboxManager, ending: str
) -> None:
    code = f"{PLOTS}plots[1] = Figure(3)\n{ending}\n"
    result = await sandbox.run(code)
    assert [output.mimes[0] for output in result.outputs] == ["image/png"]
    assert [artifact.name for artifact in result.artifacts] == ["figure-1.png"]


@pytest.mark.promise("FP14", "FP15")
async def test_files_of_outputs_replace_no_other(sandbox: SandboxManager) -> None:
    """Neither what the program wrote itself, nor what an earlier run did."""
    table = "class T:\n    def _repr_html_(self): return 'ours'\n"
    write = "open('artifacts/{}', 'w').write('its own')\n"
    names = ("figure-1.png", "value.html")
    own = "import os\nos.mkdir('artifacts')\n" + "".join(map(write.format, names))
    async with sandbox.session() as session:
        await session.run(f"{PLOTS}{table}{own}plots[1] = Figure(1)\nT()")
        await session.run("plots[1] = Figure(2)\nT()")
        for name in names:
            assert await session.read_file(f"artifacts/{name}") == b"its own"
        left = {file.path for file in await session.list_files("artifacts")}
    found = {name.removeprefix("artifacts/") for name in left}
    figures = {"figure-1.png", "figure-2.png", "figure-3.png"}
    values = {f"value-{n}.{kind}" for n in (2, 3) for kind in ("html", "txt")}
    assert found == figures | values | {"value.html"}


async def test_figures_come_where_they_were_shown(sandbox: SandboxManager) -> None:
    result = await sandbox.run(
        PLOTS + "plots[1] = Figure(1)\n"
        "display(plots[1])\n"
        "plots[2] = Figure(2)\n"
        "display('last')\n"
    )

    assert result.status == "ok", result.stderr
    sizes = [(output.content("image/png") or b"")[19:20] for output in result.outputs]
    assert sizes == [b"\1", b"", b"\2"]
    names = [artifact.name for artifact in result.artifacts]
    assert names == ["figure-1.png", "figure-2.png"]


async def test_each_run_of_a_session_has_its_own_outputs(
    sandbox: SandboxManager,
) -> None:
    """Threads and forks of earlier runs included."""
    code = (
        "import threading\n"
        "go = threading.Event()\n"
        "def late():\n"
        "    go.wait()\n"
        "    display('late')\n"
        "    done.set()\n"
        "done = threading.Event()\n"
        "threading.Thread(target=late, daemon=True).start()\n"
        "display(1)\n"
    )
    async with sandbox.session() as session:
        first = await session.run(code)
        second = await session.run("display(2)\ngo.set(); done.wait(); display(3)")
        third = await session.run("display(4)")
        fork = await session.fork(allow_threads=True)
        forked = await fork.run("display(5)")

    shown = [
        [output.text() for output in result.outputs]
        for result in (first, second, third, forked)
    ]
    assert shown == [["1"], ["2", "'late'", "3"], ["4"], ["5"]]


async def test_children_of_a_program_print_their_outputs(
    sandbox: SandboxManager,
) -> None:
    result = await sandbox.run(
        "import os\n"
        "display('parent')\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    display('child')\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "display('end')\n"
    )

    assert [output.text() for output in result.outputs] == ["'parent'", "'end'"]
    assert result.stdout == "'child'\n"


async def test_large_pictures_are_named_to_models(sandbox: SandboxManager) -> None:
    """Without Pillow in the cell there is no smaller copy."""
    result = await sandbox.run(
        WITHOUT_IPYTHON + PNG + "from IPython.display import Image\n"
        "display(Image(png(1568, 2)), Image(png(1569, 2)))\n"
    )
    small, large = (output.to_content() for output in result.outputs)

    assert [type(each) for each in small] == [ImagePart]
    assert [type(each) for each in large] == [TextPart]
    assert "1569 x 2 pixels" in large[0].model_dump()["text"]


async def test_reused_cells_have_no_outputs_of_others() -> None:
    config = SandboxConfig(**{**SUBPROCESS.options, "programs_per_cell": 8})
    async with SandboxManager(config) as manager:
        results = [
            await manager.run(f"display({number})", agent_id="a") for number in range(4)
        ]

    assert [[o.text() for o in result.outputs] for result in results] == [
        ["0"],
        ["1"],
        ["2"],
        ["3"],
    ]
    assert any(result.isolation and result.isolation.reused for result in results)


async def test_nothing_is_loaded_before_a_program_needs_it(
    sandbox: SandboxManager,
) -> None:
    result = await sandbox.run(
        "import sys\n"
        "def loaded(): return [m for m in sys.modules if '.outputs' in m]\n"
        "import json, colorsys\n"
        "before = loaded()\n"
        "display(1)\n"
        "[before, len(loaded()) > 3]\n"
    )

    assert result.value == [[], True]


async def test_modules_of_the_program_may_have_names_of_libraries(
    sandbox: SandboxManager,
) -> None:
    result = await sandbox.run(
        WITHOUT_IPYTHON + "import altair, matplotlib.pyplot, PIL.ImageShow\n"
        "import plotly.io._renderers\n"
        "altair.x",
        files={
            "altair.py": "x = 42",
            "matplotlib/pyplot.py": "get_fignums = list\ndef close(_): pass",
            "PIL/ImageShow.py": "",
            "plotly/io/_renderers.py": "",
        },
    )

    assert (result.status, result.value) == ("ok", 42), result.stderr
    assert result.outputs == ()


async def test_the_deadline_holds_in_a_representation(sandbox: SandboxManager) -> None:
    result = await sandbox.run(
        "class Slow:\n"
        "    def _repr_html_(self):\n"
        "        while True: pass\n"
        "display(1)\n"
        "Slow()\n",
        limits=Limits(wall_seconds=2),
    )

    assert result.status == "timeout"
    assert [output.text() for output in result.outputs] == ["1"]
