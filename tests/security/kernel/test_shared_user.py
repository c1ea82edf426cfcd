"""Programs of `confined` cells whose user is the host's own attack what else it has."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ...support.ordinary_user import (
    ORDINARY_USER,
    as_ordinary_user,
    need_an_ordinary_user,
)

_BEFORE = """
import subprocess
import toolcell.sandbox.sessions.session
from pathlib import Path
from toolcell.sandbox import Limits
def config(**limits):
    return SandboxConfig(backend="subprocess", python=python,
                         strongest_isolation="confined", limits=Limits(**limits))
"""
_ATTACKED = """
attack, flood = (text.replace("HOST", str(os.getpid())) for text in arguments)
async def main():
    async with SandboxManager(config(wall_seconds=20)) as sandbox:
        results = [await sandbox.run(attack)]
        async def flooded():
            results.append(await sandbox.run(flood, limits=Limits(wall_seconds=2)))
        async with anyio.create_task_group() as group:
            group.start_soon(flooded)
            await anyio.sleep(0.5)
            results.append(await sandbox.run("1 + 1"))
        print(json.dumps([each.to_json() for each in results]))
anyio.run(main)
"""
_CROWDED = """
async def main():
    results, others = [], []
    manager = SandboxManager(config(wall_seconds=20, pids=16))
    async with manager as sandbox, sandbox.session() as session:
        # The cell is there before they are.
        await session.run("")
        others = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(80)]
        try:
            for code in arguments:
                results.append(await sandbox.run(code))
            command = await session.exec(["sh", "-c", "/bin/true; exit 7"])
            ended = await command.wait()
            results.append(await session.run(arguments[0], fresh=True))
        finally:
            for each in others:
                each.kill()
                each.wait()
        print(json.dumps([*(each.to_json() for each in results), ended.exit_code]))
anyio.run(main)
"""
_MORE_ROOM = """
async def main():
    manager = SandboxManager(config(wall_seconds=60, pids=8))
    async with manager as sandbox, sandbox.session() as session:
        others = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(80)]
        def end(stream, data):
            for each in others:
                each.kill()
                each.wait()
            supervisor = Path(f"/proc/{int(data)}/status").read_text()
            notifier = supervisor.split("PPid:")[1].split()[0]
            said.append(Path(f"/proc/{notifier}/status").read_text())
        said = []
        try:
            result = await session.run(arguments[0], on_output=end)
        finally:
            for each in others:
                each.kill()
        again = await session.run("1 + 1")
        many = await sandbox.run(arguments[1], limits=Limits(cpu_seconds=30))
        counted = [many.value, many.usage.cpu_ms, *said]
        print(json.dumps([result.status, result.state, again.value, *counted]))
anyio.run(main)
"""
_LATE_BOMB = """
import os, time
print(os.getppid(), flush=True)
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except BlockingIOError:
        time.sleep(0.01)
"""
_MANY_CALLS = """
import os, time
open("a", "w").close()
for _ in range(3_000):
    os.chmod("a", 0o600)
own = time.process_time() * 1000
# A look at the accounts comes meanwhile.
time.sleep(1)
own
"""
_FAMILY = """
import subprocess, threading
children = [subprocess.Popen(["sleep", "9"]) for _ in range(5)]
threading.Thread(target=print, args=["thread"]).start()
for each in children:
    each.kill(); each.wait()
len(children)
"""
_BOMB = """
import os, time
made = 0
try:
    while made < 1_000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except BlockingIOError:
    pass
made
"""
_ATTACK = """
import ctypes, errno, os, signal, socket, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
outside, host, parent, said = OUTSIDE, HOST, os.getppid(), {}
def attempt(name, what):
    try:
        what()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode[error.errno]
