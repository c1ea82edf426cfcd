"""Figures and tables of programs are pictures and tables on the page of a run."""

from __future__ import annotations

import pytest

from toolcell.host.console.web.tables import table

from ...support.console.person import Client
from ...support.console.served import Service, runs_programs

CODE = runs_programs("coder")
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


@pytest.mark.promise("D2")
def test_figures_and_tables_of_a_run_are_shown(service: Service) -> None:
    viewer = Client(service, "viewer")
    assert service.call("run_python", "coder", code=DRAWS).result(60).status == "ok"
    [found] = service.host.executor.records.page(limit=1)
    page = viewer.get(f"/runs/{found.number}").text
    address = page.partition('<img class="figure" src="')[2].partition('"')[0]
    answer = viewer.get(address)
    policy = answer.headers["content-security-policy"]

    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/png")
    assert policy == "sandbox; default-src 'none'"
    assert '<th scope="col">tea|cake</th><th scope="col">sum</th>' in page
    assert (
        '<td data-label="tea|cake">a&lt;i&gt;</td><td data-label="sum">7</td>' in page
    )


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
