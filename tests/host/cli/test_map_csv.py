"""`toolcell map` with a table: each row has one result, with the line of the file."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from .conftest import Command

COLUMNS = ["id", "code", "inputs", "limits", "prompt"]
RESULTS = "results.jsonl"
RUN = ("--out", RESULTS, "--backend", "subprocess")


def write(path: Path, *rows: list[str]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def test_each_row_has_a_result_with_its_line(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "programs.csv"
    rows = [
        ["first", "x = 1\n\n'a,b'", "", "", "a prompt"],
        ["", "x + 1", '{"x": 41}', "", ""],
        ["third", "1", "{broken", "", ""],
        ["fourth", "while True: pass", "", '{"wall_seconds": 0.3}', ""],
        ["first", "1", "", "", ""],
        ["", "", "", "", "no program"],
    ]
    write(path, *rows)
    path.write_bytes(path.read_bytes() + b"short,1\r\n\r\nlatin,'\xe9',,,\r\n")
    done = command("map", "programs.csv", *RUN)
    results = [json.loads(each) for each in Path(RESULTS).read_text().splitlines()]

    assert done.code == 1
    assert "not used: prompt" in done.err
    found = {each["line"]: (each["id"], each["status"]) for each in results}
    assert found == {
        2: ("first", "ok"),
        5: (None, "ok"),
        6: ("third", "not_run"),
        7: ("fourth", "timeout"),
        8: (None, "not_run"),
        9: (None, "not_run"),
        10: (None, "not_run"),
        12: (None, "not_run"),
    }
    values = {each["line"]: each.get("result", {}).get("value") for each in results}
    assert (values[2], values[5]) == ("a,b", 42)
    why = {each["line"]: each.get("error", {}).get("message", "") for each in results}
    assert "inputs" in why[6] and "earlier line" in why[8] and "code" in why[9]
    assert "2 cells, and line 1 names 5" in why[10] and "UTF-8" in why[12]


def test_a_table_goes_on_where_it_ended(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "programs.csv", ["a", "1", "", "", ""], ["", "2", "", "", ""])
    packed = tmp_path / "programs.csv.gz"
    packed.write_bytes(gzip.compress((tmp_path / "programs.csv").read_bytes()))
    done = command("map", "programs.csv", *RUN, "--json", "--progress")
    first = done.json
    again = command("map", "programs.csv.gz", *RUN, "--json").json

    assert (first["results"], first["before"]) == (2, 0)
    assert "1 of 2 have a result" in done.err and "2 of 2 have" in done.err
    assert (again["results"], again["before"]) == (2, 2)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"prompt,id\n1,2\n", "no column 'code'"),
        ("a.csv", b"", "no column 'code'"),
        ("a.csv", b"code,code\n1,2\n", "'code' twice"),
        ("a.csv", b'code\n1\n"2\n3\n', "line 4 is no CSV"),
        ("a.csv", b'code\n1\n"2"3\n', "line 3 is no CSV"),
        ("a.csv", "code\n1\n".encode("utf-16"), "UTF-16"),
        ("a.xlsx", b"PK\x03\x04....", "a spreadsheet"),
        ("a.jsonl.zst", b"(\xb5/\xfd....", "zstd"),
    ],
)
def test_what_is_no_table_is_refused_by_name(
    command: Command, tmp_path: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = command("map", name, "--out", RESULTS)

    assert done.code == 2
    assert why in done.err
    assert not (tmp_path / RESULTS).exists()


def test_results_are_no_table(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "programs.csv", ["a", "1", "", "", ""])
    done = command("map", "programs.csv", "--out", "results.csv")

    assert done.code == 2
    assert "JSON lines" in done.err
    assert not (tmp_path / "results.csv").exists()
