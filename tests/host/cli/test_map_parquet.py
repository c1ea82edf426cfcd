"""`toolcell map` with Parquet: programs by rows, results as a table, or a refusal."""

from __future__ import annotations

import gzip
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ...conftest import missing
from .conftest import Command

RUN = ("--backend", "subprocess")


@pytest.fixture
def arrow() -> Any:
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        missing("pyarrow is not installed")
    return import_module("pyarrow")


def write(arrow: Any, path: Path, **columns: Any) -> None:
    arrow.parquet.write_table(arrow.table(columns), path)


def results(path: Path) -> dict[int, dict[str, Any]]:
    """Return the results of a file of JSON lines, by the number of their row."""
    found = [json.loads(each) for each in path.read_text().splitlines()]
    return {each["line"]: each for each in found}


def test_each_row_has_a_result(arrow: Any, command: Command, tmp_path: Path) -> None:
    write(
        arrow,
        tmp_path / "programs.parquet",
        id=["a", None, "c", "d", "a", "f"],
        code=["6 * 7", "x + 1", "while True: pass", "1", "1", None],
        inputs=[None, '{"x": 41}', None, "{broken", None, None],
        limits=[None, None, {"wall_seconds": 0.3}, None, None, None],
        asked_at=arrow.array([2**53] * 6, arrow.timestamp("s")),
    )
    done = command("map", "programs.parquet", "--out", "results.jsonl", *RUN)
    found = results(tmp_path / "results.jsonl")

    assert done.code == 1, done.err
    assert "not used: asked_at" in done.err
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


def test_nulls_of_structs_are_left_out(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    write(
        arrow,
        tmp_path / "programs.parquet",
        code=["x", "sorted(dir())[-1]"],
        inputs=[{"x": 1, "y": None}, {"x": None, "y": [1.5]}],
        limits=[{"wall_seconds": 5.0, "pids": None}, {"wall_seconds": None, "pids": 9}],
    )
    done = command("map", "programs.parquet", "--out", "results.jsonl", *RUN)
    found = results(tmp_path / "results.jsonl")

    assert done.code == 0, done.err
    assert [found[line]["result"]["value"] for line in (1, 2)] == [1, "y"]


def test_results_become_a_table_that_goes_on(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    path, out = tmp_path / "programs.parquet", tmp_path / "results.parquet"
    write(arrow, path, id=[7, 8], code=["6 * 7", "1 / 0"])
    done = command("map", path.name, "--out", out.name, *RUN)
    first = arrow.parquet.read_table(out).to_pylist()
    write(arrow, path, id=[7, 8, 9], code=["6 * 7", "1 / 0", "'third'"])
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    again = command("map", packed.name, "--out", out.name, *RUN, "--json").json
    rows = arrow.parquet.read_table(out).to_pylist()

    assert done.code == 0, done.err
    assert [each["id"] for each in sorted(first, key=str)] == ["7", "8"]
    assert (again["results"], again["before"]) == (3, 2)
    by_id = {each["id"]: each for each in rows}
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
        "packed.gz",
        "results.parquet",
        "results.parquet.jsonl",
    }


def test_a_table_of_others_is_left_alone(
    arrow: Any, command: Command, tmp_path: Path
) -> None:
    write(arrow, tmp_path / "programs.parquet", code=["1"])
    (tmp_path / "results.parquet").write_text("theirs")
    done = command("map", "programs.parquet", "--out", "results.parquet", *RUN)

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
    write(arrow, tmp_path / "a.parquet", program=["1"])
    if content is not None:
        (tmp_path / "a.parquet").write_bytes(content)
    done = command("map", "a.parquet", "--out", "results.jsonl")

    assert done.code == 2
    assert why in done.err
    assert not (tmp_path / "results.jsonl").exists()


def test_without_pyarrow_the_extra_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    (tmp_path / "a.parquet").write_bytes(b"PAR1....PAR1")
    (tmp_path / "a.jsonl").write_text('{"code": "1"}\n')
    read = command("map", "a.parquet", "--out", "results.jsonl")
    written = command("map", "a.jsonl", "--out", "results.parquet")

    for done in (read, written):
        assert done.code == 2
        assert "needs the extra 'parquet'" in done.err
        assert "pip install '.[parquet]'" in done.err
    assert {each.name for each in tmp_path.iterdir()} == {"a.parquet", "a.jsonl"}