def call(number, *arguments):
    long = ctypes.c_long
    packed = [long(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(long(number), *packed) == -1:
        raise OSError(ctypes.get_errno(), "")
x86 = os.uname().machine == "x86_64"
info = struct.pack("iii", 0, 0, -1).ljust(128, b"\\0")
# The supervisor and what was forked just before it: the notifier, the launcher.
near = [pid for pid in range(parent - 6, parent + 1)]
for name, pids in {"host": [host], "near": near}.items():
    for pid in pids:
        attempt(f"kill {name} {pid}", lambda: os.kill(pid, 0))
        attempt(f"group {name} {pid}", lambda: os.killpg(pid, 0))
        attempt(f"queue {name} {pid}", lambda: call(129 if x86 else 138, pid, 0, info))
        attempt(f"thread {name} {pid}", lambda: call(200 if x86 else 130, pid, 0))
attempt("everybody", lambda: os.kill(-1, 0))
attempt("chmod", lambda: os.chmod(outside, 0o777))
attempt("utime", lambda: os.utime(outside, (1, 2)))
attempt("xattr", lambda: os.setxattr(outside, "user.a", b""))
attempt("connect", lambda: socket.socket(1).connect(outside + "/socket"))
attempt("abstract", lambda: socket.socket(1).bind(b"\\0name"))
attempt("port", lambda: socket.socket().connect(("127.0.0.1", PORT)))
attempt("listen", lambda: socket.socket().listen())
# A folder that becomes a link to another one while a socket is bound in it.
os.mkdir("folder"); os.symlink(outside, "away")
until, made = time.monotonic() + 1, 0
if os.fork() == 0:
    while time.monotonic() < until:
        call(316 if x86 else 276, -100, b"folder", -100, b"away", 2)
    os._exit(0)
while time.monotonic() < until:
    with socket.socket(1) as own:
        try:
            own.bind(f"folder/{made}")
            made += 1
        except OSError:
            pass
os.wait()
said["made"] = made > 0
said
"""
_FLOOD = """
import os, threading
open("a", "w").close()
def flood():
    while True:
        os.chmod("a", 0o600)
for _ in range(8):
    threading.Thread(target=flood).start()
"""


@pytest.fixture(scope="module")
def told() -> Any:
    need_an_ordinary_user()
    base = tempfile.mkdtemp(dir="/tmp")
    outside = Path(base, "outside")
    outside.mkdir(0o700)
    try:
        with socket.socket(socket.AF_UNIX) as server, socket.socket() as tcp:
            server.bind(str(outside / "socket"))
            server.listen()
            tcp.bind(("127.0.0.1", 0))
            tcp.listen()
            os.chmod(base, 0o755)
            for path in (outside, outside / "socket"):
                os.chown(path, ORDINARY_USER, ORDINARY_USER)
            attack = _ATTACK.replace("OUTSIDE", repr(str(outside)))
            attack = attack.replace("PORT", str(tcp.getsockname()[1]))
            printed = as_ordinary_user(_ATTACKED, attack, _FLOOD, before=_BEFORE)
        found = sorted(path.name for path in outside.iterdir())
        yield json.loads(printed), outside.stat().st_mode & 0o777, found
    finally:
        shutil.rmtree(base)


def test_nothing_else_of_the_user_is_reached(told: Any) -> None:
    (attack, _, _), mode, found = told
    said = attack["value"]

    assert attack["isolation"]["level"] == "confined"
    assert attack["status"] == "ok", attack
    assert said.pop("made")
    assert {
        name: error for name, error in said.items() if error not in ("EPERM", "ESRCH")
    } == {
        **dict.fromkeys(("connect", "abstract", "listen"), "EACCES"),
        "port": "ECONNREFUSED",
    }
    assert (mode, found) == (0o700, ["socket"])


def test_other_processes_of_the_user_take_none_from_a_program() -> None:
    need_an_ordinary_user()
    printed = as_ordinary_user(_CROWDED, _FAMILY, _BOMB, before=_BEFORE)
    family, bomb, again, exit_code = json.loads(printed)

    assert [family["value"], again["value"]] == [5, 5], (family, again)
    assert family["isolation"]["level"] == "confined"
    assert exit_code == 7
    # Other cells of this user, in tests beside, may begin or end meanwhile.
    assert 8 < bomb["value"] < 40, bomb


@pytest.mark.promise("E-45")
def test_a_program_is_charged_for_what_others_do_and_leave() -> None:
    need_an_ordinary_user()
    printed = as_ordinary_user(
        _MORE_ROOM, _LATE_BOMB, _MANY_CALLS, before=_BEFORE, timeout=120
    )
    *ended, own_ms, charged_ms, notifier = json.loads(printed)

    assert ended == ["killed", "lost", 2]
    # The program pays for what others do for it.
    assert charged_ms > 1.5 * own_ms
    # Whoever works for programs has few calls, too.
    assert "Seccomp_filters:\t1\n" in notifier


def test_a_flood_of_answered_calls_costs_others_nothing(told: Any) -> None:
    (_, other, flood), _, _ = told

    assert (flood["status"], other["value"]) == ("timeout", 2)
    assert flood["usage"]["wall_ms"] < 6_000
