"""What a program can leave behind, and how another one would find it.

The value of `look` is true if it found what `leave` left; so it is where both are one
program, unless `leave` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Wall = Literal["scratch", "ipc", "net", "pid", "process", "refused"]
"""What keeps it from the next program: new scratch space, a new IPC or network
namespace, process numbers that begin anew, the end of its process; or nothing was left,
for it is refused."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of residue."""

    name: str
    wall: Wall
    leave: str
    look: str
    ends_cell: bool | None = False
    """Whether the cell is not used again; None where that is a matter of time."""

    inet: bool = False
    """Whether `leave` needs a socket that containers close to such programs."""

    stays_in_containers: bool = False
    """Whether it is one of the numbers that containers cannot begin anew."""

    on_gvisor: bool = True
    """Whether gVisor has it, and shows it."""

    @property
    def closed_in_containers(self) -> bool:
        """True if `leave` is refused in a container that is used again."""
        return self.inet or self.wall in ("ipc", "net")


_LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
_LOOPBACK = """
import socket
server = socket.create_server(("127.0.0.1", 5005))
client = socket.create_connection(("127.0.0.1", 5005))
served, _ = server.accept()
client.sendall(b"x" * 1000); served.recv(1000)
"""
_TCP_LINES = "open('/proc/net/tcp').read().count('\\n') > 1"


def _file(name: str, leave: str, look: str) -> Kind:
    return Kind(name=name, wall="scratch", leave=leave, look=look)


def _held(name: str, leave: str, look: str, *, inet: bool = False) -> Kind:
    return Kind(name=name, wall="process", leave=leave, look=look, inet=inet)


def _sysctl(path: str, value: str, *, on_gvisor: bool = False) -> Kind:
    return Kind(
        name=f"/proc/sys/{path}",
        wall="refused",
        on_gvisor=on_gvisor,
        leave=(
            f"try: open('/proc/sys/{path}', 'w').write('{value}')\nexcept OSError: pass"
        ),
        look=f"open('/proc/sys/{path}').read().strip() == '{value}'",
    )


def _call(name: str, leave: str) -> Kind:
    """Return a system call that must fail, as its own look."""
    return Kind(name=name, wall="refused", leave="", look=f"{_LIBC}{leave} >= 0")


_EXISTS = "import os; os.path.lexists({!r})"

