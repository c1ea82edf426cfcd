"""Programs whose calls another process answers behave as plain ones do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...conftest import missing, need_shared_memory
from ...support.kernel.notified import Place, place, why_not

PROGRAMS = {
    "modes": "touch a; mkdir d; chmod 640 a; chmod u=rwx,go= d; chmod +t d; ln -s a l;"
    "chmod 604 l; stat -c '%n %a' a d l; cd d; chmod 711 ../a .; stat -c %a . ../a",
    "times": "touch -d '2001-02-03 04:05:06.7' a; touch -r a b; touch -a -d @9 b;"
    "ln -s a l; touch -h -d @5 l; touch -m -d @7 l; stat -c '%n %x %y' b;"
    "stat -c '%n %y' a l; touch c; test c -nt a && echo now",
    "owners": "touch a; chown $(id -u):$(id -g) a && chown -h $(id -u) a && echo own;"
    "chown 0 a; chgrp 12345 a; chown :0 .",
    "copies": "mkdir -p t/u; echo x > t/u/f; chmod 400 t/u/f; touch -d @99 t/u/f t;"
    "ln -s u/f t/l; cp -a t v; mv v w; install -m 751 t/u/f i; tar c t | (mkdir x; tar"
    " x -C x); sed -i s/x/y/ i; zip -qr z.zip t && unzip -qo z.zip -d y; cat i;"
    "find . -name '[fil]' -printf '%p %m %y\\n' | sort;"
    "find . -name f -printf '%T@\\n'",
    "git": "export GIT_AUTHOR_DATE='2001-02-03T04:05:06Z' "
    "GIT_COMMITTER_DATE='2001-02-03T04:05:06Z'; git init -q . 2>&1;"
    "git config user.email a@b; git config user.name c; echo 1 > a; git add a;"
    "git commit -qm a; git gc -q; git clone -q . copy; git -C copy log | cat",
    "venv": "python3 -m venv --without-pip v && v/bin/python -c 'import sys;"
    "print(sys.prefix != sys.base_prefix)'",
    "signals": "sleep 9 & kill $!; wait $!; echo $?; set -m; sleep 9 & kill %1; wait;"
    "(trap 'echo caught' USR1; kill -USR1 $BASHPID); timeout 0.1 sleep 9; echo $?;"
    "python3 -c 'import os; os.abort()' 2>&1; echo $?; (sleep 9 & sleep 9 & kill 0);"
    "echo $?; kill -0 1; kill -9 999999; sh -c 'kill -9 $$'; echo $?; kill -9 $$",
    "errors": """python3 -c '
import errno, os, stat
def said(call, *args, **named):
    try:
        return call(*args, **named)
    except OSError as error:
        return errno.errorcode[error.errno]
open("f", "w").close(); os.mkdir("d"); os.symlink("loop", "loop"); os.symlink("f", "l")
here, there = os.open(".", os.O_RDONLY), os.open("d", os.O_PATH)
for path in ("none", "none/f", "f/", "f/x", "loop", "", "x" * 256, "a/" * 3000,
             "d/../f", "../" + os.path.basename(os.getcwd()) + "/f", "l"):
    print(path[:3], said(os.chmod, path, 0o600), said(os.utime, path, (1, 2)),
          said(os.utime, path, ns=(3, 4), follow_symlinks=False),
          said(os.chown, path, -1, os.getgid()), said(os.lchown, path, os.getuid(), -1),
          said(os.setxattr, path, "user.a", b"1"), said(os.removexattr, path, "user.a"),
          said(os.chmod, path, 0o600, dir_fd=there),
          said(os.utime, path, None, dir_fd=here), said(os.truncate, path, 3))
f = os.open("f", os.O_RDONLY)
for fd in (f, here, 99):
    print(said(os.fchmod, fd, 0o755), said(os.utime, fd, ns=(5, 6)),
          said(os.fchown, fd, -1, -1), said(os.setxattr, fd, "user.b", b"2" * 9),
          said(os.getxattr, fd, "user.b"), said(os.setxattr, fd, "user.b", b"", 1),
          said(os.removexattr, fd, "user.b"), said(os.removexattr, fd, "user.b"))
print(said(os.setxattr, f, "user.c", b"2" * 70000),
      said(os.setxattr, f, "x" * 300, b""), said(os.setxattr, f, "", b""),
      said(os.setxattr, f, "trusted.c", b""))
os.chmod(f"/proc/self/fd/{f}", 0o751); os.chmod(f"/dev/fd/{f}", 0o750)
os.remove("f")
print(said(os.fchmod, f, 0o700), oct(os.fstat(f).st_mode), said(os.chmod, "f", 0))
r, w = os.pipe(); print(said(os.fchmod, w, 0o600), said(os.utime, r, ns=(7, 8)))
import tempfile; t = tempfile.TemporaryFile(); print(said(os.fchmod, t.fileno(), 0o640))
'""",
    "sockets": """python3 -c '
import multiprocessing as m, os, socket, threading
def put(found): found["a"] = 1
if __name__ == "__main__":
    with m.Manager() as manager:
        found = manager.dict(); p = m.Process(target=put, args=(found,)); p.start()
        p.join(); print(dict(found))
    with m.get_context("forkserver").Pool(1) as pool: print(pool.map(abs, [-1]))
    server = socket.socket(socket.AF_UNIX); os.umask(0o077); server.bind("s")
    print(server.getsockname(), oct(os.stat("s").st_mode)); server.listen(1)
    for blocks in (True, False):
        client = socket.socket(socket.AF_UNIX); client.setblocking(blocks)
        client.connect("s" if blocks else os.path.abspath("s"))
        other, name = server.accept(); other.send(b"x"); other.close()
        print(client.recv(1), client.getblocking(), client.getpeername()[-1:], name)
        print(client.get_inheritable(), client.connect_ex("s"))
    for path in ("none", "none/s", "/"): print(socket.socket(1).connect_ex(path))
    open("f", "w"); print(socket.socket(1).connect_ex("f"))
    server.close(); print(socket.socket(1).connect_ex("s"))
    print(*(end.getsockname() for end in socket.socketpair()))
    full = socket.socket(1); full.bind("full"); full.listen(0)
    waiting = [socket.socket(1) for _ in range(3)]
    waiting[0].connect("full"); waiting[1].setblocking(False)
    print(waiting[1].connect_ex("full"))
    late = threading.Thread(target=waiting[2].connect, args=("full",)); late.start()
    for _ in range(2): full.accept()[0].send(b"y")
    late.join(); print(waiting[0].recv(1), waiting[2].recv(1))
'""",
}
"""Scripts of bash that say what came of what they did."""

SERVED = "attributes sockets signals truncate"


@pytest.fixture(scope="module")
def user() -> Iterator[Place]:
    if reason := why_not():
        missing(reason)
    with place() as made:
        yield made


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_behaves_as_a_plain_one(user: Place, name: str) -> None:
    if name == "sockets":
        need_shared_memory()
    plain = user.run(f"plain-{name}", "", "bash", "-c", PROGRAMS[name])
    served = user.run(f"served-{name}", SERVED, "bash", "-c", PROGRAMS[name])

    assert plain.stdout
    for told in (plain, served):
        told.stderr = told.stderr.replace(f"plain-{name}", f"served-{name}")
    assert served.stdout.splitlines() == plain.stdout.splitlines(), served.stderr
    assert served.returncode == plain.returncode
