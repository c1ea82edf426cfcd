"""`toolcell run`, `doctor` and `clean` as a user meets them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import typer

from toolcell.host.cli.machine.cells import doctor, print_report
from toolcell.host.cli.programs.run import read_file
from toolcell.sandbox.spi import DoctorCheck, DoctorReport

from ...conftest import BackendRow, apart, level_here
from ...support.child import Child
from ...support.toolcell_command import TOOLCELL, options_of, toolcell

SUBPROCESS = ("--backend", "subprocess")


@pytest.mark.parametrize(
    ("code", "exit_code", "status"),
    [
        ("print(1)", 0, "ok"),
        ("1 / 0", 1, "error"),
        ("raise SystemExit(42)", 42, "exit"),
        ("raise SystemExit(2**70)", 255, "exit"),
        ("raise SystemExit(-(2**70))", 255, "exit"),
        ("raise SystemExit(2**40 + 7)", 7, "exit"),
        ("while True: pass", 124, "timeout"),
        ("x = b'1' * (600 << 20)", 137, "out_of_memory"),
        ("import os; os.kill(os.getpid(), 9)", 137, "killed"),
        ("import os; os.kill(os.getpid(), 11)", 139, "crashed, SIGSEGV"),
        ("import os; os.kill(os.getpid(), 34)", 162, "crashed, SIGRTMIN"),
        ("import os; os.kill(os.getpid(), 40)", 168, "crashed, SIG40"),
    ],
)
def test_exit_codes_and_summary(code: str, exit_code: int, status: str) -> None:
    """DESIGN §9. What a program is said to have done is tested on each backend."""
    # A busy machine takes a while to fill the memory.
    seconds = "1.5" if status == "timeout" else "60"
    options = [*SUBPROCESS, "--timeout", seconds]
    done = toolcell("run", "-", *options, stdin=code.encode())

    last_line = done.stderr.decode().splitlines()[-1]
    assert done.returncode == exit_code
    assert last_line.startswith(f"toolcell: {status}")


def test_the_summary_says_where_it_ran(backend: BackendRow) -> None:
    done = toolcell("run", "-", *options_of(backend), stdin=b"raise SystemExit(42)")

    last_line = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 42
    assert last_line.startswith("toolcell: exit")
    assert f"{backend.options['backend']} backend" in last_line
    assert "isolation" in last_line


@pytest.mark.promise("FP22")
def test_streams_that_lead_to_one_place_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "main.py"
    file.write_text(
        "import sys\nfor n in range(3): print(n); print(-n, file=sys.stderr)"
    )
    done = subprocess.run(
        [TOOLCELL, "run", str(file), *SUBPROCESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("0\n0\n1\n-1\n2\n-2\ntoolcell: ")


@pytest.mark.promise("FP27")
def test_a_file_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a:b.txt").write_bytes(b"whole")
    (tmp_path / "a").write_bytes(b"part")
    assert read_file(f"{tmp_path}/a:b.txt") == ("a:b.txt", b"whole")
    assert read_file(f"{tmp_path}/a:c.txt") == ("c.txt", b"part")


def test_json_is_one_line_and_nothing_else(backend: BackendRow) -> None:
    code = b"import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': [1]}"
    done = toolcell("run", "-", "--json", *options_of(backend), stdin=code)

    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    assert (result["status"], result["value"]) == ("ok", {"a": [1]})
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")


def test_inputs_are_json_or_text() -> None:
    code = b"print(type(n).__name__, type(t).__name__, t)"
    options = ["--input", "n=[1]", "--input", "t=a=b", *SUBPROCESS]
    done = toolcell("run", "-", *options, stdin=code)

    assert done.stdout == b"list str a=b\n"


@pytest.mark.promise("QD7")
def test_variables_and_processes_are_options() -> None:
    code = (
        "import os, time\nprint(time.localtime(0).tm_hour, os.environ['A'])\n"
        "for n in range(64):\n    if os.fork() == 0: time.sleep(60)"
    )
    options = ["--env", "TZ=Etc/GMT-5", "--env", "A=b=c", "--pids", "4"]
    done = toolcell("run", "-", *SUBPROCESS, *options, stdin=code.encode())

    assert done.stdout == b"5 b=c\n", done.stderr
    assert b"BlockingIOError" in done.stderr


def test_bash_by_file_name(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("echo $BASH_VERSION | cut -c1; exit 3")
    done = toolcell("run", str(script), *SUBPROCESS)

    assert (done.returncode, done.stdout.strip().isdigit()) == (3, True)


def test_output_is_live(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text("import time\nprint('early')\ntime.sleep(600)")
    arguments = [TOOLCELL, "run", str(program), *SUBPROCESS, "--timeout", "900"]
    with Child[bytes](arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # The program would go on for longer than a test may take.
        assert process.stdout.readline() == b"early\n"
        process.terminate()
        process.communicate()


def test_interrupting_the_command_leaves_no_process(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    mark = f"toolcell-test-{uuid.uuid4().hex}"
    program.write_text(
        "import subprocess, sys\n"
        f"subprocess.Popen(['/bin/sh', '-c', 'sleep 600 # {mark}'])\n"
        "print('up', flush=True)\nimport time; time.sleep(600)"
    )
    arguments = [TOOLCELL, "run", str(program), *SUBPROCESS]
    with Child[bytes](arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(2)
        assert process.wait(120) == 130

    assert mark not in _command_lines()


def _command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(
                path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            )
        except OSError:
            continue
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no-such-file.py"], "there is no file no-such-file.py"),
        (["run", "."], ". is a directory"),
        (["run", "/dev/zero"], "has more than 1048576 bytes"),
        (["run", "-", "--file", "/dev/zero:x"], "has more than 67108864 bytes"),
        (["run", "-", "--input", "novalue"], "not of the form name=value"),
        (["run", "-", "--input", "a-b=1"], "cannot be a variable"),
        (["run", "-", "--input", "x=" + "[" * 50_000], "x is nested too deeply"),
        (["run", "-", "--timeout", "-1"], "--timeout must be"),
        (["run", "-", "--timeout", "nan"], "--timeout must be"),
        (["run", "-", "--memory", "1"], "--memory must be"),
        (["run", "-", "--pids", "0"], "--pids must be"),
        (["run", "-", "--env", "TZ"], "not of the form NAME=VALUE"),
        (["run", "-", "--env", "A B=1"], "--env"),
        (["run", "-", "--backend", "vm"], "backend"),
        (["run", "-", "--language", "perl", *SUBPROCESS], "unknown language"),
        (["run", "-", "--isolation", "kernel", *SUBPROCESS], "isolation"),
        (["run", "-", "--runtime", "runsc", *SUBPROCESS], "no runtime 'runsc'"),
        (["images", "build", "nothing"], "there is no image"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str
) -> None:
    done = toolcell(*arguments)

    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines), done.stdout) == (2, 1, b"")
    assert message in lines[0]


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "latin.py"
    file.write_bytes(b"print('\xe9')")
    done = toolcell("run", str(file))

    assert done.returncode == 2
    assert b"is not UTF-8 (byte 7)" in done.stderr


def test_unknown_options_are_bad_usage() -> None:
    assert toolcell("run", "-", "--no-such-option").returncode == 2


@pytest.mark.promise("GR-17", "A-05")
def test_without_docker_the_subprocess_backend_is_used_and_said() -> None:
    """GR-17, A-05: never a silent downgrade."""
    env = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "PATH": "/usr/bin:/bin"}
    done = toolcell("run", "-", env=env, stdin=b"print(1)")

    notice, *weaker, summary = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert notice.startswith("toolcell: using the subprocess backend: no Docker")
    assert len(weaker) == (level_here() == "confined")
    assert f"subprocess backend, {level_here()} isolation" in summary


def test_the_notice_is_json_too() -> None:
    env = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "PATH": "/usr/bin:/bin"}
    done = toolcell("run", "-", "--json", env=env, stdin=b"1")

    notices = [json.loads(line)["notice"] for line in done.stderr.splitlines()]
    assert done.returncode == 0
    assert notices[0].startswith("using the subprocess backend: no Docker engine")


def test_asking_for_a_container_without_docker_is_refused() -> None:
    env = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "PATH": "/usr/bin:/bin"}
    for options in (["--isolation", "container"], ["--backend", "docker"]):
        done = toolcell("run", "-", *options, env=env, stdin=b"print(1)")

        assert (done.returncode, done.stdout) == (4, b"")
        assert b"no Docker engine answers" in done.stderr


def test_without_an_engine_its_sdk_is_not_loaded() -> None:
    # Not asked of a module in this process, where other tests have loaded it.
    env = {"DOCKER_HOST": "unix:///nowhere", "PYTHONPROFILEIMPORTTIME": "1"}
    done = toolcell("run", "-", env={**env, "PATH": "/usr/bin:/bin"}, stdin=b"1")
    loaded = re.findall(rb"\| +(\S+)$", done.stderr, re.M)

    assert done.returncode == 0
    assert b"toolcell.sandbox.backends.docker" in loaded
    assert b"docker" not in loaded


def test_doctor_finds_what_run_uses() -> None:
    done = toolcell(
        "doctor", "--json", env={"DOCKER_HOST": "unix:///nowhere", "HOME": "/"}
    )

    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert (report["backend"], report["level"]) == ("subprocess", level_here())
    for layer in ("user", "mount", "pid", "net", "ipc", "uts"):
        assert checks[f"namespace {layer}"]["ok"] or level_here() == "confined"
    assert "seccomp" in checks["subprocess cell"]["detail"]
    assert not checks["docker engine"]["ok"]
    assert "DOCKER_HOST" in checks["docker engine"]["fix"]


def test_doctor_is_a_table_for_people() -> None:
    done = toolcell("doctor", env={"DOCKER_HOST": "unix:///nowhere", "COLUMNS": "160"})

    assert done.returncode == 0
    [summary, *_] = done.stdout.decode().splitlines()
    assert f"in cells of {level_here()!r} isolation (subprocess)" in summary


def test_doctor_tries_the_cells_of_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = '[sandbox]\nbackend = "docker"\ndocker_host = "tcp://127.0.0.1:1"\n'
    (tmp_path / "toolcell.toml").write_text(cells)
    with pytest.raises(typer.Exit) as ended:
        apart(lambda: doctor(as_json=True, config=tmp_path / "toolcell.toml"))
    report = json.loads(capsys.readouterr().out)

    assert (ended.value.exit_code, report["backend"]) == (4, None)
    assert "docker engine" in [each["name"] for each in report["checks"]]


def test_doctor_tells_a_remedy_once_for_all_its_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    rows = [("a", "ask"), ("b", "ask"), ("c", ""), ("d", "ask"), ("e", "buy")]
    checks = tuple(DoctorCheck(name=n, ok=not fix, fix=fix) for n, fix in rows)
    print_report(DoctorReport(backend=None, level=None, checks=checks))
    lines = capsys.readouterr().out.splitlines()
    told = [line.split("│")[4].strip() for line in lines if "│" in line]

    assert told == ["ask", "as above", "", "as above", "buy"]


def test_clean_tells_what_it_did() -> None:
    done = toolcell("clean", "--json")
    told = json.loads(done.stdout)

    assert list(told) == ["removed", "left"]
    # A test beside this one may hold what cannot be removed.
    assert done.returncode == bool(told["left"])


def test_no_heavy_import_before_a_command_is_known() -> None:
    """The command line starts without the packages that only one command needs."""
    code = (
        "import sys, toolcell.host\n"
        "heavy = {'docker', 'requests', 'RestrictedPython', 'anyio', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )

    assert done.stdout == "[]\n"


def test_files_go_in_and_artifacts_come_out(tmp_path: Path) -> None:
    data, program, out = (tmp_path / name for name in ("data", "program.py", "out"))
    data.write_text("carried")
    program.write_text(
        "import os\nos.makedirs('artifacts/sub')\n"
        "open('artifacts/sub/copy', 'w').write(open('in/data').read())"
    )
    arguments = [str(program), "--file", f"{data}:in/data", "--out", str(out)]
    done = toolcell("run", *arguments, "--backend", "subprocess")
    again = toolcell("run", *arguments, "--backend", "subprocess")

    assert done.returncode == 0, done.stderr
    assert (out / "sub" / "copy").read_text() == "carried"
    assert again.returncode == 2
    assert b"cannot make the folder" in again.stderr


def test_a_missing_file_for_the_work_dir_is_bad_input(tmp_path: Path) -> None:
    done = toolcell("run", "-", "--file", str(tmp_path / "none"), stdin=b"1")

    assert done.returncode == 2
    assert b"there is no file" in done.stderr


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        (("--backend", "docker"), 4),
        (("--input", "a-b=1", *SUBPROCESS), 2),
    ],
)
def test_a_folder_is_not_left_behind_when_nothing_ran(
    tmp_path: Path, options: tuple[str, ...], exit_code: int
) -> None:
    out = tmp_path / "out"
    env = {"DOCKER_HOST": "unix:///nowhere/docker.sock", "PATH": "/usr/bin:/bin"}
    done = toolcell("run", "-", "--out", str(out), *options, env=env, stdin=b"1")

    assert done.returncode == exit_code
    assert not out.exists()


@pytest.mark.promise("N20")
def test_the_command_says_its_version_and_lists_commands_as_they_are_met() -> None:
    version, short, listed = (toolcell(each) for each in ("--version", "-V", "-h"))

    assert re.fullmatch(rb"toolcell \d+\.\d+\.\d+\n", version.stdout)
    assert (short.stdout, short.returncode) == (version.stdout, 0)
    text = listed.stdout.decode()
    first = ["run", "map", "repl", "doctor", "init", "serve", "call", "tools", "policy"]
    places = [re.search(rf"^\W*{name}  ", text, re.M) for name in first]
    found = [place.start() for place in places if place is not None]
    assert len(found) == len(first)
    assert found == sorted(found)
    assert b"Usage" in toolcell("run", "-h").stdout