FILES = (
    *(
        _file(f"a file in {folder}", f"open({path!r}, 'w').write('x')", look)
        for folder in ("/work", "/tmp", "/dev/shm")
        for path in [f"{folder}/residue"]
        for look in [_EXISTS.format(path)]
    ),
    _file(
        "files with odd names",
        r"for name in (b'a\nb', b'\xff\xfe', b'-rf', b'...', b'x' * 255, b'\x1b[2J'):"
        "\n    open(b'/tmp/' + name, 'w')",
        "import os; os.listdir(b'/tmp')",
    ),
    _file(
        "a folder that nobody may enter",
        "import os; os.makedirs('/dev/shm/a/b/c'); os.chmod('/dev/shm/a', 0)",
        _EXISTS.format("/dev/shm/a"),
    ),
    _file(
        "folders in folders",
        "import os\nos.chdir('/tmp')\nfor _ in range(500): os.mkdir('d'); os.chdir('d')"
        "\nos.chdir('/work')",
        _EXISTS.format("/tmp/d"),
    ),
    _file(
        "a sparse file",
        "import os\nwith open('/tmp/sparse', 'w') as f: f.truncate(10 << 30)",
        _EXISTS.format("/tmp/sparse"),
    ),
    _file(
        "a full file system",
        "import os\nfd = os.open('/tmp/full', os.O_CREAT | os.O_WRONLY)\n"
        "try:\n    while True: os.write(fd, bytes(1 << 20))\nexcept OSError: pass",
        "import os; s = os.statvfs('/tmp'); s.f_bfree < s.f_blocks - 16",
    ),
    Kind(
        name="no inodes left",
        wall="scratch",
        leave="for i in range(16_000): open(f'/dev/shm/{i}', 'w').close()",
        look="import os; s = os.statvfs('/dev/shm'); s.f_ffree < s.f_files - 16",
        ends_cell=None,
        on_gvisor=False,
    ),
    _held(
        "a file that is open and has no name",
        "import os\nfd = os.open('/tmp/x', os.O_CREAT | os.O_RDWR)\n"
        "os.write(fd, bytes(1 << 20)); os.unlink('/tmp/x')",
        "import os; s = os.statvfs('/tmp'); s.f_bfree < s.f_blocks - 16",
    ),
    _file(
        "a file that is mapped and locked",
        "import fcntl, mmap\nf = open('/work/mapped', 'w+b'); f.truncate(4096)\n"
        "m = mmap.mmap(f.fileno(), 4096); m[0] = 1; fcntl.flock(f, fcntl.LOCK_EX)\n"
        "fcntl.lockf(f, fcntl.LOCK_EX)",
        _EXISTS.format("/work/mapped"),
    ),
    _file(
        "links",
        "import os\nos.symlink('/etc/passwd', '/work/link')\n"
        "open('/work/one', 'w'); os.link('/work/one', '/work/two')",
        "import os; os.path.lexists('/work/link') or os.path.lexists('/work/two')",
    ),
    _file(
        "a named pipe", "import os; os.mkfifo('/tmp/pipe')", _EXISTS.format("/tmp/pipe")
    ),
    _file(
        "a socket with a path",
        "import socket; s = socket.socket(socket.AF_UNIX); s.bind('/tmp/socket')",
        _EXISTS.format("/tmp/socket"),
    ),
    _file(
        "a module in the work dir",
        "open('/work/residue_module.py', 'w').write('x = 1')",
        "try:\n    import residue_module as found\nexcept ImportError: found = None\n"
        "found is not None",
    ),
    _file(
        "a start file of a shell",
        "import os\nopen(os.environ['HOME'] + '/.bashrc', 'w').write('exit')",
        "import os; os.path.exists(os.environ['HOME'] + '/.bashrc')",
    ),
    _file(
        "mode and attributes of the work dir",
        "import os\nos.chmod('/work', 0o755)\n"
        "try: os.setxattr('/work', 'user.residue', b'x')\nexcept OSError: pass",
        "import os; os.stat('/work').st_mode & 0o777 != 0o700 or os.listxattr('/work')",
    ),
    Kind(
        name="the numbers of files that are gone",
        wall="scratch",
        leave="import os\n"
        "for _ in range(1000): open('/work/x', 'w'); os.unlink('/work/x')",
        look="import os\nopen('/work/y', 'w')\nos.stat('/work/y').st_ino > 500",
        stays_in_containers=True,
    ),
    _file(
        "POSIX shared memory",
        "import _posixshmem, os\n"
        "_posixshmem.shm_open('/residue', os.O_CREAT | os.O_RDWR, mode=0o600)",
        _EXISTS.format("/dev/shm/residue"),
    ),
    _file(
        "a POSIX semaphore",
        "import _multiprocessing\n"
        "s = _multiprocessing.SemLock(1, 1, 1, '/residue', False)",
        _EXISTS.format("/dev/shm/sem.residue"),
    ),
    _file(
        "artifacts",
        "import os; os.mkdir('artifacts'); open('artifacts/a', 'w').write('x')",
        _EXISTS.format("/work/artifacts"),
    ),
    _file(
        "the folder of forked sessions",
        "import os; os.makedirs('/tmp/.branches/1')",
        _EXISTS.format("/tmp/.branches"),
    ),
)

IPC = (
    Kind(
        name="System V shared memory",
        wall="ipc",
        leave=f"{_LIBC}assert libc.shmget(4242, 4096, 0o1666) >= 0",
        look=f"{_LIBC}libc.shmget(4242, 0, 0) >= 0",
    ),
    Kind(
        name="System V semaphores",
        wall="ipc",
        leave=f"{_LIBC}assert libc.semget(4242, 3, 0o1666) >= 0",
        look=f"{_LIBC}libc.semget(4242, 0, 0) >= 0",
    ),
    Kind(
        name="a System V queue with a message",
        wall="ipc",
        leave=f"{_LIBC}q = libc.msgget(4242, 0o1666); assert q >= 0\n"
        "assert libc.msgsnd(q, (1).to_bytes(8, 'little') + b'residue', 7, 0) == 0",
        look=f"{_LIBC}libc.msgget(4242, 0) >= 0",
    ),
    Kind(
        name="numbers of System V objects that are gone",
        wall="ipc",
        leave=f"{_LIBC}for _ in range(9):\n"
        "    libc.shmctl(libc.shmget(0, 4096, 0o1600), 0, 0)",
        look=f"{_LIBC}libc.shmget(0, 4096, 0o1600) > 0",
    ),
    Kind(
        name="lists of System V objects",
        wall="ipc",
        leave=f"{_LIBC}assert libc.shmget(0, 4096, 0o1600) >= 0",
        look="open('/proc/sysvipc/shm').read().count('\\n') > 1",
    ),
    Kind(
        name="a POSIX queue",
        wall="ipc",
        leave=f"{_LIBC}assert libc.mq_open(b'/residue', 0o102, 0o600, None) >= 0",
        look=f"{_LIBC}libc.mq_open(b'/residue', 0o2) >= 0",
    ),
)

