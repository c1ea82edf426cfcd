"""A process that can get no socket for its call is not left to wait."""

from __future__ import annotations

import errno
import os
import socket
import sys
from typing import NoReturn

import pytest

from toolcell.sandbox.cell.program import tools_command
from toolcell.sandbox.cell.relays.call_door import TOOLS, CallDoor


def ignore(_: bytes) -> None:
    """Take a call that no test looks at."""


def fail(*_: object) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("fails", ["socket.socketpair", "send_fds"])
def test_who_gets_no_socket_is_answered_and_says_so(
    fails: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(30)
        door = CallDoor(ours.fileno(), ignore, {"calls_at_once": 1, "max_calls": 9})
        with monkeypatch.context() as patch:
            patch.setattr(f"toolcell.sandbox.cell.relays.call_door.{fails}", fail)
            theirs.sendall(b"???")
            door.pump()
        monkeypatch.setenv(TOOLS, str(theirs.fileno()))
        monkeypatch.setattr(sys, "argv", ["tools", "list"])

        assert tools_command.main() == 1
        assert "no descriptor is left" in capsys.readouterr().err

        assert theirs.recv(9) == b"!"
        door.pump()
        data, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        os.close(fds[0])
        assert (data, len(fds)) == (b"!", 1)
        door.close()
