"""The last words of a server that is a program: why it does not answer."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from pathlib import Path

import anyio
import anyio.to_thread

from toolcell.core.text.printable import escaped

STDERR_CHARACTERS = 4_096
"""Characters of a program's standard error that are logged, and that its file has. When
it is reached the oldest are dropped."""

FILE_SECONDS = 1.0
"""Seconds after which its file has what a program wrote meanwhile."""

SHOWN_CHARACTERS = 1_000
"""Characters of its last lines that an error shows. When it is reached the oldest are
dropped."""

_SHOWN_LINES = 8
_SIGN_CHARACTERS = 200
_MIN_SECRET = 6
_FETCHERS = {
    **dict.fromkeys(("bunx", "npx", "pnpx"), "npm"),
    **dict.fromkeys(("pipx", "uv", "uvx"), "packages"),
}
"""Programs that fetch others, and the key of a cell that does it for them."""

_log = logging.getLogger(__name__)
_writing = threading.Lock()
"""Servers of one name have one file."""

# What programs write, and what helps.
_CAUSES = (
    (
        r"env: .?(node|deno|bun|ruby).?: No such file|\b(node|deno|bun): not found",
        "the interpreter that it names is not there: the image of its cell has to"
        " have it",
    ),
    (
        r"\b(ba)?sh: .{0,200}not found|env: .{0,200}No such file",
        "a program that it starts is not there: name its package in `packages` or"
        " `npm` of its cell, or take an image that has it",
    ),
    (
        r"loading shared libraries|\bGLIBC(XX)?_[\d.]+' not found",
        "a library of the system is missing or too old: take an image that has it",
    ),
    (
        r"Exec format error|cannot execute binary file",
        "it is for another kind of machine, or is no program",
    ),
    (
        r"\bMemoryError|heap out of memory|Fatal process OOM|std::bad_alloc",
        "raise `limits.memory_mib` of its cell",
    ),
    (
        r"No module named|ModuleNotFoundError",
        "a Python package is missing: name it in `packages` of its cell",
    ),
    (
        r"Cannot find (module|package)|ERR_MODULE_NOT_FOUND",
        "a package of npm is missing: name it in `npm` of its cell",
    ),
    (
        r"ENOTCACHED|EAI_AGAIN|name resolution|Name or service not known|ProxyError"
        r"|Could not resolve|Network is unreachable|failed to fetch",
        "it wants the network: name what it needs in `packages` or `npm`, or the hosts"
        " in `network` of its cell",
    ),
    (
        r"EROFS|Read-only file system|readonly database",
        "it writes where it may not: lead it to its work dir, or to a mount that is"
        " not read-only",
    ),
    (r"EMFILE|Too many open files", "raise `limits.open_files` of its cell"),
    (r"EAGAIN|can't start new thread|fork: ", "raise `limits.pids` of its cell"),
    (r"ENOSPC|No space left", "raise `limits.disk_mib` of its cell"),
    (
        r"EACCES|Permission denied",
        "it may not read or run a file: what its cell shows has to be open to others",
    ),
)

_LIMITS = {"memory": "limits.memory_mib", "disk space": "limits.disk_mib"}
_REFUSALS = {
    "missing": "its cell has no such program, or not the interpreter that its first"
    " line names: name its package in `packages` or `npm` of its cell, show its"
    " folder in `mounts`, or take an image that has it",
    "denied": "programs of its cell may not run it: make it executable for others",
}


class LastWords:
    """The words of a program that are no messages, and the way that it ended.

    Args:
        command: The program.
        hidden: Values of its environment; no error and no log shows them.
        in_cell: True if it runs in a cell, whose configuration may be the cause.
        file: The file for what it wrote last; None: there is none.
    """

    def __init__(
        self,
        command: str = "",
        hidden: Iterable[str] = (),
        *,
        in_cell: bool = False,
        file: Path | None = None,
    ) -> None:
        self.end = ""
        """The way that it ended, such as `exit code 1`; empty: it was made to."""

        self.limit = ""
        """The resource for which it, or a process that it started, was ended in its
        cell; empty: for none."""

        self.refusal = ""
        """The reason for which it did not start in a cell, such as `missing`, or a
        hint."""

        self._in_cell = in_cell
        self._command = command
        self._hidden = sorted(
            (text for text in hidden if len(text) >= _MIN_SECRET), key=len, reverse=True
        )
        self._tail = b""
        self._lines = b""
        self._file = file
        self._is_written = True

    def add(self, chunk: bytes) -> None:
        """Take a piece of its standard error."""
        self._tail = _end_of(self._tail + chunk)
        self._is_written = False

    def add_line(self, line: bytes) -> None:
        """Take a line of its standard output that is no message."""
        # Between two pieces of standard error it would cut a secret in two.
        self._lines = _end_of(self._lines + line + b"\n")
        self._is_written = False

    async def keep(self) -> None:
        """Keep the file as it should be, until this is cancelled."""
        while self._file is not None:
            await anyio.sleep(FILE_SECONDS)
            if not self._is_written:
                await anyio.to_thread.run_sync(self._write)

    def _write(self) -> None:
        if self._file is None or self._is_written:
            return
        self._is_written = True
        # With one name for it, a host that is killed leaves at most one such file.
        part = self._file.with_name(f"{self._file.name}.part")
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _writing:
                part.touch(mode=0o600)
                part.write_text(f"{self._tail_text[-STDERR_CHARACTERS:]}\n", "utf-8")
                part.replace(self._file)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._file, error.strerror)

    def log(self) -> None:
        """Log what it said, if it said anything, and write its file."""
        self._write()
        if said := self._tail_text:
            _log.info(
                "standard error of the MCP server %s: %s",
                self._command,
                said[-STDERR_CHARACTERS:],
            )

    def after(self, message: str) -> str:
        """Return a message, and the program's last lines if it said any."""
        lines = [line for line in self._tail_text.splitlines() if line.strip()]
        shown = "\n".join(lines[-_SHOWN_LINES:])[-SHOWN_CHARACTERS:]
        # Node writes its stack below the line that names what is missing.
        telling, _ = self._sign
        if telling not in shown:
            shown = f"{telling[:_SIGN_CHARACTERS]}\n...\n{shown}"
        return f"{message}; its last words:\n{shown}" if shown else message

    @property
    def cause(self) -> str:
        """The likely cause of its end and what to do; empty: nobody knows."""
        if not self._in_cell:
            return ""
        if self.limit in _LIMITS:
            return f"raise `{_LIMITS[self.limit]}` of its cell"
        if key := _FETCHERS.get(self._command.rpartition("/")[2]):
            return (
                f"{self._command} fetches a program when it starts: name it in"
                f" `{key}` of its cell and its command as `command`, or allow the"
                " registry in `network`"
            )
        if self.refusal:
            return _REFUSALS.get(self.refusal, self.refusal)
        return self._sign[1]

    @property
    def _sign(self) -> tuple[str, str]:
        """The line that tells the likely cause, and the cause; both may be empty."""
        lines = self._tail_text[-STDERR_CHARACTERS:].splitlines()
        signs = (
            (line, cause)
            for form, cause in _CAUSES
            for line in lines
            if re.search(form, line)
        )
        return next(signs, ("", ""))

    @property
    def _tail_text(self) -> str:
        text = "\n".join(filter(None, map(self._masked, (self._lines, self._tail))))
        return escaped(text)

    def _masked(self, said: bytes) -> str:
        text = said.decode("utf-8", "replace").strip()
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return text


def _end_of(said: bytes) -> bytes:
    """Return its end, longer than what is shown: a secret that is cut is not hidden."""
    return said[-4 * STDERR_CHARACTERS :]
