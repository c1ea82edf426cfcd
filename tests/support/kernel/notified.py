"""Programs whose calls the notifier answers, without any other layer of a cell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..ordinary_user import ORDINARY_USER, SYSTEM_PYTHON
from ..paths import ROOT

_SUPERVISOR = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
from cell.kernel import confined_calls, linux, notification
from cell.notifier import main

work, served = sys.argv.pop(1), frozenset(sys.argv.pop(1).split())
if served:
    channel = main.start(served, [work, work + "-tmp"], None)
linux.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
pid = os.fork()
if pid == 0:
    try:
        os.setsid()
        os.chdir(work)
        if served:
            linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
            notification.install(channel, served, confined_calls.RULES)
        os.execvp(sys.argv[1], sys.argv[1:])
    finally:
        os._exit(99)
status = os.waitpid(pid, 0)[1]
os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))
"""
"""Runs a command beneath a notifier. Without words in its third argument, plainly."""


class Place:
    """Folders of an ordinary user; the code of cells lies beside them.

    Args:
        base: Holds them all.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.code = base / "code"
        self.outside = self.folder("outside")

    def folder(self, name: str) -> Path:
        """Return a new folder of the user."""
        made = self.base / name
        made.mkdir(0o700)
        self.give(made)
        return made

    def give(self, *paths: Path) -> None:
        """Make files the user's."""
        for path in paths:
            os.chown(path, *_user(), follow_symlinks=False)

    def run(
        self,
        name: str,
        served: str,
        *command: str,
        env: Mapping[str, str] | None = None,
        seconds: float = 100,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in new folders of its own.

        Args:
            name: Of the work dir; the other one is named `-tmp` after it.
            served: What the notifier serves; nothing runs the command plainly.
            command: Its arguments.
            env: More variables.
            seconds: The time limit.
        """
        work, temporary = self.folder(name), self.folder(f"{name}-tmp")
        arguments = [str(self.code), str(work), served, *command]
        user, group = _user()
        return subprocess.run(
            [SYSTEM_PYTHON, "-I", "-c", _SUPERVISOR, *arguments],
            cwd="/",
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(work),
                "TMPDIR": str(temporary),
                "OUTSIDE": str(self.outside),
                **(env or {}),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            user=user,
            group=group,
            extra_groups=[] if os.getuid() == 0 else None,
        )


@contextmanager
def place() -> Iterator[Place]:
    """Make a place that an ordinary user may enter, and remove it."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as base:
        os.chmod(base, 0o755)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "sandbox" / "cell", f"{base}/code/cell", ignore=ignored)
        yield Place(Path(base))


def why_not() -> str:
    """Return the reason why nothing can be notified here, or an empty text."""
    if not sys.platform.startswith("linux") or not Path(SYSTEM_PYTHON).exists():
        return f"this needs Linux and {SYSTEM_PYTHON}"
    with place() as tried:
        done = tried.run("try", "attributes", "true")
    return "" if done.returncode == 0 else f"no user notification: {done.stderr[-200:]}"


def _user() -> tuple[int, int]:
    if os.getuid() == 0:
        return ORDINARY_USER, ORDINARY_USER
    return os.getuid(), os.getgid()
