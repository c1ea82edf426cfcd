"""The same promises for an ordinary user, and the last resort where the OS has none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager

from ...conftest import missing, why_no_namespaces
from ...support.ordinary_user import SYSTEM_PYTHON, as_ordinary_user
from ...support.paths import TESTS
from ...support.toolcell_command import TOOLCELL

_RUN_ALL = """
config = SandboxConfig(backend="subprocess", python=python,
                       limits=Limits(memory_mib=64, pids=24, wall_seconds=20))
async def main():
    async with SandboxManager(config) as sandbox:
        print(json.dumps([(await sandbox.run(code)).to_json() for code in arguments]))
anyio.run(main)
"""

_STATUS_LINES = """
import os
lines = [line.partition(":") for line in open("/proc/self/status")]
status = {name: value.strip() for name, _, value in lines}
[os.getuid() == os.stat("/proc/1").st_uid, os.getpid(), status["Seccomp"]] + [
    int(status["Cap" + name], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
"""
_REACH_SUPERVISOR = """
import os, resource
reached = []
for name, attempt in {
    "mem": lambda: open("/proc/1/mem", "rb"),
    "fd": lambda: os.listdir("/proc/1/fd"),
    "environ": lambda: open("/proc/1/environ"),
    "limits": lambda: resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)),
    "affinity": lambda: os.sched_setaffinity(0, range(os.cpu_count())),
}.items():
    try:
        attempt()
        reached.append(name)
    except OSError:
        pass
os.kill(1, 9)
reached
"""
_FORKS = """
import os, time
started = 0
try:
    for _ in range(200):
        if os.fork() == 0: time.sleep(30); os._exit(0)
        started += 1
except OSError: pass
started
"""
_SPREAD_MEMORY = """
import os, time
for _ in range(4):
    if os.fork() == 0: x = b"1" * (40 << 20); time.sleep(30)
