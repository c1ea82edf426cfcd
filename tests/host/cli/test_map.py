"""`toolcell map`: each program of a file has one result, whatever happens meanwhile."""

from __future__ import annotations

import fcntl
import gzip
import json
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ...conftest import run_apart
from ...support.child import Child
from ...support.polling import until
from ...support.process_tree import below, runs
from ...support.terminal import Terminal
from ...support.toolcell_command import TOOLCELL
from .conftest import Command

MANY = 10_000
FULL = [pytest.mark.full, pytest.mark.timeout(3000)]
ARGUMENTS = ("map", "programs.jsonl", "--out", "results.jsonl")
SUBPROCESS = ("--backend", "subprocess")
BOUND_MB = 30


def write(folder: Path, *lines: object) -> None:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "programs.jsonl").write_text("".join(f"{text}\n" for text in texts))


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"id": f"p{number}", "code": str(number)} for number in range(count)]


def read(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "results.jsonl").read_text()
    assert text.endswith("\n") or not text
    return [json.loads(line) for line in text.splitlines()]


def written(folder: Path) -> int:
    path = folder / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(folder: Path) -> subprocess.Popen[str]:
    return Child(
        [TOOLCELL, *ARGUMENTS, *SUBPROCESS],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    run_apart(until, condition)


def test_each_line_has_a_result(command: Command, tmp_path: Path) -> None:
    write(
        tmp_path,
        {"id": "value", "code": "6 * 7"},
        {
            "id": 2,
            "code": "x + open('a').read()",
            "inputs": {"x": "b"},
            "files": {"a": "c"},
        },
        {"code": "echo hi; exit 3", "language": "bash"},
        {"id": "long", "code": "while True: pass", "limits": {"wall_seconds": 0.3}},
        {"id": "wide", "code": "1", "limits": {"wall_seconds": 900}},
    )

    done = command(*ARGUMENTS, *SUBPROCESS, "--json")

    assert done.code == 1
    statuses = {"ok": 2, "exit": 1, "timeout": 1, "not_run": 1}
    assert done.json == {"programs": 5, "results": 5, "before": 0, "statuses": statuses}
    found = {each["line"]: each for each in read(tmp_path)}
    assert [found[line]["id"] for line in range(1, 6)] == [
        "value",
        2,
        None,
        "long",
        "wide",
    ]
    assert [found[line]["result"]["value"] for line in (1, 2)] == [42, "bc"]
    assert found[3]["result"]["stdout"] == "hi\n"
    assert "wall_seconds" in found[5]["error"]["message"]


BAD = {
    "nonsense": "not JSON",
    "[1]": "no JSON object",
    '{"id": "b"}': "Field required",
    '{"code": "1", "code": "2"}': "given twice",
    '{"id": true, "code": "1"}': "id",
    '{"id": "a", "code": "1"}': "stands in an earlier line",
    '{"code": "1", "language": "cobol"}': "unknown language",
    '{"code": "1", "files": {"../x": ""}}': "leads out",
    "\ufeff{}": "not JSON",
}


@pytest.mark.promise("QP3")
def test_a_line_that_cannot_be_run_ends_nothing(
    command: Command, tmp_path: Path
) -> None:
    write(tmp_path, {"id": "a", "code": "1"}, "", *BAD, {"id": "z", "code": "2"})

    done = command(*ARGUMENTS, *SUBPROCESS)

    assert (done.code, done.err) == (1, "")
    assert done.out == f"{len(BAD) + 2} results: {len(BAD)} not_run, 2 ok\n"
    found = {each["line"]: each for each in read(tmp_path)}
    for line, why in enumerate(BAD.values(), 3):
        assert why in found[line]["error"]["message"]
        assert found[line]["id"] == ("b" if "Field required" in why else None)
    assert 2 not in found


@pytest.mark.parametrize(
    "begin", [b"", b"\xef\xbb\xbf", b"gzip", b"\xef\xbb\xbfgzip", b"pipe"]
)
@pytest.mark.promise("JB1", "QP1", "QP2")
def test_programs_come_in_every_usual_form(tmp_path: Path, begin: bytes) -> None:
    """With a mark of UTF-8, compressed, through a pipe, and with columns of others."""
    rows = [{"id": n, "prompt": "add", "code": f"1 + {n}"} for n in (1, 2)]
    text = begin.removesuffix(b"gzip").removeprefix(b"pipe")
    text += b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    if begin.endswith(b"gzip"):
        text = gzip.compress(text)
    (tmp_path / "p").write_bytes(text)

    piped = begin == b"pipe"
    done = subprocess.run(
        [TOOLCELL, "map", "-" if piped else "p", "--out", "r", *SUBPROCESS],
        input=text if piped else b"",
        capture_output=True,
        cwd=tmp_path,
    )

    assert done.stdout == b"2 results: 2 ok\n", done.stderr
    found = [json.loads(line) for line in (tmp_path / "r").read_text().splitlines()]
    assert sorted((each["id"], each["result"]["value"]) for each in found) == [
        (1, 2),
        (2, 3),
    ]
    assert [each["meta"] for each in found] == [{"prompt": "add"}] * 2


@pytest.mark.promise("QP5")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'[{"code": "1"}]', "one JSON text"),
        (b'[\n  {"code": "1"}\n]\n', "one JSON text"),
        (b'{\n  "code": "1"\n}\n', "one JSON text"),
        ('{"code": "1"}\n'.encode("utf-16"), "UTF-16"),
        (gzip.compress(b'{"code": "1"}\n' * 99, mtime=0)[:-9], "cannot read"),
    ],
)
def test_a_file_of_another_kind_is_refused_as_a_whole(
    command: Command, tmp_path: Path, text: bytes, why: str
) -> None:
    (tmp_path / "programs.jsonl").write_bytes(text)

    done = command(*ARGUMENTS, *SUBPROCESS)

    assert (done.code, why in done.err) == (2, True), done.err


