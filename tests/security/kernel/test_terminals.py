"""Pseudo-terminals of cells: few, their own, and nobody's keyboard or console."""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.sandbox import Session

from ...conftest import BackendRow
from ...support.attacks.as_programs import program, system_call, value_of

pytestmark = pytest.mark.anyio


def pseudo_terminals() -> int:
    import os

    opened = 0
    while opened < 40:
        try:
            os.openpty()
        except OSError:
            break
        opened += 1
    return opened


@pytest.mark.promise("A6")
async def test_a_cell_has_few_pseudo_terminals(
    cell: Session, backend: BackendRow
) -> None:
    opened = await value_of(cell, program(pseudo_terminals))

    # gVisor's are its own kernel's, and count nowhere else.
    assert opened == (40 if backend.name == "runsc" else 16)


def leave_terminals_open() -> int:
    import os
    import pty

    opened = 0
    while True:
        try:
            pid, _ = pty.fork()
        except OSError:
            break
        if pid == 0:
            os.execv("/bin/sh", ["sh", "-c", "trap '' HUP TERM INT; sleep 100"])
        opened += 1
    return opened


@pytest.mark.promise("A6")
async def test_terminals_end_with_the_run_that_opened_them(
    cell: Session, backend: BackendRow
) -> None:
    if backend.name == "runsc":
        pytest.skip("gVisor has more of them than a cell has processes")

    left = await value_of(cell, program(leave_terminals_open))
    after = await value_of(cell, program(pseudo_terminals))

    assert (left, after) == (16, 16)


def commands_of_terminals() -> dict[str, str]:
    import ctypes
    import json
    import os
    import pty
    import termios

    read, write = os.pipe()
    # Without this filter Linux lets a process type into the terminal that controls it.
    pid, _ = pty.fork()
    if pid:
        os.close(write)
        os.waitpid(pid, 0)
        return json.loads(os.read(read, 4096))  # type: ignore[no-any-return]
    ioctl = 16 if os.uname().machine == "x86_64" else 29
    commands = {
        "type": termios.TIOCSTI,
        "line discipline": termios.TIOCSETD,
        "virtual console": 0x541C,
        "console's output": 0x541D,
    }
    data = ctypes.byref(ctypes.c_int(0))
    # The kernel takes 32 bits of it, so more must not mislead a filter.
    said = {
        f"{name} {number:#x}": system_call(ioctl, 0, number, data)
        for name, low in commands.items()
        for number in (low, low | 1 << 32)
    }
    os.write(write, json.dumps(said).encode())
    os._exit(0)


@pytest.mark.promise("A6")
async def test_no_terminal_is_typed_into_or_driven_otherwise(cell: Session) -> None:
    said = await value_of(cell, program(commands_of_terminals, system_call))

    assert set(said.values()) == {"EPERM"}, said


def talk_over_a_terminal(where: str) -> dict[str, Any]:
    import os
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["sh", "-c", f"read word; echo $word {where}; tty"])
    os.write(terminal, b"hello\n")
    said = b""
    # Not to its end: gVisor tells of none.
    while said.count(b"\n") < 3:
        said += os.read(terminal, 100)
    os.waitpid(pid, 0)
    return {"said": said.decode().split(), "others": os.listdir("/dev/pts")}


async def test_programs_talk_over_terminals_of_their_cell(
    cell: Session, backend: BackendRow
) -> None:
    # gVisor cannot open that one.
    where = "" if backend.name == "runsc" else ">/dev/tty"

    said = await value_of(cell, program(talk_over_a_terminal), where=where)

    *words, name = said["said"]
    assert (words, name[:9]) == (["hello", "hello"], "/dev/pts/")
    assert set(said["others"]) <= {name[9:], "ptmx"}