time.sleep(30)
"""


@pytest.fixture(scope="module")
def ordinary() -> list[dict[str, Any]]:
    """Results of five programs that an ordinary user ran."""
    if why := why_no_namespaces():
        missing(why)
    if os.getuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        missing("needs root, to become an ordinary user, and /usr/bin/python3")
    programs = [
        _STATUS_LINES,
        _REACH_SUPERVISOR,
        _FORKS,
        _SPREAD_MEMORY,
        "x = b'1' * (200 << 20)",
    ]
    printed = as_ordinary_user(
        _RUN_ALL, *programs, before="from toolcell.sandbox import Limits"
    )
    results: list[dict[str, Any]] = json.loads(printed)
    return results


def test_an_ordinary_user_has_the_same_walls(ordinary: list[dict[str, Any]]) -> None:
    result = ordinary[0]

    assert result["isolation"]["level"] == "namespaces"
    # One uid is all that can be mapped; PID 1 is another process all the same.
    assert result["value"] == [True, 2, "2", 0, 0, 0, 0, 0]


def test_the_supervisor_is_out_of_reach_under_the_same_uid(
    ordinary: list[dict[str, Any]],
) -> None:
    assert (ordinary[1]["status"], ordinary[1]["value"]) == ("ok", [])


def test_without_cgroups_rlimits_and_the_watchdog_hold(
    ordinary: list[dict[str, Any]],
) -> None:
    held = ordinary[2]["usage"]["enforced_by"]
    if held["memory_mib"] == "cgroup":
        missing("this user has cgroups of its own")

    assert (held["memory_mib"], held["pids"]) == ("watchdog", "rlimit")
    assert 0 < ordinary[2]["value"] < 24
    assert (ordinary[3]["status"], ordinary[3]["self_reported"]) == (
        "out_of_memory",
        False,
    )
    assert (ordinary[4]["status"], ordinary[4]["self_reported"]) == (
        "out_of_memory",
        False,
    )


NO_NAMESPACES = "echo 0 > /proc/sys/user/max_user_namespaces"
MASKED_PROC = "mount -t tmpfs none /proc/bus"
NO_SHARED_MEMORY = f"""
mount --rbind /dev /mnt && mount -t tmpfs none /dev &&
for each in full null random tty urandom zero
do touch /dev/$each && mount --bind /mnt/$each /dev/$each || exit
done && {NO_NAMESPACES}"""


WITHOUT = [sys.executable, str(TESTS / "support" / "without_layer.py")]
NO_LANDLOCK = [*WITHOUT, "landlock"]
# Neither root, nor one whose cells could have users of their own.
USER = ("--map-user=12345", "--map-group=12345")


def without_namespaces(
    *arguments: str,
    stdin: str,
    lacks: str = NO_NAMESPACES,
    before: Sequence[str] = (),
    as_user: Sequence[str] = ("-r",),
) -> subprocess.CompletedProcess[str]:
    """Run toolcell where the kernel gives no namespaces, or not all that belongs."""
    command = [*before, TOOLCELL, *arguments]
    why = why_no_namespaces()
    if why and lacks != NO_NAMESPACES:
        missing(why)
    if not why:
        if os.getuid() != 0 or shutil.which("unshare") is None:
            missing("needs root and util-linux, to take namespaces away")
        script = f'{lacks} && exec "$@"'
        command = ["unshare", "-Um", *as_user, "sh", "-c", script, "sh", *command]
    env = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )


def test_without_namespaces_cells_are_confined_and_it_is_said_once() -> None:
    done = without_namespaces("run", "-", stdin="print(1)")
    options = ("--isolation", "namespaces")
    refused = without_namespaces("run", "-", *options, stdin="1")

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert done.stderr.count("(namespaces: ") == 1
    assert "confined isolation" in done.stderr
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "this machine gives no cells" in refused.stderr


@pytest.mark.promise("GR-22", "A-05")
def test_without_landlock_too_nothing_runs_unless_asked_by_name() -> None:
    """GR-22, A-05."""
    done = without_namespaces("run", "-", stdin="print(1)", before=NO_LANDLOCK)

    assert (done.returncode, done.stdout) == (4, "")
    assert "confined: Landlock: Function not implemented" in done.stderr
    assert "lsm=landlock" in done.stderr


def test_where_proc_is_masked_cells_are_confined_and_it_is_said() -> None:
    """As in a container with seccomp=unconfined: namespaces, and no /proc for them."""
    done = without_namespaces("run", "-", stdin="print(1)", lacks=MASKED_PROC)
    options = ("--isolation", "namespaces")
    refused = without_namespaces("run", "-", *options, stdin="1", lacks=MASKED_PROC)

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "confined isolation" in done.stderr
    assert (refused.returncode, refused.stdout) == (4, "")
    for stderr in (done.stderr, refused.stderr):
        assert "mount /proc: Operation not permitted" in stderr
        assert "systempaths=unconfined" in stderr


def test_where_cells_get_no_network_of_their_own_the_cause_is_said_in_words() -> None:
    few = "echo 0 > /proc/sys/user/max_net_namespaces"
    done = without_namespaces("run", "-", stdin="print(1)", lacks=few)

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "(namespaces: clone: No space left on device; `toolcell" in done.stderr


def test_where_users_are_not_mapped_cells_are_confined_and_the_cause_is_said() -> None:
    """As on Ubuntu: who makes namespaces finds no right in them."""
    before = [*WITHOUT, "user-maps"]
    kernel: Any = {"lacks": ":", "before": before, "as_user": USER}
    done = without_namespaces("run", "-", stdin="print(1)", **kernel)
    options = ("--isolation", "namespaces")
    refused = without_namespaces("run", "-", *options, stdin="1", **kernel)
    doctor = without_namespaces("doctor", "--json", stdin="", **kernel)

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "confined isolation" in done.stderr
    assert (refused.returncode, refused.stdout) == (4, "")
    for stderr in (done.stderr, refused.stderr):
        assert "its map of users was refused: Operation not permitted" in stderr
    report = json.loads(doctor.stdout)
    assert report["level"] == "confined"
    for text in (refused.stderr, report["summary"]):
        assert "kernel.apparmor_restrict_unprivileged_userns=0" in text


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        ("mounts", "mount /: Permission denied"),
        ("loopback", "loopback interface: Operation not permitted"),
    ],
)
def test_where_namespaces_give_no_rights_cells_are_confined(
    layer: str, cause: str
) -> None:
    """As under AppArmor, which may refuse each act within them by itself."""
    before = [*WITHOUT, layer]
    kernel: Any = {"lacks": ":", "before": before, "as_user": USER}
    done = without_namespaces("run", "-", stdin="print(1)", **kernel)
    options = ("--isolation", "namespaces")
    refused = without_namespaces("run", "-", *options, stdin="1", **kernel)
    doctor = without_namespaces("doctor", "--json", stdin="", **kernel)

    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "confined isolation" in done.stderr
    assert done.stderr.count(f"{cause}; `toolcell doctor` says what helps") == 1
    assert (refused.returncode, refused.stdout) == (4, "")
    assert cause in refused.stderr
    report = json.loads(doctor.stdout)
    assert report["level"] == "confined"
    for text in (refused.stderr, report["summary"]):
        assert "kernel.apparmor_restrict_unprivileged_userns=0" in text
        assert "--security-opt apparmor=unconfined" in text


@pytest.mark.parametrize(
    ("layer", "cause"),
    [
        ("memory-to-unshare", "unshare: Cannot allocate memory"),
        ("memory-to-mount", "mount /: Cannot allocate memory"),
        ("memory-in-cell", "loopback interface: Cannot allocate memory"),
        ("life-in-cell", "it ended before its walls were finished"),
    ],
)
@pytest.mark.parametrize("weakest", ["confined", "process"])
def test_a_cause_that_may_pass_makes_no_cell_weaker(
    layer: str, cause: str, weakest: str
) -> None:
    """Programs can make memory short: they would weaken the cells of others."""
    before = [*WITHOUT, layer]
    kernel: Any = {"lacks": ":", "before": before, "as_user": USER}
    options = ("--isolation", weakest)
    done = without_namespaces("run", "-", *options, stdin="print(1)", **kernel)

    assert (done.returncode, done.stdout) == (4, "")
    assert "no cell could be made: namespaces: " in done.stderr
    assert cause in done.stderr
    assert "confined: " not in done.stderr


_TAKE_NAMESPACES_AWAY = """
async def main():
    config = SandboxConfig(backend="subprocess", pool=0)
    async with SandboxManager(config) as sandbox:
        earlier = await sandbox.run("1")
        pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
        launcher = sandbox._backend._launcher._process
        launcher.kill()
        launcher.wait()
        print(earlier.isolation.level, (await sandbox.run("1")).isolation.level)