@pytest.mark.promise("QP3")
def test_a_line_that_is_too_long_is_not_run(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolcell.host.cli.programs.batch_programs.MAX_LINE_BYTES", 100)
    write(tmp_path, {"code": "1" * 500}, {"id": "b", "code": "1"})

    command(*ARGUMENTS, *SUBPROCESS)

    found = {each["line"]: each for each in read(tmp_path)}
    assert "more than 100 bytes" in found[1]["error"]["message"]
    assert found[2]["status"] == "ok"


def test_the_same_command_runs_only_what_has_no_result(
    command: Command, tmp_path: Path
) -> None:
    lines: list[object] = [{"id": "a", "code": "1"}, {"code": "2"}, "nonsense"]
    write(tmp_path, *lines)
    command(*ARGUMENTS, *SUBPROCESS)
    before = (tmp_path / "results.jsonl").read_text()
    torn = '{"id": "b", "line": 4, "status": "ok", "result": {"value": "' + 9999 * "x"
    (tmp_path / "results.jsonl").write_text(before + torn)
    write(tmp_path, *lines, {"id": "b", "code": "3"}, {"id": "a", "code": "4"})

    done = command(*ARGUMENTS, *SUBPROCESS)

    assert done.out == "5 results (3 from before): 3 ok, 2 not_run\n"
    assert (tmp_path / "results.jsonl").read_text().startswith(before)
    assert [each["line"] for each in read(tmp_path)[3:]] == [5, 4]
    assert read(tmp_path)[4]["id"] == "b"


@pytest.mark.promise("JB2")
def test_going_on_with_other_options_is_refused(
    command: Command, tmp_path: Path
) -> None:
    write(tmp_path, {"id": "a", "code": "1"})
    options = (*SUBPROCESS, "--output-bytes", "2000")
    first = command(*ARGUMENTS, *options)
    before = (tmp_path / "results.jsonl").read_text()
    write(tmp_path, {"id": "a", "code": "1"}, {"id": "b", "code": "2"})
    other = command(*ARGUMENTS, *SUBPROCESS, "--timeout", "5", "--cpu-seconds", "1")
    unchanged = (tmp_path / "results.jsonl").read_text() == before
    same = command(*ARGUMENTS, *options, "--concurrency", "1")

    assert (first.code, other.code, same.code) == (0, 2, 0)
    assert "--timeout 30.0, now 5.0" in other.err
    assert "--cpu-seconds None, now 1.0" in other.err
    assert "--output-bytes 2000, now None" in other.err
    assert unchanged
    assert [each["options"] for each in read(tmp_path)] == [
        {
            "backend": "subprocess",
            "programs_per_cell": 1,
            "timeout": 30.0,
            "memory": 256,
            "output_bytes": 2000,
            "isolation": "confined",
        }
    ] * 2
    assert {each["version"] for each in read(tmp_path)} == {version("toolcell")}


@pytest.mark.promise("JB7")
def test_limits_of_cpu_and_output(command: Command, tmp_path: Path) -> None:
    write(
        tmp_path,
        {"id": "cpu", "code": "while True: pass"},
        {"id": "output", "code": "print('x' * 9000)"},
    )
    limits = ("--cpu-seconds", "0.2", "--output-bytes", "2000")
    command(*ARGUMENTS, *SUBPROCESS, *limits)
    found = {each["id"]: each for each in read(tmp_path)}

    assert found["cpu"]["status"] == "cpu_limit"
    assert 0 < found["output"]["result"]["stdout"].count("x") <= 2000
    refused = command(*ARGUMENTS, "--output-bytes", "0")
    assert (refused.code, "--output-bytes must be" in refused.err) == (2, True)


@pytest.mark.parametrize("id_", ["a", None])
def test_results_of_an_earlier_toolcell_are_named(
    command: Command, tmp_path: Path, id_: str | None
) -> None:
    write(tmp_path, {"code": "1"})
    result = {"id": id_, "line": 1, "status": "ok", "result": {"value": 1}}
    (tmp_path / "results.jsonl").write_text(text := json.dumps(result) + "\n")
    done = command(*ARGUMENTS, *SUBPROCESS)

    assert done.code == 2
    assert "results of an earlier toolcell" in done.err
    assert "name a new file" in done.err
    assert (tmp_path / "results.jsonl").read_text() == text


@pytest.mark.promise("cluster-41")
@pytest.mark.parametrize(
    "text", ['{"id": "a", "code": "1"}\n', "dear diary", '{"id": 1}\n', "[]\n", "\n"]
)
def test_a_file_of_something_else_is_left_alone(
    command: Command, tmp_path: Path, text: str
) -> None:
    write(tmp_path, {"code": "1"})
    (tmp_path / "results.jsonl").write_text(text)

    done = command(*ARGUMENTS, *SUBPROCESS)

    assert done.code == 2
    assert "no results of `toolcell map`" in done.err
    assert (tmp_path / "results.jsonl").read_text() == text


def test_files_that_cannot_be_used_are_told(command: Command, tmp_path: Path) -> None:
    missing = command(*ARGUMENTS, *SUBPROCESS)
    assert (missing.code, "cannot read programs.jsonl" in missing.err) == (2, True)
    assert not (tmp_path / "results.jsonl").exists()

    write(tmp_path, {"code": "1"})
    folder = command("map", "programs.jsonl", "--out", ".", *SUBPROCESS)
    assert (folder.code, "cannot write ." in folder.err) == (2, True)
    device = command("map", "programs.jsonl", "--out", "/dev/null", *SUBPROCESS)
    assert (device.code, "not a plain file" in device.err) == (2, True)
    stdout = command("map", "programs.jsonl", "--out", "-", *SUBPROCESS)
    assert (stdout.code, "not a plain file" in stdout.err) == (2, True)


def test_two_processes_do_not_write_one_file(command: Command, tmp_path: Path) -> None:
    write(tmp_path, {"code": "1"})
    with (tmp_path / "results.jsonl").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = command(*ARGUMENTS, *SUBPROCESS)

    assert (done.code, "another process writes" in done.err) == (2, True)


def test_ctrl_c_ends_the_cells_and_the_next_start_goes_on(tmp_path: Path) -> None:
    endless = {"id": "endless", "code": "import time; time.sleep(600)"}
    write(tmp_path, {"id": "a", "code": "1"}, endless, endless)
    with start(tmp_path) as process:
        wait_for(lambda: written(tmp_path) == 2)
        started = below(process.pid)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)

    assert process.returncode == 130
    assert told.splitlines() == [
        "toolcell: 2 of 3 have a result; the same command goes on",
        "toolcell: ended by SIGINT",
    ]
    wait_for(lambda: not any(runs(*each) for each in started.items()))
    write(tmp_path, {"id": "a", "code": "1"}, {"id": "endless", "code": "2"})
    with start(tmp_path) as process:
        out, _ = process.communicate(timeout=120)
    assert out == "3 results (2 from before): 2 ok, 1 not_run\n"


