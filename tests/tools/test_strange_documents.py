"""Documents of strangers whose reading could take minutes, or fail by accident."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from toolcell.core import ConfigError, PackageError, PolicyError
from toolcell.guard import load_policies
from toolcell.host.cli.programs.csv_programs import check_columns
from toolcell.sandbox.packages.source_builder import read_build_system
from toolcell.sandbox.results.html_tables import table_as_markdown
from toolcell.tools.openapi.document import read_document


@pytest.mark.promise("R62")
@pytest.mark.parametrize(
    "value",
    ["!!int " + "59:" * 200_000 + "1", "!!float " + "59:" * 9_999 + "1", "!!binary aa"],
)
def test_a_tag_of_yaml_costs_nothing(value: str) -> None:
    start = time.thread_time()
    with pytest.raises(ConfigError, match="neither JSON nor YAML"):
        read_document(f"openapi: 3.1.0\nx: {value}")
    assert time.thread_time() - start < 2
    assert read_document("openapi: 3.1.0\nx: !!str 1")["x"] == "1"


@pytest.mark.promise("R73", "R74")
@pytest.mark.parametrize(
    "text", ["a." * 40_000 + "b = 1", "[" + "a." * 40_000 + "b]", "#" * 100_001]
)
def test_a_pyproject_of_a_stranger_costs_little(text: str) -> None:
    start = time.thread_time()
    with pytest.raises(PackageError, match="cannot be read"):
        read_build_system(text)
    assert time.thread_time() - start < 1
    many = "".join("a." * 199 + f"b{number} = 1\n" for number in range(200))
    assert read_build_system(many).backend


@pytest.mark.promise("R44")
@pytest.mark.parametrize("number", ["9" * 5_000, "x" + "f" * 5_000])
def test_a_number_that_is_no_character_leaves_the_table_readable(number: str) -> None:
    shown = table_as_markdown(
        f"<table><tr><td>a</td></tr><tr><td>&#{number};&#65;</td></tr></table>", 5
    )

    assert shown is not None and "\ufffdA" in shown


@pytest.mark.promise("R62")
@pytest.mark.parametrize("part", ["[a, ", "{a: "])
def test_a_deep_policy_file_costs_little(tmp_path: Path, part: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(part * (4_000_000 // len(part)))
    start = time.thread_time()
    with pytest.raises(PolicyError, match="nested too deeply"):
        load_policies(path)
    assert time.thread_time() - start < 2


def test_a_table_of_many_columns_costs_little() -> None:
    start = time.thread_time()
    check_columns("a.csv: line 1 names", ["code", *map(str, range(100_000))])
    assert time.thread_time() - start < 2
