"""Programs and strings that others wrote: where they are, and canaries to run near."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
import secrets
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..conftest import missing
from .paths import ROOT

CORPORA = ROOT.parent / "shared" / "corpora"
_IN_ALL_EVENTS = 0xFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One whole program of a corpus."""

    id: str
    code: str
    language: Literal["python", "bash"]
    passes: bool
    """Whether it must end with exit status 0; without meaning for hostile ones."""

    stdout_sha256: str | None
    category: str


def corpus_file(name: str) -> Path:
    """Return the path of a corpus file, or skip the test that asks for it."""
    path = CORPORA / name
    if not path.is_file():
        missing(f"there is no {name} in ../shared/corpora")
    return path


def records(name: str) -> list[dict[str, Any]]:
    """Return the JSON lines of a corpus file."""
    # Not splitlines(): a record may hold characters that it takes for line ends.
    lines = corpus_file(name).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


@functools.cache
def workloads(name: str) -> tuple[Workload, ...]:
    """Return the programs of a corpus file, in its order."""
    return tuple(
        Workload(
            id=record["id"],
            code=record["code"],
            language=record["lang"],
            passes=record["expect"] == "pass",
            stdout_sha256=record.get("stdout_sha256"),
            category=record.get("category", ""),
        )
        for record in records(name)
    )


def naughty_strings() -> list[str]:
    """Return the Big List of Naughty Strings."""
    strings: list[str] = json.loads(
        corpus_file("naughty_strings/blns.json").read_text("utf-8")
    )
    assert len(strings) == 515
    return strings


def one_of_each(programs: Iterable[Workload]) -> list[Workload]:
    """Return the first program of each category in each language."""
    first: dict[tuple[str, str], Workload] = {}
    for program in programs:
        first.setdefault((program.language, program.category), program)
    return list(first.values())


class Canaries:
    """Files, a variable and sockets of the host that no program may touch.

    Get one from `canaries_near`.
    """

    def __init__(self, folder: Path, programs: Iterable[Workload]) -> None:
        text = "\n".join(program.code for program in programs)
        self.secret = f"canary-{secrets.token_hex(16)}"
        self._files = [folder / name for name in (".env", "id_rsa", "wallet.txt")]
        self._named = _named_paths(text)
        self._ports = _named_ports(text)
        self._before: dict[str, object] = {}
        self._sockets: list[socket.socket] = []
        self._inotify = -1
        self._folder = folder

    @contextmanager
    def set_up(self) -> Iterator[Canaries]:
        with ExitStack() as stack:
            self._folder.mkdir()
            for file in self._files:
                file.write_text(self.secret)
            self._before = self._state()
            self._watch(stack)
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                for port in (*self._ports, 0):
                    self._listen(kind, port, stack)
            yield self

    def _watch(self, stack: ExitStack) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._inotify >= 0, os.strerror(ctypes.get_errno())
        stack.callback(os.close, self._inotify)
        for path in (self._folder, *self._files):
            watch = libc.inotify_add_watch(
                self._inotify, os.fsencode(path), _IN_ALL_EVENTS
            )
            assert watch >= 0, os.strerror(ctypes.get_errno())

    def _listen(self, kind: int, port: int, stack: ExitStack) -> None:
        listener = stack.enter_context(socket.socket(type=kind))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            # Something else of this machine serves there.
            return
        if kind == socket.SOCK_STREAM:
            listener.listen()
        self._sockets.append(listener)

    def _state(self) -> dict[str, object]:
        return {path: _state_of(path) for path in self._named}

    @property
    def addresses(self) -> list[tuple[int, int]]:
        """The kind and port of every listener."""
        return [(int(each.type), each.getsockname()[1]) for each in self._sockets]

    @property
    def files(self) -> list[str]:
        """The paths of the canary files."""
        return [str(file) for file in self._files]

    def harm(self) -> list[str]:
        """Return what was touched; empty if nothing was."""
        found = []
        try:
            events = os.read(self._inotify, 65_536)
        except BlockingIOError:
            events = b""
        if events:
            found.append("a canary file was opened, changed or removed")
        # What came from a connection or a datagram waits in the kernel.
        heard, _, _ = select.select(self._sockets, [], [], 0)
        found += [f"port {each.getsockname()[1]} was reached" for each in heard]
        after = self._state()
        found += [
            f"{path} of the host changed"
            for path, state in self._before.items()
            if after[path] != state
        ]
        return found


def canaries_near(folder: Path, programs: Iterable[Workload]) -> Canaries:
    """Return canaries where these programs look: files, ports, paths they name."""
    return Canaries(folder / "canaries", programs)


def _named_paths(text: str) -> list[str]:
    """Return the paths that programs name and that the host itself leaves alone."""
    found = re.findall(r"/(?:etc|root|home|usr|opt|boot|bin)/[\w./-]*\w", text)
    return sorted({path for path in found if not os.path.isdir(path)})


def _state_of(path: str) -> object:
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns


def _named_ports(text: str) -> list[int]:
    numbers = {int(number) for number in re.findall(r"\b\d{4,5}\b", text)}
    return sorted(number for number in numbers if 1024 <= number < 65_536)
