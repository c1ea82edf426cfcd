"""`toolcell map` with tables, CSV and Parquet: each row has one result."""

from __future__ import annotations

import csv
import gzip
import io
import json
import resource
import sys
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ToolcellError
from toolcell.host.cli.programs.parquet_files import parquet_rows, row_count
from toolcell.host.cli.programs.result_tables import write_table

from ...conftest import missing
from .conftest import Command

COLUMNS = ["id", "code", "inputs", "limits", "prompt"]
RESULTS = "results.jsonl"
ON = ("--backend", "subprocess")
RUN = ("--out", RESULTS, *ON)


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
    results = [json.loads(line) for line in Path(RESULTS).read_text().splitlines()]

    assert (done.code, done.err) == (1, "")
    metas = {result["line"]: result.get("meta") for result in results}
    assert (metas[2], metas[5]) == ({"prompt": "a prompt"}, None)
    assert metas[9] == {"prompt": "no program"}
    found = {result["line"]: (result["id"], result["status"]) for result in results}
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
    values = {
        result["line"]: result.get("result", {}).get("value") for result in results
    }
    assert (values[2], values[5]) == ("a,b", 42)
    why = {
        result["line"]: result.get("error", {}).get("message", "") for result in results
    }
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
        ("a.csv", b"PAR1....PAR1", "is Parquet"),
        ("a.xlsx", b"PK\x03\x04....", "a spreadsheet"),
        ("a.jsonl.zst", b"(\xb5/\xfd....", "zstd"),
        ("a.parquet.gz", gzip.compress(b"PAR1....PAR1", mtime=0), "Parquet in gzip"),
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


@pytest.mark.promise("JB1")
def test_results_become_a_csv_that_goes_on(command: Command, tmp_path: Path) -> None:
    path, run = tmp_path / "programs.csv", ("--out", "results.csv", *ON)
    rows = [["a", "'x,y'", "", "", 'say\n"it"'], ["", "1 / 0", "", "", ""]]
    write(path, *rows)
    done = command("map", path.name, *run)
    write(path, *rows, ["b", "2", "", "", "last"])
    again = command("map", path.name, *run, "--json").json
    with (tmp_path / "results.csv").open(newline="") as file:
        found = {each["line"]: each for each in csv.DictReader(file)}

    assert done.code == 0, done.err
    assert (again["results"], again["before"]) == (3, 2)
    assert [found[line]["id"] for line in ("2", "4", "5")] == ["a", "", "b"]
    assert [found[line]["status"] for line in ("2", "4", "5")] == ["ok", "error", "ok"]
    assert json.loads(found["2"]["meta"]) == {"prompt": 'say\n"it"'}
    assert json.loads(found["2"]["result"])["value"] == "x,y"
    assert found["4"]["meta"] == found["4"]["error"] == ""


def test_results_are_not_compressed(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "programs.csv", ["a", "1", "", "", ""])
    done = command("map", "programs.csv", "--out", "results.csv.gz")

    assert done.code == 2
    assert "name it .csv" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"programs.csv"}


# Parquet.


@pytest.fixture
def arrow() -> Any:
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        missing("pyarrow is not installed")
    return import_module("pyarrow")


def write_parquet(arrow: Any, path: Path, **columns: Any) -> None:
    arrow.parquet.write_table(arrow.table(columns), path)


