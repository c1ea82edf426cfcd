"""Programs that attack, for more than one file of tests."""

from __future__ import annotations

import socket
from typing import Any

from .as_programs import attempt, system_call


def host_addresses() -> list[str]:
    """Return addresses at which this machine hears itself, and its neighbours."""
    found = {"127.0.0.1", "172.17.0.1", "169.254.169.254", "10.0.2.2", "8.8.8.8"}
    # Connecting a datagram socket only looks up the address that would be used.
    for neighbour in ("8.8.8.8", "172.17.0.2"):
        with socket.socket(type=socket.SOCK_DGRAM) as probe:
            if probe.connect_ex((neighbour, 9)) == 0:
                found.add(probe.getsockname()[0])
    return sorted(found)


def port_of_the_proxy(addresses: list[str]) -> list[object]:
    """Return it, and where a connection to it succeeds."""
    import os
    import socket

    host, _, port = os.environ["http_proxy"][7:].partition(":")

    def reached(address: str) -> bool:
        try:
            with socket.create_connection((address, int(port)), 2) as way:
                way.sendall(b"x")
        except OSError:
            return False
        return True

    return [int(port), reached(host), [each for each in addresses if reached(each)]]


def ways_out(
    addresses: list[str], tcp_port: int, udp_port: int, abstract: str, path: str
) -> dict[str, str]:
    import socket

    def tcp(family: int, address: Any) -> None:
        with socket.socket(family) as client:
            client.settimeout(1)
            client.connect(address)

    def udp(family: int, address: Any) -> None:
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.connect(address)
            client.send(b"canary")
            client.settimeout(0.2)
            client.recv(1)

    said = {}
    for host in addresses:
        where = (host, tcp_port)
        said[f"tcp {host}"] = attempt(lambda w=where: tcp(2, w))  # type: ignore[misc]
        for port in (udp_port, 53):
            to = (host, port)
            said[f"udp {host} {port}"] = attempt(lambda w=to: udp(2, w))  # type: ignore[misc]
        said[f"http {host}"] = attempt(lambda h=host: tcp(2, (h, 80)))  # type: ignore[misc]
    for host in ("::1", "fe80::1", "2001:4860:4860::8888", "fd00:ec2::254"):
        where6 = (host, tcp_port)
        said[f"tcp6 {host}"] = attempt(lambda w=where6: tcp(10, w))  # type: ignore[misc]
    said["raw"] = attempt(lambda: socket.socket(2, socket.SOCK_RAW, 1))
    ping = attempt(lambda: socket.socket(2, socket.SOCK_DGRAM, 1))
    said["ping"] = ping if ping != "done" else "no route"
    said["abstract"] = attempt(lambda: tcp(1, "\0" + abstract))
    said["path"] = attempt(lambda: tcp(1, path))
    for name in ("example.com", "canary.example.com", "metadata.google.internal"):
        said[f"dns {name}"] = attempt(lambda n=name: socket.getaddrinfo(n, 80))  # type: ignore[misc]
    return said


def reach_supervisor() -> dict[str, str]:
    import ctypes
    import os
    import resource
    import signal

    def take(number: int, flags: int) -> None:
        fd = os.open(f"/proc/1/fd/{number}", flags)
        # What its watchdog reads for a moment is there for everybody to read.
        if os.readlink(f"/proc/self/fd/{fd}").startswith("/proc"):
            raise PermissionError(1, "nothing of its own")
        # gVisor knows pipes by their owner: that of a program's output is the program.
        if any(os.path.samestat(os.fstat(fd), os.fstat(own)) for own in (1, 2)):
            raise PermissionError(1, "the program's own output")

    x86 = os.uname().machine == "x86_64"
    ptrace, readv, getfd = (101, 310, 438) if x86 else (117, 270, 438)
    prlimit, pidfd_open = (302, 434) if x86 else (261, 434)
    pair = ctypes.create_string_buffer(16)
    said = {
        f"open {name}": attempt(lambda n=name: open(f"/proc/1/{n}", "rb").read(1))  # type: ignore[misc]
        for name in ("mem", "maps", "auxv", "syscall", "stack", "pagemap")
    }
    for name in ("mem", "oom_score_adj", "comm", "clear_refs"):
        said[f"write {name}"] = attempt(lambda n=name: open(f"/proc/1/{n}", "r+b"))  # type: ignore[misc]
    for name in ("cwd", "root", "exe"):
        said[f"link {name}"] = attempt(lambda n=name: os.readlink(f"/proc/1/{n}"))  # type: ignore[misc]
    said["fds"] = attempt(lambda: os.listdir("/proc/1/fd"))
    for number in range(12):
        for flags in (os.O_RDONLY, os.O_WRONLY):
            said[f"fd {number} {flags}"] = attempt(
                lambda n=number, f=flags: take(n, f)  # type: ignore[misc]
            )
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, 0):
        said[f"signal {int(number)}"] = attempt(lambda n=number: os.kill(1, n))  # type: ignore[misc]
    said["attach"] = system_call(ptrace, 16, 1, 0, 0)
    said["seize"] = system_call(ptrace, 0x4206, 1, 0, 0)
    said["read memory"] = system_call(readv, 1, pair, 1, pair, 1, 0)
    said["prlimit"] = system_call(prlimit, 1, resource.RLIMIT_NOFILE, pair, 0)
    said["affinity"] = attempt(lambda: os.sched_setaffinity(1, {0}))
    said["priority"] = attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
    pidfd = ctypes.CDLL(None).syscall(pidfd_open, 1, 0)
    said["take fd"] = system_call(getfd, pidfd, 0, 0)
    return said


def writes(base: str) -> dict[str, str]:
    import os

    return {
        "create": attempt(lambda: open(f"{base}/new", "x")),
        "overwrite": attempt(lambda: open(f"{base}/text", "r+")),
        "append": attempt(lambda: os.open(f"{base}/text", os.O_WRONLY | os.O_APPEND)),
        "truncate": attempt(lambda: os.truncate(f"{base}/text", 0)),
        "remove": attempt(lambda: os.unlink(f"{base}/text")),
        "rename": attempt(lambda: os.rename(f"{base}/text", f"{base}/moved")),
        "chmod": attempt(lambda: os.chmod(f"{base}/text", 0o777)),
        "touch": attempt(lambda: os.utime(f"{base}/text")),
        "link": attempt(lambda: os.link(f"{base}/text", f"{base}/second")),
        "symlink": attempt(lambda: os.symlink("/", f"{base}/root")),
        "make a folder": attempt(lambda: os.mkdir(f"{base}/folder")),
        "in a folder": attempt(lambda: open(f"{base}/below/new", "x")),
        "by descriptor": attempt(
            lambda: os.open(
                f"/proc/self/fd/{os.open(f'{base}/text', os.O_RDONLY)}", os.O_RDWR
            )
        ),
    }
