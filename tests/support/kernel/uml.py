"""A throw-away kernel: runs a command in user-mode-linux, where a flood hurts nobody.

    .venv/bin/python tests/support/kernel/uml.py [--groups v1] [--user] \\
        [--seconds 60] pytest tests/...

The machine boots in about two seconds, without KVM and without root. It shows this
machine's files at their own paths, and keeps what is written to them in its memory. It
has one CPU, some five times slower than this machine's, users, processes, cgroups and
kernel accounts of its own, and no network. Its kernel is that of Debian's package
user-mode-linux. On processors with AMX it needs gcc and libc6-dev, too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KERNEL = "linux.uml"
_MEMORY_MB = 1536
_BOOT_SECONDS = 180
_USER = 1000
_BEGIN, _END = "~~~ the command begins ~~~\n", "~~~ the command has ended ~~~\n"
_GROUPS = "/sys/fs/cgroup"
_V1_CONTROLLERS = ("memory", "pids", "cpu", "cpuacct")
_MS_MOVE = 8192
_POWER_OFF = 0x4321FEDC
_FINIT_MODULE = 313
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1


def run(
    command: Sequence[str],
    *,
    user: bool = False,
    groups: str = "v2",
    seconds: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a new machine, in this folder and with these variables.

    Args:
        command: The program and its arguments.
        user: Run it as an ordinary user, who owns a cgroup; else as root.
        groups: The version of cgroups there are, "v1" or "v2"; or "none".
        seconds: When this has passed, the command is killed; its code is 124.

    Returns:
        Its exit code, and as `stdout` all that it wrote.

    Raises:
        FileNotFoundError: user-mode-linux is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="toolcell-uml-") as folder:
        job = Path(folder)
        wish = {
            "command": list(command),
            "folder": os.getcwd(),
            "variables": dict(os.environ),
            "user": user,
            "groups": groups,
            "seconds": seconds,
        }
        (job / "wish").write_text(json.dumps(wish))
        console = _boot(folder, seconds + _BOOT_SECONDS)
        if _BEGIN in console:
            console = console.partition(_BEGIN)[2].partition(_END)[0]
        code = job / "code"
        # A machine without one has hung or crashed.
        exit_code = int(code.read_text()) if code.exists() else 125
        return subprocess.CompletedProcess(command, exit_code, console, "")


def _boot(job: str, seconds: float) -> str:
    """Boot a machine for a job, and return what its console showed."""
    machine = [
        *(KERNEL, f"mem={_MEMORY_MB}M", f"uml_dir={job}", "umid=machine"),
        *("root=/dev/root", "rootfstype=hostfs", "ro", "quiet", "panic=-1"),
        *("con=null", "con0=null,fd:1", f"init={sys.executable}", "--"),
        *("-I", os.path.abspath(__file__), "--first", job),
    ]
    with tempfile.TemporaryFile() as console:
        with subprocess.Popen(
            machine,
            env=_variables(job),
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            # The machine's processes are processes here, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        console.seek(0)
        return console.read().decode(errors="replace").replace("\r\n", "\n")


def _variables(job: str) -> dict[str, str]:
    """Return those of the machine's process, which needs help on some processors."""
    variables = dict(os.environ)
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        library = os.path.join(job, "registers.so")
        source = Path(__file__).with_name("uml_registers.c")
        subprocess.run(
            ["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True
        )
        variables["LD_PRELOAD"] = library
    return variables


def _be_first_process(job: str) -> None:
    """Set up the machine, run the command and power off."""
    try:
        wish = json.loads(Path(job, "wish").read_text())
        _build_root(job)
        _make_devices()
        _make_groups(wish)
        # The console is for the command, not for the kernel's messages.
        Path("/proc/sys/kernel/printk").write_text("1")
        print(_BEGIN, end="", flush=True)
        code = _obey(wish)
        print(_END, end="", flush=True)
        Path("/job/code").write_text(str(code))
    finally:
        os.sync()
        ctypes.CDLL(None).reboot(_POWER_OFF)


def _build_root(job: str) -> None:
    """Show the host's files, writable, and the job's folder, which is the host's."""
    _mount("proc", "/proc")
    _load_module("fs/overlayfs/overlay.ko")
    _mount("tmpfs", "/mnt")
    for name in ("written", "work", "root"):
        os.mkdir(f"/mnt/{name}")
    layers = "lowerdir=/,upperdir=/mnt/written,workdir=/mnt/work"
    _mount("overlay", "/mnt/root", layers)
    os.chdir("/mnt/root")
    os.mkdir("job")
    _mount("hostfs", "job", job)
    # Not only a new root: in one, nobody may make a user namespace.
    _mount(None, "/", source=".", flags=_MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def _make_devices() -> None:
    _mount("proc", "/proc")
    _mount("sysfs", "/sys")
    _mount("devtmpfs", "/dev")
    for folder in ("/dev/pts", "/dev/shm", "/dev/mqueue"):
        os.makedirs(folder, exist_ok=True)
    _mount("devpts", "/dev/pts", "ptmxmode=666")
    _mount("mqueue", "/dev/mqueue")
    for folder in ("/dev/shm", "/tmp", "/run"):
        _mount("tmpfs", folder, "mode=1777")
    with socket.socket() as any_socket:
        up = struct.pack("16sH14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, up)


def _make_groups(wish: dict[str, Any]) -> None:
    """Mount cgroups, and enter one that belongs to who runs the command."""
    if wish["groups"] == "none":
        return
    _mount("tmpfs", _GROUPS)
    if wish["groups"] == "v1":
        for controller in _V1_CONTROLLERS:
            os.mkdir(f"{_GROUPS}/{controller}")
            _mount("cgroup", f"{_GROUPS}/{controller}", controller)
        tops = [f"{_GROUPS}/{controller}" for controller in _V1_CONTROLLERS]
    else:
        _mount("cgroup2", _GROUPS)
        Path(_GROUPS, "cgroup.subtree_control").write_text("+memory +pids +cpu")
        tops = [_GROUPS]
    for top in tops:
        os.mkdir(f"{top}/service")
        Path(top, "service", "cgroup.procs").write_text(str(os.getpid()))
        if wish["user"]:
            for path in (Path(top, "service"), *Path(top, "service").iterdir()):
                os.chown(path, _USER, _USER)


def _obey(wish: dict[str, Any]) -> int:
    """Run the command, and return its exit code."""
    home = "/root"
    who: dict[str, Any] = {}
    if wish["user"]:
        home = "/home/user"
        who = {"user": _USER, "group": _USER, "extra_groups": []}
        os.makedirs(home)
        os.chown(home, _USER, _USER)
        # What runs the tests may be installed there.
        os.chmod("/root", 0o755)
    changes = {"HOME": home, "TMPDIR": "/tmp", "NO_COLOR": "1"}
    try:
        done = subprocess.run(
            wish["command"],
            cwd=wish["folder"],
            env={**wish["variables"], **changes},
            stdin=subprocess.DEVNULL,
            timeout=wish["seconds"],
            check=False,
            **who,
        )
    except subprocess.TimeoutExpired:
        return 124
    return int(done.returncode)


def _mount(
    kind: str | None,
    where: str,
    options: str = "",
    *,
    source: str = "none",
    flags: int = 0,
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if word is None else word.encode() for word in (source, where, kind)]
    if libc.mount(*words, flags, options.encode()):
        why = ctypes.get_errno()
        raise OSError(why, os.strerror(why), where)


def _load_module(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/usr/lib/uml/modules/{os.uname().release}/kernel/{path}", "rb") as file:
        if libc.syscall(_FINIT_MODULE, file.fileno(), b"", 0):
            why = ctypes.get_errno()
            raise OSError(why, os.strerror(why), path)


def main() -> None:
    """Run the command of the command line in a machine."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--user", action="store_true", help="as an ordinary user")
    parser.add_argument("--groups", choices=("v1", "v2", "none"), default="v2")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    wish = parser.parse_args()
    done = run(wish.command, user=wish.user, groups=wish.groups, seconds=wish.seconds)
    print(done.stdout, end="")
    sys.exit(done.returncode)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first"]:
        _be_first_process(sys.argv[2])
    else:
        main()