def results(path: Path) -> dict[int, dict[str, Any]]:
    """Return the results of a file of JSON lines, by the number of their row."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {each["line"]: each for each in found}


def test_each_row_has_a_result(arrow: Any, command: Command, tmp_path: Path) -> None:
    write_parquet(
        arrow,
        tmp_path / "programs.parquet",
        id=["a", None, "c", "d", "a", "f"],
        code=["6 * 7", "x + 1", "while True: pass", "1", "1", None],
        inputs=[None, '{"x": 41}', None, "{broken", None, None],
        limits=[None, None, {"wall_seconds": 0.3}, None, None, None],
        asked_at=arrow.array([2**53] * 6, arrow.timestamp("s")),
    )
    done = command("map", "programs.parquet", *RUN)
    found = results(tmp_path / RESULTS)

    assert done.code == 1, done.err
    assert found[1]["meta"]["asked_at"].startswith("<value out of range")
    assert {line: (each["id"], each["status"]) for line, each in found.items()} == {
        1: ("a", "ok"),
        2: (None, "ok"),
        3: ("c", "timeout"),
        4: ("d", "not_run"),
        5: (None, "not_run"),
        6: ("f", "not_run"),
    }
    assert (found[1]["result"]["value"], found[2]["result"]["value"]) == (42, 42)
    assert "inputs" in found[4]["error"]["message"]
    assert "earlier line" in found[5]["error"]["message"]


def test_a_table_is_read_as_it_is_needed(arrow: Any, tmp_path: Path) -> None:
    path = tmp_path / "programs.parquet"
    code = [f"{number:01000}" for number in range(2048)]
    arrow.parquet.write_table(
        arrow.table({"code": code}),
        path,
        row_group_size=256,
        compression="none",
        use_dictionary=False,
    )
    with CountedReads(path) as file:
        assert row_count(path, file) == 2048
        counted = file.count
    with CountedReads(path) as file:
        next(rows := parquet_rows(path, file, ["code"]))
        first = file.count
        rest = sum(1 for _ in rows)

    assert counted < path.stat().st_size / 10
    assert first < path.stat().st_size / 2 < file.count
    assert rest == 2047


class CountedReads(io.FileIO):
    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self.count += len(data)
        return data


def test_nulls_of_structs_are_left_out(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    write_parquet(
        arrow,
        tmp_path / "programs.parquet",
        code=["x", "sorted(dir())[-1]"],
        inputs=[{"x": 1, "y": None}, {"x": None, "y": [1.5]}],
        limits=[{"wall_seconds": 5.0, "pids": None}, {"wall_seconds": None, "pids": 9}],
    )
    done = command("map", "programs.parquet", *RUN)
    found = results(tmp_path / RESULTS)

    assert done.code == 0, done.err
    assert [found[line]["result"]["value"] for line in (1, 2)] == [1, "y"]


def test_a_value_that_python_has_not_costs_its_row(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    at = arrow.array([2**53, 0], arrow.timestamp("ms"))
    inputs = arrow.StructArray.from_arrays([at], ["at"])
    write_parquet(arrow, tmp_path / "a.parquet", code=["1", "2"], inputs=inputs)
    command("map", "a.parquet", *RUN)
    found = results(tmp_path / RESULTS)

    assert "inputs cannot be read" in found[1]["error"]["message"]
    assert "inputs" in found[2]["error"]["message"]


def test_an_own_column_that_cannot_be_read_costs_no_row(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    late = arrow.array([2**53], arrow.timestamp("ms"))
    ends = arrow.py_buffer(b"\0\0\0\0\1\0\0\0")
    no_text = [None, ends, arrow.py_buffer(b"\xff")]
    own = {
        "late": arrow.StructArray.from_arrays([late], ["at"]),
        "no_text": arrow.Array.from_buffers(arrow.string(), 1, no_text),
        "no_zone": arrow.array([5], arrow.timestamp("us", tz="Mars/Phobos")),
    }
    write_parquet(arrow, tmp_path / "a.parquet", code=["6 * 7"], **own, level=[3])
    done = command("map", "a.parquet", *RUN)
    found = results(tmp_path / RESULTS)[1]

    assert done.code == 0, done.err
    assert found["result"]["value"] == 42
    assert found["meta"].pop("level") == 3
    assert {*found["meta"]} == {*own}
    for value in found["meta"].values():
        assert value.startswith("<cannot be read: ")


def test_own_columns_of_every_type_are_in_the_results(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    at = datetime(2026, 11, 29, tzinfo=UTC)
    own = {
        "at": [at, None],
        "price": [Decimal("1.50"), None],
        "image": [b"\xff", None],
        "score": [float("nan"), 0.5],
        "tags": [["a"], None],
        "task": [{"level": 3, "by": None}, None],
    }
    write_parquet(arrow, tmp_path / "a.parquet", code=["1", "2"], **own)
    done = command("map", "a.parquet", "--out", "results.parquet", *ON)
    table = arrow.parquet.read_table("results.parquet", use_threads=False)
    found = {each["line"]: json.loads(each["meta"]) for each in table.to_pylist()}

    assert done.code == 0, done.err
    assert found == {
        1: {
            "at": "2026-11-29T00:00:00Z",
            "price": "1.50",
            "image": "_w==",
            "tags": ["a"],
            "task": {"level": 3, "by": None},
        },
        2: {"score": 0.5},
    }


def test_results_become_a_table_that_goes_on(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    path, out = tmp_path / "programs.parquet", tmp_path / "results.parquet"
    write_parquet(arrow, path, id=[7, 8], code=["6 * 7", "1 / 0"])
    done = command("map", path.name, "--out", out.name, *ON)
    first = arrow.parquet.read_table(out, use_threads=False).to_pylist()
    write_parquet(arrow, path, id=[7, 8, 9], code=["6 * 7", "1 / 0", "'third'"])
    again = command("map", path.name, "--out", out.name, *ON, "--json").json
    rows = arrow.parquet.read_table(out, use_threads=False).to_pylist()

    assert done.code == 0, done.err
    assert [each["id"] for each in sorted(first, key=str)] == ["7", "8"]
    assert (again["results"], again["before"]) == (3, 2)
    by_id = {row["id"]: row for row in rows}
    assert {name: each["status"] for name, each in by_id.items()} == {
        "7": "ok",
        "8": "error",
        "9": "ok",
    }
    assert json.loads(by_id["9"]["result"])["value"] == "third"
    assert by_id["7"]["error"] is None
    assert out.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {
        "programs.parquet",
        "results.parquet",
        "results.parquet.jsonl",
    }


def test_a_data_set_without_programs_may_grow(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    programs, run = tmp_path / "programs.jsonl", ("--out", "results.parquet", *ON)
    programs.touch()
    empty = command("map", programs.name, *run)
    programs.write_text('{"code": "6 * 7"}\n')
    again = command("map", programs.name, *run)
    table = arrow.parquet.read_table(tmp_path / "results.parquet", use_threads=False)

    assert (empty.code, again.code) == (0, 0), again.err
    assert table.num_rows == 1


def test_a_table_that_has_no_room_is_not_torn(arrow: Any, tmp_path: Path) -> None:
    lines, out = tmp_path / "results.parquet.jsonl", tmp_path / "results.parquet"
    lines.write_text('{"id": null, "line": 1, "status": "ok"}\n')
    out.write_text("earlier")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(ToolcellError, match="File too large"):
            write_table(lines, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert out.read_text() == "earlier"
    assert {*tmp_path.iterdir()} == {lines, out}


def test_large_results_become_row_groups(arrow: Any, tmp_path: Path) -> None:
    lines, out = tmp_path / "results.parquet.jsonl", tmp_path / "results.parquet"
    with lines.open("w") as file:
        for line in range(1, 4):
            result = {"stdout": "x" * 9_000_000}
            record = {"id": None, "line": line, "status": "ok", "result": result}
            file.write(json.dumps(record) + "\n")
    write_table(lines, out)
    table = arrow.parquet.ParquetFile(out)

    sizes = [table.metadata.row_group(at).num_rows for at in range(2)]
    assert sizes == [2, 1]
    assert table.read(["line"], use_threads=False).to_pydict() == {"line": [1, 2, 3]}


@pytest.mark.parametrize("id_", ['"\\ud800"', "torn"])
def test_what_becomes_no_table_stays_as_lines(
    arrow: Any, tmp_path: Path, id_: str
) -> None:
    lines, out = tmp_path / "results.parquet.jsonl", tmp_path / "results.parquet"
    lines.write_text(f'{{"id": {id_}, "line": 1, "status": "ok"}}\n')
    with pytest.raises(ToolcellError) as raised:
        write_table(lines, out)

    assert raised.value.hint == f"the results are whole in {lines}"
    assert [*tmp_path.iterdir()] == [lines]


@pytest.mark.parametrize("has_lines", [False, True])
def test_a_table_of_others_is_left_alone(
    arrow: Any, command: Command, tmp_path: Path, has_lines: bool
) -> None:
    write_parquet(arrow, tmp_path / "programs.parquet", code=["1"])
    (tmp_path / "results.parquet").write_text("theirs")
    if has_lines:
        (tmp_path / "results.parquet.jsonl").touch()
    done = command("map", "programs.parquet", "--out", "results.parquet", *ON)

    assert done.code == 2
    assert "results.parquet is there already" in done.err
    assert (tmp_path / "results.parquet").read_text() == "theirs"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"PAR1....PAR1", "no whole Parquet file"),
        (b"PAR1", "no whole Parquet file"),
        (None, "no column 'code'"),
    ],
)
def test_what_is_no_table_of_programs_is_refused(
    arrow: Any, command: Command, tmp_path: Path, content: bytes | None, why: str
) -> None:
    write_parquet(arrow, tmp_path / "a.parquet", program=["1"])
    if content is not None:
        (tmp_path / "a.parquet").write_bytes(content)
    done = command("map", "a.parquet", "--out", RESULTS)

    assert done.code == 2
    assert why in done.err
    assert not (tmp_path / RESULTS).exists()


def test_two_columns_of_one_field_are_refused(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    columns = [["1"], ['{"x": 1}'], ['{"x": 2}'], ["a"]]
    names = ["code", "inputs", "inputs", "prompt"]
    table = arrow.Table.from_arrays([arrow.array(column) for column in columns], names)
    arrow.parquet.write_table(table, tmp_path / "a.parquet")
    done = command("map", "a.parquet", "--out", RESULTS)

    assert done.code == 2
    assert "'inputs' twice" in done.err


def test_without_pyarrow_the_extra_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    (tmp_path / "a.parquet").write_bytes(b"PAR1....PAR1")
    (tmp_path / "a.jsonl").write_text('{"code": "1"}\n')
    read = command("map", "a.parquet", "--out", RESULTS)
    written = command("map", "a.jsonl", "--out", "results.parquet")

    for done in (read, written):
        assert done.code == 2
        assert "needs the extra 'parquet'" in done.err
        assert "pip install '.[parquet]'" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet", "a.jsonl"}
