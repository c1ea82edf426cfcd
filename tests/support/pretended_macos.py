"""A prelude that takes from a program what Linux has and macOS lacks."""

from __future__ import annotations

PRETENDED_MACOS = """
import asyncio, builtins, io, os, select, selectors, signal, socket, sys
import anyio, anyio._backends._asyncio, pathlib, subprocess, threading
# Packages of others know their machine from their installation.
import docker, docker.utils, pydantic.fields, sysconfig, uuid
sysconfig.get_config_vars()

for module, names in {
    os: "pidfd_open memfd_create sched_getaffinity sched_setaffinity unshare setns"
    " eventfd O_PATH O_TMPFILE getrandom setresuid setresgid copy_file_range splice"
    " posix_fallocate P_PIDFD",
    select: "epoll EPOLLIN EPOLLOUT",
    signal: "pidfd_send_signal",
    socket: "SO_PEERCRED SOCK_CLOEXEC AF_NETLINK AF_PACKET AF_VSOCK",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector
asyncio.set_event_loop_policy(None)

def without_proc(function):
    def checked(path, *args, **options):
        if isinstance(path, (str, bytes, os.PathLike)):
            if os.fsdecode(path).startswith(("/proc", "/sys/fs/cgroup")):
                raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **options)
    return checked

for module, names in {
    builtins: "open", io: "open",
    os: "open stat lstat listdir scandir readlink access mkdir",
}.items():
    for name in names.split():
        setattr(module, name, without_proc(getattr(module, name)))
sys.platform = "darwin"
"""