NETWORK = (
    Kind(
        name="a port in TIME_WAIT",
        wall="net",
        leave=f"{_LOOPBACK}client.close(); served.close(); server.close()",
        look=_TCP_LINES,
        on_gvisor=False,
    ),
    Kind(
        name="a port that cannot be bound",
        wall="net",
        leave=f"{_LOOPBACK}served.close(); client.recv(1); client.close()\n"
        "server.close()",
        look="import socket\ns = socket.socket()\n"
        "try: s.bind(('127.0.0.1', 5005)); found = False\n"
        "except OSError: found = True\nfound",
    ),
    Kind(
        name="counters of the loopback device",
        wall="net",
        leave=_LOOPBACK,
        look="int(open('/proc/net/dev').read().split('lo:')[1].split()[0]) > 0",
    ),
    Kind(
        name="counters of TCP",
        wall="net",
        leave=_LOOPBACK,
        look="lines = [l.split() for l in open('/proc/net/snmp') if l[:4] == 'Tcp:']\n"
        "dict(zip(*lines))['ActiveOpens'] != '0'",
    ),
    Kind(
        name="counters of UDP",
        wall="net",
        leave="import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', ('127.0.0.1', 9))",
        look="lines = [l.split() for l in open('/proc/net/snmp') if l[:4] == 'Udp:']\n"
        "dict(zip(*lines))['OutDatagrams'] != '0'",
    ),
    Kind(
        name="counters of broken connections",
        wall="net",
        leave="import socket\ns = socket.socket()\ns.connect_ex(('127.0.0.1', 9))",
        look="lines = [l.split() for l in open('/proc/net/snmp') if l[:4] == 'Tcp:']\n"
        "dict(zip(*lines))['AttemptFails'] != '0'",
    ),
    _held("a TCP listener", _LOOPBACK, f"import socket\n{_TCP_LINES}", inet=True),
    _held(
        "a UDP port",
        "import socket\nu = socket.socket(type=socket.SOCK_DGRAM)\n"
        "u.bind(('127.0.0.1', 5006))",
        "open('/proc/net/udp').read().count('\\n') > 1",
        inet=True,
    ),
    _held(
        "an abstract socket",
        "import socket\na = socket.socket(socket.AF_UNIX); a.bind('\\0residue')\n"
        "a.listen()",
        "import socket\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect_ex('\\0residue') == 0",
    ),
    _held(
        "a multicast group",
        "import socket\nm = socket.socket(type=socket.SOCK_DGRAM)\n"
        "m.setsockopt(0, 35, socket.inet_aton('224.9.9.9')"
        " + socket.inet_aton('127.0.0.1'))",
        "'090909E0' in open('/proc/net/igmp').read()",
        inet=True,
    ),
    Kind(
        name="a connection that is half open",
        wall="process",
        leave="import socket\n"
        "l = socket.create_server(('127.0.0.1', 5007), backlog=1)\n"
        "c = [socket.socket() for _ in range(5)]\n"
        "for s in c: s.setblocking(False); s.connect_ex(('127.0.0.1', 5007))",
        look=_TCP_LINES,
        inet=True,
    ),
)

