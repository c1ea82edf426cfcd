"""What a program may not do to others of the same user, and what it may not race.

Each attack is run twice: plainly, where it must succeed so that the row proves
something, and with the notifier and its filter as the only layer.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ...conftest import missing
from ...support.child import Child
from ...support.kernel.notified import Place, place, why_not

SERVED = "attributes sockets signals truncate"

PRELUDE = """
import ctypes, errno, fcntl, json, os, signal, socket, struct, sys, threading, time
outside = os.environ["OUTSIDE"]
victim = outside + "/victim"
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    long = ctypes.c_long
    numbers = [long(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(long(number), *numbers) == -1:
        raise OSError(ctypes.get_errno(), "")
said = {}
def attempt(name, what):
    try:
        what()
        said[name] = "done"
    except OSError as error:
        said[name] = errno.errorcode.get(error.errno, str(error))
opened = os.open(victim, os.O_RDONLY)
folder = os.open(outside, os.O_RDONLY)
"""

FILES = """
os.symlink(victim, "link"); os.symlink(outside, "dir")
attempt("path", lambda: os.chmod(victim, 0o604))
attempt("dots", lambda: os.chmod("../outside/victim", 0o604))
attempt("link", lambda: os.chmod("link", 0o604))
attempt("link to its folder", lambda: os.chmod("dir/victim", 0o604))
attempt("folder's descriptor", lambda: os.chmod("victim", 0o604, dir_fd=folder))
attempt("its folder", lambda: os.chmod(outside, 0o755))
attempt("descriptor", lambda: os.fchmod(opened, 0o604))
attempt("proc", lambda: os.chmod(f"/proc/self/fd/{opened}", 0o604))
attempt("proc by pid", lambda: os.chmod(f"/proc/{os.getpid()}/fd/{opened}", 0o604))
attempt("proc by cwd", lambda: os.chmod("/proc/self/cwd/../outside/victim", 0o604))
attempt("chown", lambda: os.chown(victim, os.getuid(), -1))
attempt("fchown", lambda: os.fchown(opened, -1, os.getgid()))
attempt("lchown", lambda: os.lchown(victim, os.getuid(), os.getgid()))
attempt("utime", lambda: os.utime(victim, (1, 2)))
attempt("utime now", lambda: os.utime(victim))
attempt("futimens", lambda: os.utime(opened, (1, 2)))
attempt("lutimes", lambda: os.utime(victim, (1, 2), follow_symlinks=False))
attempt("xattr", lambda: os.setxattr(victim, "user.a", b"1"))
attempt("fxattr", lambda: os.setxattr(opened, "user.a", b"1"))
attempt("no xattr", lambda: os.removexattr(victim, "user.old"))
attempt("no fxattr", lambda: os.removexattr(opened, "user.older"))
nodump = struct.pack("i", 0x40)
attempt("flags", lambda: fcntl.ioctl(opened, 0x40086602, nodump))
attempt("truncate", lambda: os.truncate(victim, 1))
attempt("truncate while reading", lambda: os.open(victim, os.O_RDONLY | os.O_TRUNC))
attempt("truncate with mode 3", lambda: os.open(victim, 3 | os.O_TRUNC))
how = struct.pack("QQQ", os.O_TRUNC, 0, 0)
attempt("truncate by openat2", lambda: call(437, -100, victim.encode(), how, len(how)))
"""

SOCKETS = """
def connected(address, family=socket.AF_UNIX):
    with socket.socket(family) as own:
        own.connect(address)
        own.send(b"x")
attempt("path", lambda: connected(outside + "/stream"))
os.symlink(outside + "/stream", "to")
attempt("link", lambda: connected("to"))
os.chdir(outside)
attempt("relative", lambda: connected("stream"))
abstract = "\\0" + os.environ["ABSTRACT"]
attempt("abstract", lambda: connected(abstract))
attempt("bind abstract", lambda: socket.socket(1).bind(abstract + "2"))
attempt("bind without a name", lambda: socket.socket(1).bind(""))
attempt("bind outside", lambda: socket.socket(1).bind(outside + "/bound"))
attempt("bind there", lambda: socket.socket(1).bind("bound2"))
port = int(os.environ["PORT"])
attempt("tcp", lambda: connected(("127.0.0.1", port), socket.AF_INET))
attempt("tcp 6", lambda: connected(("::ffff:127.0.0.1", port), socket.AF_INET6))
def fast(send):
    with socket.socket() as own:
        send(own)
message = 0x20000000
attempt("fast", lambda: fast(lambda s: s.sendto(b"x", message, ("127.0.0.1", port))))
attempt("fast message", lambda: fast(
    lambda s: s.sendmsg([b"x"], [], message, ("127.0.0.1", port))))
def datagram():
    own = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
    own.sendto(b"x", outside + "/datagram")
attempt("datagram", datagram)
attempt("datagram of a pair's", lambda: socket.socket(1, 2).sendto(b"x", "datagram"))
"""

SIGNALS = """
other = int(os.environ["OTHER"])
attempt("kill", lambda: os.kill(other, 0))
attempt("tkill", lambda: call(200 if os.uname().machine == "x86_64" else 130, other, 0))
attempt("tgkill", lambda: call(
    234 if os.uname().machine == "x86_64" else 131, other, other, 0))
attempt("group", lambda: os.killpg(other, 0))
attempt("supervisor", lambda: os.kill(os.getppid(), 0))
def queue(number, *before):
    info = struct.pack("iii", 0, 0, -1).ljust(128, b"\\0")
    call(number, *before, 0, info)
x86 = os.uname().machine == "x86_64"
attempt("queue", lambda: queue(129 if x86 else 138, other))
attempt("thread queue", lambda: queue(297 if x86 else 240, other, other))
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(other), 0))
"""

RACES = """
until = time.monotonic() + float(os.environ["SECONDS"])
renameat2 = 316 if os.uname().machine == "x86_64" else 276
open("own", "w").close()
os.mkdir("folder"); open("folder/victim", "w").close(); os.symlink(outside, "away")
own, swapped = os.open("own", os.O_RDONLY), os.open("own", os.O_RDONLY)
path = ctypes.create_string_buffer(4096)
address = ctypes.create_string_buffer(110)
names = [os.path.abspath("own").encode() + b"\\0", victim.encode() + b"\\0"]
servers = [b"own.socket\\0".rjust(11), (outside + "/stream\\0").encode()]
server = socket.socket(1); server.bind("own.socket"); server.listen(4096)
def flip(step):
    while time.monotonic() < until:
        for way in (0, 1):
            step(way)
