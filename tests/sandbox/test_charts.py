"""Data of charts and tables, where E2B's own extractor is installed."""

from __future__ import annotations

import pytest

from toolcell.sandbox import SandboxManager

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S5")]

# As the libraries are, as far as they matter here.
LIBRARIES = """
import datetime, importlib.machinery, sys, types
def module(name, **names):
    sys.modules[name] = made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None)
    made.__dict__.update(names)
class Figure:
    def savefig(self, file, **options):
        file.write(b"\\x89PNG\\r\\n\\x1a\\n" + bytes(16))
class DataFrame:
    def to_dict(self, orient):
        return {"day": [datetime.date(2026, 1, 2)], "n": [float("nan")]}
class Chart(str): pass
module("matplotlib.figure", Figure=Figure)
module("pandas", DataFrame=DataFrame)
"""
EXTRACTOR = """
def chart_figure_to_dict(figure):
    return {"type": Chart("bar"), "elements": [{"x": datetime.date(2026, 1, 2)}]}
module("e2b_charts", chart_figure_to_dict=chart_figure_to_dict)
"""


async def test_charts_and_tables_have_their_data(sandbox: SandboxManager) -> None:
    shown = "display(Figure(), DataFrame())"
    with_data = await sandbox.run(LIBRARIES + EXTRACTOR + shown)
    without = await sandbox.run(LIBRARIES + shown)

    assert with_data.ok, with_data.stderr
    figure, table = with_data.outputs
    assert figure.data["e2b/chart"] == {
        "type": "bar",
        "elements": [{"x": "2026-01-02"}],
    }
    assert table.data["e2b/data"] == {"day": ["2026-01-02"], "n": [None]}
    assert [output.mimes for output in without.outputs] == [
        ("image/png", "text/plain"),
        ("text/plain",),
    ]