PROCESS = (
    Kind(
        name="process numbers that were used",
        wall="pid",
        leave="import os\nfor _ in range(50):\n"
        "    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)",
        look="import os\npid = os.fork()\nif pid == 0: os._exit(0)\n"
        "os.waitpid(pid, 0)\npid > 20",
        stays_in_containers=True,
    ),
    _held(
        "environment variables",
        "import os\nfor i in range(1000): os.environ[f'RESIDUE_{i}'] = 'x' * 100",
        "import os; 'RESIDUE_1' in os.environ",
    ),
    _held("umask", "import os; os.umask(0o777)", "import os; os.umask(0) != 0o022"),
    _held(
        "a work dir that is gone",
        "import os; os.mkdir('x'); os.chdir('x'); os.rmdir('/work/x')",
        "import os\ntry: found = os.getcwd() != '/work'\n"
        "except OSError: found = True\nfound",
    ),
    _held(
        "limits",
        "import resource\n"
        "for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):\n"
        "    resource.setrlimit(kind, (40, 40))",
        "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 40",
    ),
    _held("nice", "import os; os.nice(19)", "import os; os.nice(0) == 19"),
    _held(
        "signals that wait, and their handlers",
        "import os, signal\nsignal.signal(signal.SIGUSR2, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "os.kill(os.getpid(), signal.SIGUSR1)",
        "import signal\nbool(signal.sigpending())"
        " or signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN",
    ),
    _held(
        "timers",
        "import signal; signal.setitimer(signal.ITIMER_REAL, 1000)",
        "import signal; signal.getitimer(signal.ITIMER_REAL)[0] > 0",
    ),
    _held(
        "descriptors",
        "import os; os.dup2(os.memfd_create('residue'), 77)",
        "import os; any('residue' in os.readlink(f'/proc/self/fd/{fd}')"
        " for fd in os.listdir('/proc/self/fd')"
        " if os.path.lexists(f'/proc/self/fd/{fd}'))",
    ),
    _held(
        "epoll, eventfd and timerfd",
        "import select, ctypes\ne = select.epoll()\nlibc = ctypes.CDLL(None)\n"
        "libc.eventfd(1, 0), libc.timerfd_create(1, 0)",
        "import os; any('anon_inode' in os.readlink(f'/proc/self/fd/{fd}')"
        " for fd in os.listdir('/proc/self/fd')"
        " if os.path.lexists(f'/proc/self/fd/{fd}'))",
    ),
    _held(
        "flags of the standard streams",
        "import os; os.set_blocking(1, False)",
        "import os; not os.get_blocking(1)",
    ),
    _held(
        "a thread",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(999,), daemon=True).start()",
        "import os; len(os.listdir('/proc/self/task')) > 1",
    ),
    _held(
        "changed modules and builtins",
        "import builtins, json, sys\nbuiltins.residue = json.residue = 1\n"
        "sys.modules['residue'] = json; sys.path.append('/residue')",
        "import builtins, json, sys\nhasattr(builtins, 'residue')"
        " or hasattr(json, 'residue') or '/residue' in sys.path"
        " or 'residue' in sys.modules",
    ),
    _held("a variable", "residue = 1", "'residue' in globals()"),
    _held(
        "a process's name and attributes",
        f"{_LIBC}libc.prctl(15, b'residue', 0, 0, 0); libc.prctl(36, 1, 0, 0, 0)",
        "open('/proc/self/comm').read().strip() == 'residue'",
    ),
    Kind(
        name="locked memory",
        wall="process",
        leave=f"{_LIBC}b = ctypes.create_string_buffer(16384); libc.mlock(b, 16384)",
        look="'VmLck:\\t       0 kB' not in open('/proc/self/status').read()",
        on_gvisor=False,
    ),
    _held(
        "a lock on a file of the system",
        "import fcntl; f = open('/etc/passwd'); fcntl.flock(f, fcntl.LOCK_EX)",
        "import fcntl\ng = open('/etc/passwd')\n"
        "try: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); found = False\n"
        "except OSError: found = True\nfound",
    ),
    _held(
        "a pseudo-terminal",
        "import os; terminal = os.openpty()",
        "import os; len(os.listdir('/dev/pts')) > 1",
    ),
    Kind(
        name="a file in flight between two sockets",
        wall="process",
        leave="import os, socket\nfd = os.open('/tmp/x', os.O_CREAT | os.O_RDWR)\n"
        "os.write(fd, bytes(1 << 20)); os.unlink('/tmp/x')\n"
        "a, b = socket.socketpair()\n"
        "socket.send_fds(a, [b'x'], [fd, a.fileno(), b.fileno()])",
        look="import os; s = os.statvfs('/tmp'); s.f_bfree < s.f_blocks - 16",
        ends_cell=None,
    ),
    Kind(
        name="a child that was detached twice",
        wall="process",
        leave="import os, time\nif os.fork() == 0:\n    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(999)\n    os._exit(0)\ntime.sleep(0.2)",
        look="import os; len([p for p in os.listdir('/proc') if p.isdigit()]) > 3",
        ends_cell=True,
    ),
    Kind(
        name="a child that is stopped",
        wall="process",
        # The end of its parent sends it SIGHUP.
        leave="import os, signal\npid = os.fork()\n"
        "if pid == 0:\n    signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "    while True: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "os.waitpid(pid, os.WUNTRACED)",
        look="import os; len([p for p in os.listdir('/proc') if p.isdigit()]) > 3",
        ends_cell=True,
    ),
)

REFUSED = (
    _sysctl("net/ipv4/ip_default_ttl", "33"),
    _sysctl("kernel/msgmax", "4444", on_gvisor=True),
    _sysctl("kernel/ns_last_pid", "4444"),
    _sysctl("fs/mqueue/msg_max", "9"),
    _call("a key in a keyring", "libc.syscall(248, b'user', b'r', b'x', 1, -3)"),
    _call("a keyring to join", "libc.syscall(250, 1, b'residue', 0, 0, 0)"),
    _call("a time namespace", "libc.unshare(0x80)"),
    _call("a mount", "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)"),
    _call("a mount that is gone", "libc.umount2(b'/tmp', 2)"),
    _call("an inotify watch", "libc.inotify_init1(0)"),
    _call("a name of the machine", "libc.sethostname(b'residue', 7)"),
    _call("being traced", "libc.ptrace(0, 0, 0, 0)"),
    _call("another CPU", "libc.sched_setaffinity(0, 8, (1).to_bytes(8, 'little'))"),
)

KINDS = (*FILES, *IPC, *NETWORK, *PROCESS, *REFUSED)
