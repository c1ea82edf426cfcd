"""Real libraries display as in a notebook; IPython itself is the judge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcell.core import ImagePart, TextPart
from toolcell.sandbox import ExecutionResult, Limits, PackageRules, SandboxManager

from ...conftest import SUBPROCESS, run_apart

pytestmark = pytest.mark.timeout(600)

LIBRARIES = ("altair", "matplotlib", "pandas", "pillow", "plotly")
ALL = (*LIBRARIES, "ipython")
LIMITS = Limits(memory_mib=1024, wall_seconds=90)

FIGURES = """
import matplotlib.pyplot as plt
print("before")
plt.plot([1, 2])
plt.show()
print("between")
plt.figure(figsize=(40, 30))
plt.plot([2, 1])
"""

VALUES = """
import altair, pandas, plotly.express, plotly.io
from IPython.display import (
    HTML, JSON, SVG, Image, Javascript, Latex, Markdown, Math, Pretty, display
)
from PIL import Image as pictures
altair.renderers.enable("mimetype")
plotly.io.renderers.default = "plotly_mimetype"
plotly.io.renderers.render_on_display = True
frame = pandas.DataFrame({"x": range(30), "y": range(30)})
chart = altair.Chart(frame).mark_point().encode(x="x", y="y")
picture = pictures.new("RGB", (8, 8), "red")
picture.save("picture.png")
line = plotly.express.line(frame, x="x", y="y")
display(frame, frame.style, frame.x, chart, picture)
display({"application/vnd.plotly.v1+json": json(line)}, raw=True)
display(HTML("<b>x"), Markdown("x"), Latex("$x$"), Math("x"), SVG("<svg></svg>"))
display(JSON({"x": 1}), Javascript("x"), Pretty("x"), Image("picture.png"), [1], "x")
"""
JSON_OF = "import json as j\ndef json(figure): return j.loads(figure.to_json())\n"

JUDGE = """
import sys
# The functions of IPython itself, not those of the cell.
sys.meta_path[:] = [each for each in sys.meta_path if "displays" not in each.__module__]
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.display_pub = CapturingDisplayPublisher()
shell.run_cell(code).raise_error()
[sorted(each["data"]) for each in shell.display_pub.outputs]
"""


@pytest.fixture(scope="module")
def results() -> dict[str, ExecutionResult]:
    """The results of all programs, of one manager."""

    async def run() -> dict[str, ExecutionResult]:
        config = SUBPROCESS.config(
            limits=LIMITS, package_rules=PackageRules(allow=ALL, seconds=300)
        )
        async with SandboxManager(config) as manager:
            code = JSON_OF + VALUES
            shown = await manager.run(FIGURES, packages=LIBRARIES)
            shim = await manager.run(code, packages=LIBRARIES)
            real = await manager.run(code, packages=ALL)
            judge = await manager.run(JUDGE, packages=ALL, inputs={"code": code})
            ways = await manager.run(SHOWN, packages=LIBRARIES)
            edges = await manager.run(EDGES, packages=LIBRARIES)
            small = [output.preview and output.preview.data for output in edges.outputs]
            seen = await manager.run(SEEN, packages=LIBRARIES, inputs={"small": small})
        return {
            "figures": shown,
            "shim": shim,
            "real": real,
            "judge": judge,
            "ways": ways,
            "edges": edges,
            "seen": seen,
        }

    return run_apart(run)


SHOWN = """
import altair, plotly.express
from PIL import Image
plotly.express.line(x=[1], y=[2]).show()
display(plotly.express.line(x=[1], y=[2]))
Image.new("RGB", (8, 8)).show()
altair.Chart().mark_point().show()
plotly.express.line(x=[1], y=[2])
"""

PICTURES = {
    "one pixel wide": ('new("RGB", (1, 60_000), "red")', "PNG"),
    "one pixel high": ('new("1", (60_000, 1), 1)', "PNG"),
    "gray of 16 bits": ('new("I;16", (2_000, 10), 0x8000)', "PNG"),
    "CMYK": ('new("CMYK", (2_000, 10), (255, 0, 0, 0))', "JPEG"),
    "palette with alpha": ('new("P", (2_000, 10), 0)', "PNG", "transparency=0"),
    "gray with alpha": ('new("LA", (2_000, 10), (5, 100))', "PNG"),
    "animated": (
        'new("P", (9, 9), 0)',
        "GIF",
        'save_all=True, append_images=[new("P", (9, 9), n) for n in range(1, 5)]',
    ),
    "large file": ('frombytes("L", (1_500, 1_500), urandom(2_250_000))', "PNG"),
    "large photo": ('new("L", (12_000, 12_000))', "JPEG"),
    "bomb": ('new("L", (12_000, 12_000))', "PNG"),
}
EDGES = """
import io, warnings
from os import urandom
from PIL.Image import frombytes, new
def show(kind, picture, **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    display({"image/" + kind.lower(): buffer.getvalue()}, raw=True)
warnings.simplefilter("ignore")
""" + "\n".join(
    f"show({kind!r}, {picture}, {''.join(options)})"
    for picture, kind, *options in PICTURES.values()
)
SEEN = """
import base64, io
from PIL import Image
seen = []
for each in small:
    if each is not None:
        picture = Image.open(io.BytesIO(base64.b64decode(each)))
        middle = picture.width // 2, picture.height // 2
        seen.append([*picture.size, *picture.getpixel(middle)])
    else:
        seen.append(None)
seen
"""


def test_pictures_of_any_kind_are_made_small(
    results: dict[str, ExecutionResult],
) -> None:
    """None is a picture of too many pixels, whose name is sent."""
    edges, seen = results["edges"], results["seen"]
    assert edges.status == seen.status == "ok", edges.stderr + seen.stderr
    values: Any = seen.value
    found = dict(zip(PICTURES, values, strict=True))
    assert found.pop("large file")[0] < 1_500

    assert found == {
        "one pixel wide": [1, 1568, 255, 0, 0],
        "one pixel high": [1568, 1, 255, 255, 255],
        "gray of 16 bits": [1568, 8, 128, 128, 128],
        "CMYK": [1568, 8, 0, 255, 255],
        "palette with alpha": [1568, 8, 0, 0, 0, 0],
        "gray with alpha": [1568, 8, 5, 5, 5, 100],
        "animated": [9, 9, 0, 0, 0],
        "large photo": [1568, 1568, 0, 0, 0],
        "bomb": None,
    }
    for name, output in zip(PICTURES, edges.outputs, strict=True):
        [part] = output.to_content()
        assert isinstance(part, ImagePart) is not (name == "bomb"), name


def test_a_cell_shows_what_ipython_shows(results: dict[str, ExecutionResult]) -> None:
    for name in ("shim", "real", "judge"):
        assert results[name].status == "ok", results[name].stderr
    judged = results["judge"].value
    assert isinstance(judged, list)
    assert len(judged) == 17

    for name in ("shim", "real"):
        assert [sorted(output.mimes) for output in results[name].outputs] == judged


def test_figures_come_where_they_were_shown(
    results: dict[str, ExecutionResult],
) -> None:
    result = results["figures"]
    assert result.status == "ok", result.stderr
    assert result.stderr == ""
    first, second = result.outputs

    assert [artifact.name for artifact in result.artifacts] == [
        "figure-1.png",
        "figure-2.png",
    ]
    assert first.mimes == ("image/png", "text/plain")
    assert first.content("image/png") == result.artifacts[0].data
    assert first.preview is None
    # 4,000 pixels wide; the cell has made a smaller copy.
    assert second.preview is not None
    for output in (first, second):
        [part] = output.to_content()
        assert isinstance(part, ImagePart)
        assert len(part.data) < 1_400_000


def test_each_library_shows_in_its_own_way(
    results: dict[str, ExecutionResult],
) -> None:
    result = results["ways"]
    assert result.status == "ok", result.stderr
    kinds = [output.mimes for output in result.outputs]

    plotly = ("application/vnd.plotly.v1+json",)
    assert [kinds[0], kinds[1], kinds[4]] == [plotly] * 3
    assert "image/png" in kinds[2]
    assert any("vegalite" in mime for mime in kinds[3])
    assert "text/html" not in kinds[3]
    data = result.outputs[0].data[plotly[0]]
    assert isinstance(data, dict)
    assert json.dumps(data["data"]).startswith('[{"hovertemplate"')


def test_models_read_tables_as_markdown(results: dict[str, ExecutionResult]) -> None:
    [part] = results["shim"].outputs[0].to_content()

    assert isinstance(part, TextPart)
    lines = part.text.splitlines()
    assert lines[:3] == ["|  | x | y |", "| --- | --- | --- |", "| 0 | 0 | 0 |"]
    assert lines[-1] == "(only the first 20 rows)"
