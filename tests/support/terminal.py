"""Runs the installed `toolcell` in a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .polling import PATIENCE
from .toolcell_command import TOOLCELL

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])|\r")


class Terminal:
    """A command with a terminal of its own as standard input and output.

    Args:
        arguments: Of `toolcell`.
        folder: The current folder.
        environ: Variables beside those of this process.
        command: What runs in place of `toolcell`.
    """

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = (TOOLCELL,),
    ) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self._process = subprocess.Popen(
            [*command, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "1", **(environ or {})},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.shown = ""
        self.raw = b""
        """All that came, escape sequences included."""

        self._seen = 0

    def send(self, text: str) -> None:
        """Type."""
        os.write(self._mine, text.encode())

    def press(self, key: str, text: str) -> str:
        """Press a key until the text is shown, as a person does; return as `expect`.

        Python does not see a signal that comes while readline draws a character.
        """
        for _ in range(int(PATIENCE)):
            self.send(key)
            if self._shows(text, 1.0):
                break
        return self.expect(text)

    def expect(self, text: str) -> str:
        """Wait until the text is shown, after what was expected before; return both."""
        shows = self._shows(text, PATIENCE)
        assert shows, f"{text!r} is not shown: {self.shown[self._seen :]!r}"
        found = self.shown.index(text, self._seen)
        before, self._seen = self._seen, found + len(text)
        return self.shown[before : self._seen]

    def _shows(self, text: str, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while text not in self.shown[self._seen :]:
            left = until - time.monotonic()
            if left <= 0:
                return False
            assert self._read(left), f"ended without {text!r}: {self.shown!r}"
        return True

    def _read(self, seconds: float) -> bool:
        if not select.select([self._mine], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._mine, 65_536)
        except OSError:
            return False
        self.raw += data
        self.shown += _ESCAPES.sub("", data.decode("utf-8", "replace"))
        return bool(data)

    def expect_raw(self, data: bytes) -> None:
        """Wait until bytes have come."""
        until = time.monotonic() + PATIENCE
        while data not in self.raw:
            left = until - time.monotonic()
            assert left > 0, f"{data!r} has not come: {self.raw!r}"
            assert self._read(left), f"ended without {data!r}: {self.raw!r}"

    def wait(self) -> int:
        """Read to the end and return the exit code."""
        while self._read(PATIENCE):
            pass
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._mine)


def _take_terminal() -> None:
    """Make the terminal the one that Ctrl-C reaches us by."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