@pytest.mark.promise("cluster-40", "QP4")
@pytest.mark.parametrize(
    ("count", "kills"), [(40, 3), pytest.param(MANY, 10, marks=FULL, id="whole")]
)
def test_kills_lose_no_program_and_run_none_twice(
    tmp_path: Path, count: int, kills: int
) -> None:
    write(tmp_path, *numbered(count))
    for kill in range(1, kills + 1):
        wanted = count * kill // (kills + 1)
        before = written(tmp_path)
        kept = (tmp_path / "results.jsonl").read_bytes() if before else b""
        with start(tmp_path) as process:
            wait_for_lines(process, tmp_path, wanted)
            process.kill()
        assert (
            (tmp_path / "results.jsonl")
            .read_bytes()
            .startswith(kept[: kept.rfind(b"\n") + 1])
        )
    with start(tmp_path) as process:
        out, _ = process.communicate()

    assert process.returncode == 0
    assert f"{count} results (" in out
    found = Counter(each["id"] for each in read(tmp_path))
    assert found == Counter(each["id"] for each in numbered(count))
    assert all(f"p{each['result']['value']}" == each["id"] for each in read(tmp_path))


def wait_for_lines(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    while True:
        ended = process.poll() is not None
        if written(folder) >= count:
            return
        assert not ended
        time.sleep(0.005)


def peak_mib(folder: Path, count: int) -> float:
    """Return the largest resident size of a batch's own process.

    Not `ru_maxrss`, which begins with that of the process that forked it.
    """
    folder.mkdir()
    write(folder, *numbered(count))
    peak = 0
    with start(folder) as process:
        while process.poll() is None:
            peak = max(peak, high_water_kb(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
    assert process.returncode == 0
    assert len(read(folder)) == count
    return peak / 1024


def high_water_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int((re.findall(r"VmHWM:\s*(\d+) kB", status) or [0])[0])


@pytest.mark.parametrize("count", [400, pytest.param(MANY, marks=FULL, id="whole")])
def test_memory_does_not_grow_with_the_batch(tmp_path: Path, count: int) -> None:
    few = peak_mib(tmp_path / "few", 100)
    many = peak_mib(tmp_path / "many", count)

    print(f"{count} programs: {many:.1f} MiB; 100: {few:.1f} MiB")
    assert many - few <= BOUND_MB


def test_a_terminal_shows_the_rate_and_the_time_left(tmp_path: Path) -> None:
    write(tmp_path, *numbered(30))
    with Terminal(*ARGUMENTS, *SUBPROCESS, folder=tmp_path) as terminal:
        terminal.expect("/30")
        terminal.expect("/s")
        terminal.expect("30 results: 30 ok")