import anyio, pathlib
from toolcell.sandbox import SandboxConfig, SandboxManager
anyio.run(main)
"""


def test_a_later_change_of_level_is_warned_of() -> None:
    if why := why_no_namespaces():
        missing(why)
    done = subprocess.run(
        ["unshare", "-Umr", sys.executable, "-c", _TAKE_NAMESPACES_AWAY],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == "namespaces confined\n", done.stderr
    assert "cells are 'confined' from now on, not 'namespaces'" in done.stderr
    assert "unshare: No space left on device" in done.stderr


def test_without_shared_memory_programs_run_and_doctor_names_it() -> None:
    """As in a container with `--ipc none`."""
    lock = (
        "import multiprocessing as m\ntry: m.Lock()\nexcept OSError: print('no lock')"
    )
    done = without_namespaces("run", "-", stdin=lock, lacks=NO_SHARED_MEMORY)
    doctor = without_namespaces("doctor", "--json", stdin="", lacks=NO_SHARED_MEMORY)

    assert (done.returncode, done.stdout) == (0, "no lock\n"), done.stderr
    assert "confined isolation" in done.stderr
    checks = {each["name"]: each for each in json.loads(doctor.stdout)["checks"]}
    assert not checks["shared memory"]["ok"]
    assert "/dev/shm" in checks["shared memory"]["fix"]


def test_a_kernel_without_user_notification_is_named() -> None:
    """Linux before 5.19, for a user: no wall stands between a user's own files."""
    before = [*WITHOUT, "user-maps,user-notification"]
    kernel: Any = {"lacks": ":", "before": before, "as_user": USER}
    done = without_namespaces("run", "-", stdin="print(1)", **kernel)

    assert (done.returncode, done.stdout) == (4, "")
    assert "confined: seccomp user notification: Invalid argument" in done.stderr
    assert "boot Linux 5.19" in done.stderr


def in_process(code: str, seconds: int = 30) -> dict[str, Any]:
    """Run a program in `process` isolation."""
    limits = ("--timeout", f"{seconds}", "--memory", "64")
    options = ("--isolation", "process", *limits, "--json")
    done = without_namespaces("run", "-", *options, stdin=code, before=NO_LANDLOCK)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_process_isolation_runs_restricted_python() -> None:
    result = in_process(
        "import math\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "    def twice(self): return self.x * 2\n"
        "point = Point(2)\npoint.x = 3\n"
        "first, (second, third) = 1, (2, 3)\n"
        "table = {}\ntable['k'] = [n for n in range(3) if n]\ntable['k'][0] = 6\n"
        "print('printed', end='!')\n"
        "[point.twice(), first, second, third, table, math.floor(2.5)]"
    )

    assert (result["status"], result["stdout"]) == ("ok", "printed!")
    assert result["value"] == [6, 1, 2, 3, {"k": [6, 2]}, 2]
    assert result["isolation"]["level"] == "process"
    assert "restricted_python" in result["isolation"]["layers"]


@pytest.fixture(scope="module")
async def restricted() -> AsyncIterator[SandboxManager]:
    limits = Limits(wall_seconds=60)
    config = SandboxConfig(
        backend="process", minimum_isolation="process", limits=limits
    )
    async with SandboxManager(config) as manager:
        yield manager


@pytest.mark.anyio
@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "from sys import modules",
        "().__class__",
        "open('/etc/passwd')",
        "eval('1')",
        "print.__self__",
        "def f(_getattr_): pass",
        "exec('1')",
    ],
)
async def test_process_isolation_refuses_with_the_line(
    restricted: SandboxManager, code: str
) -> None:
    result = await restricted.run(code)

    assert result.status == "refused"
    assert result.reasons[0].startswith("line 1: ")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "code",
    [
        "getattr((), '_' + '_class_' + '_')",
        "'{0.__class__}'.format(())",
        "import json\njson.codecs",
        "import re\nre.sre_parse",
        "def f():\n    yield 1\ngetattr(f(), 'gi_' + 'frame')",
        "try:\n    (1).nothing\nexcept AttributeError as error:\n    error.obj",
        "import math\nmath.pi = 3",
        "str.format_map",
    ],
)
async def test_process_isolation_guards_at_run_time(
    restricted: SandboxManager, code: str
) -> None:
    assert (await restricted.run(code)).status == "error"


def test_process_isolation_keeps_time_and_memory() -> None:
    assert in_process("while True: pass", seconds=1)["status"] == "timeout"
    assert in_process("x = [0] * (1 << 28)")["status"] == "out_of_memory"
