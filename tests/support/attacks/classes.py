"""Classes of attacks on what a program's machine has beside its cell.

Each is Python code that does it, and raises an error where it is closed. It runs in a
cell, and finds what it attacks in `t`, which `Targets` makes.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

_KEY = 0x70C5
_IPC_CREAT, _IPC_RMID, _SHARED_BYTES = 0o1000, 0, 4096

FILES = "files of the machine"
PROCESSES = "processes of the machine"
NETWORK = "network and sockets of the machine"
OBJECTS = "objects of the machine"
KERNEL = "ways into the kernel"

CLASSES: dict[str, dict[str, str]] = {
    FILES: {
        "read a file": "open(t['file']).read()",
        "list a folder": "os.listdir(t['folder'])",
        "list a folder that everybody may list": "os.listdir(t['open'])",
        "write to a file": "open(t['file'], 'a')",
        "truncate a file by its path": "os.truncate(t['file'], 1)",
        "truncate a file that it may read, opened for reading": (
            "os.open(t['own'], os.O_RDONLY | os.O_TRUNC)"
        ),
        "rename a file": "os.rename(t['file'], t['file'] + '2')",
        "link a file": "os.link(t['file'], 'linked')",
        "change mode, times, attributes of a file": "change(t['file'])",
        "the same through a link": "os.symlink(t['file'], 'l'); change('l')",
        "the same of a file that it may read": "change(t['readable'])",
        "the same by a descriptor": (
            "fd = os.open(t['readable'], 0); os.fchmod(fd, os.fstat(fd).st_mode)"
        ),
        "owner, times, attributes by a descriptor": (
            "fd = os.open(t['readable'], 0); had = os.fstat(fd)\n"
            "ways = [lambda: os.fchown(fd, had.st_uid, had.st_gid),\n"
            "  lambda: os.utime(fd, ns=(had.st_atime_ns, had.st_mtime_ns)),\n"
            "  lambda: os.setxattr(fd, 'user.toolcell', b'1'),\n"
            "  lambda: os.removexattr(fd, 'user.toolcell')]\n"
            "[way for way in ways if not fails(way)][0]"
        ),
        "flags by a descriptor (`FS_IOC_SETFLAGS`)": (
            "fd = os.open(t['readable'], 0); b = bytearray(8)\n"
            "fcntl.ioctl(fd, 0x80086601, b); fcntl.ioctl(fd, 0x40086602, bytes(b))"
        ),
        "watch a file (`inotify`)": "call(libc.inotify_init1(0))",
        "size and times of a path that it knows": "os.stat(t['shown'])",
        "lock a file that it may read (`flock`)": (
            "fcntl.flock(open(t['readable']), fcntl.LOCK_SH | fcntl.LOCK_NB)"
        ),
        "files of another cell": "open(t['neighbour']).read()",
        "mode of a file of another cell": "os.chmod(t['neighbour'], 0o644)",
    },
    PROCESSES: {
        "signal one": "os.kill(t['pid'], 0)",
        "signal its supervisor": "os.kill(os.getppid(), 9)",
        "signal one of another cell": (
            "assert t['other'] != os.getpid(); os.kill(t['other'], 0)"
        ),
        "signal all": "os.kill(-1, 0); assert os.getppid() != 1",
        "signal by a descriptor": (
            "signal.pidfd_send_signal(os.pidfd_open(t['pid']), 0)"
        ),
        "signals of descriptors (`F_SETOWN`)": (
            "r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, t['pid'])\n"
            "fcntl.fcntl(r, 10, 9)"
        ),
        "trace one": "call(libc.ptrace(16, t['pid'], 0, 0))",
        "its memory": "os.open(f\"/proc/{t['pid']}/mem\", os.O_RDONLY)",
        "its environment": "open(f\"/proc/{t['pid']}/environ\").read(1)",
        "its command line": "open(f\"/proc/{t['pid']}/cmdline\").read(1)",
        "its state": "open(f\"/proc/{t['pid']}/status\").read(1)",
        "its memory map": "open(f\"/proc/{t['pid']}/maps\").read(1)",
        "the same of another cell's": (
            "assert t['other'] != os.getpid()\n"
            "open(f\"/proc/{t['other']}/maps\").read(1)"
        ),
        "its descriptors": "os.listdir(f\"/proc/{t['pid']}/fd\")",
        "its memory by a call": (
            "call(libc.process_vm_readv(t['pid'], None, 0, None, 0, 0))"
        ),
        "list all": "[os.listdir('/proc').index(str(t['pid']))]",
        "its priority": "os.setpriority(os.PRIO_PROCESS, t['pid'], 15)",
        "priority of all of a user": (
            "os.setpriority(os.PRIO_USER, t['uid'], 15); assert os.getppid() != 1"
        ),
        "its CPUs": "os.sched_setaffinity(t['pid'], {0})",
        "its scheduling (`sched_setscheduler`, `ioprio_set`)": (
            "ways = [lambda: system(251, 1, t['pid'], 3 << 13), lambda: \n"
            "  os.sched_setscheduler(t['pid'], os.SCHED_BATCH, os.sched_param(0))]\n"
            "[way for way in ways if not fails(way)][0]"
        ),
        "its limits": "resource.prlimit(t['pid'], resource.RLIMIT_NOFILE)",
        "its place among the first to go": "open('/proc/self/oom_score_adj', 'w')",
        "type into a terminal (`TIOCSTI`)": (
            # Linux takes keys only for the terminal that controls a process.
            "pid, _ = pty.fork()\n"
            "if pid == 0: os._exit(fails(fcntl.ioctl, 0, termios.TIOCSTI, b'x'))\n"
            "assert os.waitpid(pid, 0)[1] == 0"
        ),
        "leave the filter out": (
            "assert libc.prctl(21, 0, 0, 0, 0) != 2 or libc.prctl(39, 0, 0, 0, 0) != 1"
        ),
        "descriptors of the host": "inherited[0]",
    },
    NETWORK: {
        "TCP to a server": "socket.create_connection(t['tcp'], 2)",
        "TCP to a server of another cell": "socket.create_connection(t['server'], 2)",
        "TCP with data first (`MSG_FASTOPEN`)": (
            "s = socket.socket(); s.settimeout(2)\n"
            "s.sendto(b'x', socket.MSG_FASTOPEN, tuple(t['tcp']))"
        ),
        "list connections": (
            "assert f\":{t['tcp'][1]:04X}\" in open('/proc/self/net/tcp').read()"
        ),
        "MPTCP to a server": (
            "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\n"
            "s.settimeout(2); s.connect(tuple(t['tcp']))"
        ),
        "UDP to a server": (
            "s = socket.socket(type=socket.SOCK_DGRAM)\n"
            "s.connect(tuple(t['tcp'])); s.send(b'x'); s.settimeout(.2); s.recv(1)"
        ),
        "be a server": (
            "s = socket.socket(); s.bind(tuple(t['free'])); s.listen()\n"
            "assert not own_network()"
        ),
        "a server without an address (`listen`)": (
            "socket.socket().listen(); assert not own_network()"
        ),
        "Unix socket by its path": (
            "s = socket.socket(socket.AF_UNIX); s.connect(t['unix'])"
        ),
        "Unix datagram by its path": (
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', t['datagram'])"
        ),
        "the same from a pair of sockets": (
            "s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
            "s.sendto(b'x', t['datagram'])"
        ),
        "abstract Unix socket": (
            "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + t['abstract'])"
        ),
        "netlink, packets, vsock": (
            "[socket.socket(f, socket.SOCK_RAW) for f in (16, 17, 40)\n"
            " if not fails(socket.socket, f, socket.SOCK_RAW)][0]"
        ),
    },
    OBJECTS: {
        "list shared memory": "os.listdir('/dev/shm').index(t['shared'])",
        "shared memory by a known name": "open('/dev/shm/' + t['shared'], 'r+')",
        "System V shared memory": f"call(libc.shmget({_KEY}, 0, 0))",
        "POSIX message queues": (
            "call(librt.mq_open(b'/toolcell', 64 | 2, 0o600, None))\n"
            "assert os.getppid() != 1"
        ),
    },
    KERNEL: {
        "io_uring": "system(425, 1, 0)",
        "new namespaces": "call(libc.unshare(0x10000000))",
        "mounts": "call(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))",
        "another root": "os.chroot('.')",
        "a capability (`capset`)": (
            # Version 3, this process; CAP_SETUID is effective and permitted.
            "call(libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0),\n"
            "  (ctypes.c_uint32 * 6)(1 << 7, 1 << 7)))"
        ),
        "`bpf`, `perf_event_open`, `userfaultfd`": (
            "[n for n in (321, 298, 323) if not fails(system, n, 0, 0, 0)][0]"
        ),
        "keys of the kernel": "system(250, 0, -3, 1)",
        "another user": "os.setuid(t['uid'] + 1)",
    },
}
"""Code by what it attacks, and by class. Numbers of calls are those of x86_64."""

PRELUDE = """\
import ctypes, errno, fcntl, os, pty, resource, signal, socket, termios
libc, librt = ctypes.CDLL(None, use_errno=True), ctypes.CDLL('librt.so.1')
def call(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), '')
def system(number, *arguments):
    call(libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
def change(path):
    for how in (
        lambda: os.chmod(path, os.stat(path).st_mode & 0o7777),
        lambda: os.utime(path),
        lambda: os.setxattr(path, 'user.toolcell', b'1'),
    ):
        if not fails(how):
            return
    raise OSError(errno.EPERM, '')
def fails(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return True
def own_network():
    # A server of the machine's refuses nobody: its network is not this program's.
    with socket.socket() as s:
        return s.connect_ex(tuple(t['tcp'])) == errno.ECONNREFUSED
def attempt(code):
    try:
        exec(code, globals())
    except BaseException as error:
        return errno.errorcode.get(getattr(error, 'errno', 0), type(error).__name__)
    return 'open'
inherited = [fd for fd in range(4, 256) if not fails(os.fstat, fd)]
{name: attempt(code) for name, code in attacks.items()}
"""


class Targets:
    """What a program attacks: a process, files, sockets and objects of this user.

    Args:
        neighbour: What another cell has: a `neighbour` file, an `other` process, as
            this machine numbers it, and the address of a `server`.
        python: The interpreter of the cells.
    """

    def __init__(self, neighbour: dict[str, Any], python: str) -> None:
        self._stack = ExitStack()
        self._given = neighbour
        self._library = Path(_library_of(python))
        self._victim: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> dict[str, Any]:
        enter, name = self._stack.enter_context, secrets.token_hex(8)
        place = Path(tempfile.mkdtemp(prefix="victim-"))
        self._stack.callback(shutil.rmtree, place)
        place.chmod(0o755)
        (place / "hidden").mkdir(mode=0o700)
        file, shown = place / "hidden" / "file", place / "shown"
        for path in (file, shown):
            path.write_text("canary")
        self._victim = enter(subprocess.Popen(["sleep", "600"]))
        self._stack.callback(self._victim.kill)
        tcp = enter(socket.create_server(("127.0.0.1", 0)))
        with socket.create_server(("127.0.0.1", 0)) as free:
            free_address = free.getsockname()
        unix, datagram = place / "unix", place / "datagram"
        for path, kind in ((unix, socket.SOCK_STREAM), (datagram, socket.SOCK_DGRAM)):
            self._listen(str(path), kind)
            path.chmod(0o777)
        self._listen(f"\0{name}", socket.SOCK_STREAM)
        shared = Path("/dev/shm", name)
        shared.touch(mode=0o600)
        self._stack.callback(shared.unlink)
        libc = ctypes.CDLL(None)
        segment = libc.shmget(_KEY, _SHARED_BYTES, _IPC_CREAT | 0o666)
        self._stack.callback(libc.shmctl, segment, _IPC_RMID, None)
        return {
            **self._given,
            "file": str(file),
            "folder": str(file.parent),
            "shown": str(shown),
            "open": str(place),
            "readable": str(self._library / "os.py"),
            "own": self._file_in_the_library(name),
            "pid": self._victim.pid,
            "uid": os.getuid(),
            "tcp": list(tcp.getsockname()),
            "free": list(free_address),
            "unix": str(unix),
            "datagram": str(datagram),
            "abstract": name,
            "shared": name,
        }

    def _file_in_the_library(self, name: str) -> str:
        """Make a file that may be lost, where programs may read what is this user's."""
        path = self._library / name
        try:
            path.write_text("canary")
        except OSError:
            # Nor may a program's user, and nothing there can be lost.
            return str(self._library / "os.py")
        self._stack.callback(path.unlink)
        return str(path)

    def _listen(self, address: str, kind: socket.SocketKind) -> None:
        server = self._stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        server.bind(address)
        if kind == socket.SOCK_STREAM:
            server.listen()

    @property
    def lives(self) -> bool:
        """True while the process that is attacked lives."""
        return self._victim is not None and self._victim.poll() is None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _library_of(python: str) -> str:
    if os.path.realpath(python) == os.path.realpath(sys.executable):
        return sysconfig.get_path("stdlib")
    code = "import sysconfig; print(sysconfig.get_path('stdlib'), end='')"
    done = subprocess.run([python, "-Ic", code], capture_output=True, check=True)
    return done.stdout.decode()