def swap(way):
    call(renameat2, -100, b"folder", -100, b"away", 2)  # RENAME_EXCHANGE
def point(way):
    ctypes.memmove(path, names[way], len(names[way]))
    ctypes.memmove(address, b"\\1\\0" + servers[way], len(servers[way]) + 2)
done = {"path": 0, "swap": 0, "descriptor": 0, "connect": 0}
def count(name, what):
    while time.monotonic() < until:
        try:
            what()
            done[name] += 1
        except OSError:
            pass
def by_path():
    if libc.chmod(path, 0o604):
        raise OSError
def by_connect():
    with socket.socket(1) as one:
        if libc.connect(one.fileno(), address, 110):
            raise OSError
if os.fork() == 0:
    flip(swap)
    os._exit(0)
threads = [threading.Thread(target=target, args=arguments) for target, *arguments in (
    (flip, point),
    (flip, lambda way: os.dup2((own, opened)[way], swapped)),
    (count, "path", by_path), (count, "connect", by_connect),
    (count, "swap", lambda: os.chmod("folder/victim", 0o604)),
    (count, "descriptor", lambda: os.fchmod(swapped, 0o604)))]
for each in threads: each.start()
for each in threads: each.join()
said = done
"""

REFUSALS = {
    FILES: {
        "truncate by openat2": "ENOSYS",
        "proc by cwd": "ELOOP",
    },
    SOCKETS: {
        **dict.fromkeys(("path", "link", "relative"), "EACCES"),
        **dict.fromkeys(("bind abstract", "bind without a name"), "EACCES"),
        **dict.fromkeys(("bind outside", "bind there"), "EACCES"),
        **dict.fromkeys(("abstract", "tcp", "tcp 6"), "ECONNREFUSED"),
        **dict.fromkeys(("fast", "fast message", "datagram"), "ENOTSUP"),
        "datagram of a pair's": "ESOCKTNOSUPPORT",
    },
    SIGNALS: dict.fromkeys(("queue", "thread queue", "pidfd"), "ENOSYS"),
}
"""The errors of attacks; of others EPERM."""


@pytest.fixture
def user() -> Iterator[Place]:
    if reason := why_not():
        missing(reason)
    with place() as made:
        yield made


def attacked(user: Place, name: str, served: str, script: str, **env: str) -> str:
    """Run an attack, and return what it printed."""
    text = PRELUDE + script + "\nprint(json.dumps(said))"
    done = user.run(name, served, "python3", "-c", text, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_victim(user: Place) -> Path:
    victim = user.outside / "victim"
    victim.write_text("precious")
    victim.chmod(0o640)
    user.give(victim)
    for name in ("user.old", "user.older"):
        os.setxattr(victim, name, b"0")
    os.utime(victim, (1000, 1000))
    return victim


def state(path: Path) -> object:
    told = path.stat()
    return path.read_text(), told.st_mode, told.st_mtime, sorted(os.listxattr(path))


def test_files_outside_keep_their_attributes(user: Place) -> None:
    victim = new_victim(user)
    # Once read nothing is truncated, so it is made anew for each way to do that.
    plain = json.loads(attacked(user, "plain", "", FILES))
    victim.unlink()
    before = state(new_victim(user))
    user.outside.chmod(0o700)
    told = json.loads(attacked(user, "served", SERVED, FILES))

    assert set(plain.values()) == {"done"}, plain
    assert told == {name: REFUSALS[FILES].get(name, "EPERM") for name in plain}
    assert state(victim) == before
    assert user.outside.stat().st_mode & 0o777 == 0o700


def test_servers_outside_hear_nothing(user: Place) -> None:
    abstract = f"toolcell-{os.getpid()}"
    with ExitStack() as stack:
        servers: list[tuple[int, int, Any]] = [
            (socket.AF_UNIX, socket.SOCK_STREAM, str(user.outside / "stream")),
            (socket.AF_UNIX, socket.SOCK_DGRAM, str(user.outside / "datagram")),
            (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
            (socket.AF_INET6, socket.SOCK_STREAM, ("::", 0)),
        ]
        opened = []
        for family, kind, address in servers:
            server = stack.enter_context(socket.socket(family, kind))
            if family == socket.AF_INET6:
                server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            server.bind(address)
            if kind == socket.SOCK_STREAM:
                server.listen(16)
            server.settimeout(0)
            opened.append(server)
        user.give(user.outside / "stream", user.outside / "datagram")
        env = {"ABSTRACT": abstract, "PORT": str(opened[3].getsockname()[1])}
        new_victim(user)
        plain = json.loads(attacked(user, "plain", "", SOCKETS, **env))
        heard = [take_all(server) for server in opened]
        for name in ("bound", "bound2"):
            (user.outside / name).unlink()
        told = json.loads(attacked(user, "served", SERVED, SOCKETS, **env))

        assert set(plain.values()) == {"done"}, plain
        assert all(heard), heard
        assert told == REFUSALS[SOCKETS]
        assert [take_all(server) for server in opened] == [0, 0, 0, 0]
        assert not (user.outside / "bound").exists()


def take_all(server: socket.socket) -> int:
    """Return how many connections or datagrams came to a server."""
    found = 0
    while True:
        try:
            if server.type == socket.SOCK_DGRAM:
                server.recv(9)
            else:
                server.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


def test_processes_outside_get_no_signal(user: Place) -> None:
    new_victim(user)
    other = Child(
        ["sleep", "100"],
        start_new_session=True,
        user=user.outside.stat().st_uid,
    )
    try:
        env = {"OTHER": str(other.pid)}
        plain = json.loads(attacked(user, "plain", "", SIGNALS, **env))
        told = json.loads(attacked(user, "served", SERVED, SIGNALS, **env))
    finally:
        other.kill()
        other.wait()

    assert set(plain.values()) == {"done"}, plain
    assert told == {name: REFUSALS[SIGNALS].get(name, "EPERM") for name in plain}


def test_nobody_swaps_what_a_call_leads_to(user: Place) -> None:
    victim = new_victim(user)
    before = state(victim)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(user.outside / "stream"))
        server.listen(64)
        server.settimeout(0)
        user.give(user.outside / "stream")
        told = json.loads(attacked(user, "served", SERVED, RACES, SECONDS="1.5"))
        heard = take_all(server)

    assert all(told.values()), told
    assert state(victim) == before
    assert heard == 0


def test_calls_fail_when_nobody_answers_them_any_more(user: Place) -> None:
    """Where signals are not served a program can end the notifier; it gains nothing."""
    new_victim(user)
    script = """
parent = os.getppid()
attempt("before", lambda: os.chmod(".", 0o700))
notifier = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
os.kill(notifier, signal.SIGKILL)
while os.getppid() == parent:
    time.sleep(0.01)
attempt("after", lambda: os.chmod(".", 0o700))
attempt("outside", lambda: os.chmod(victim, 0o700))
print(json.dumps(said))
"""
    done = user.run("served", "attributes", "python3", "-c", PRELUDE + script)

    told = json.loads(done.stdout)
    assert told == {"before": "done", "after": "ENOSYS", "outside": "ENOSYS"}
