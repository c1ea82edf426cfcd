"""`toolcell run` and `repl` show pictures in terminals that can, and name them else."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from ...support.terminal import Terminal
from ...support.toolcell_command import TOOLCELL

PROGRAM = """
import struct, zlib
from IPython.display import Image
def chunk(kind, data):
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
def png(width, height=0, rows=b""):
    height = height or width
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(rows or bytes((width + 1) * height))
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return bytes.fromhex("89504e470d0a1a0a") + b"".join(parts)
def noise():
    import random
    numbers = random.Random(1)
    return png(700, 700, b"".join(b"\\0" + numbers.randbytes(700) for _ in range(700)))
print("before", end="")
display("text")
display(Image(png(8)))
print("printed")
"""
KITTY = {"TERM": "xterm-kitty"}
ITERM = {"TERM_PROGRAM": "iTerm.app"}
PLAIN = {"TERM": "xterm", "TERM_PROGRAM": "", "LC_TERMINAL": ""}

RUN = ("run", "main.py", "--backend", "subprocess")


def written(folder: Path, program: str = PROGRAM) -> None:
    (folder / "main.py").write_text(program)


def run(folder: Path, environ: Mapping[str, str], *more: str) -> Terminal:
    """Run the program in a terminal to its end."""
    with Terminal(*RUN, *more, folder=folder, environ={**PLAIN, **environ}) as terminal:
        assert terminal.wait() == 0, terminal.shown
    return terminal


def test_kitty_shows_a_picture(tmp_path: Path) -> None:
    written(tmp_path)
    terminal = run(tmp_path, KITTY)

    _, _, rest = terminal.raw.partition(b"\x1b_Ga=T,f=100,q=2,m=0;")
    picture = base64.b64decode(rest.partition(b"\x1b\\")[0], validate=True)
    assert picture.startswith(b"\x89PNG")
    assert "output 2:" not in terminal.shown
    before, after = terminal.raw.split(b"\x1b_G")[0], terminal.raw.split(b"\x1b\\")[-1]
    assert b"before\r\n'text'\r\n" in before
    assert after.startswith(b"\r\nprinted\r\n")


def test_large_pictures_go_to_kitty_in_pieces(tmp_path: Path) -> None:
    written(tmp_path, PROGRAM.replace("png(8)", "noise()"))
    raw = run(tmp_path, KITTY).raw

    parts = raw.split(b"\x1b_G")[1:]
    heads, texts = zip(
        *(part.split(b"\x1b\\")[0].split(b";") for part in parts), strict=True
    )
    assert len(parts) > 10
    assert heads == (b"a=T,f=100,q=2,m=1", *[b"m=1"] * (len(parts) - 2), b"m=0")
    assert max(map(len, texts)) == 4096
    assert base64.b64decode(b"".join(texts)).endswith(b"IEND\xaeB`\x82")


def test_iterm_shows_a_picture(tmp_path: Path) -> None:
    written(tmp_path)
    raw = run(tmp_path, ITERM).raw

    _, _, rest = raw.partition(b"\x1b]1337;File=inline=1;size=")
    head, _, text = rest.partition(b"\x07")[0].partition(b":")
    picture = base64.b64decode(text, validate=True)
    assert head == b"%d;preserveAspectRatio=1" % len(picture)
    assert picture.startswith(b"\x89PNG")


def test_pictures_are_named_where_they_were_displayed(tmp_path: Path) -> None:
    written(tmp_path)
    shown = run(tmp_path, PLAIN).shown

    places = [shown.index(each) for each in ("'text'", "output 2:", "printed")]
    assert places == sorted(places)


def test_an_output_is_shown_while_the_program_runs(tmp_path: Path) -> None:
    written(tmp_path, PROGRAM + "import time; time.sleep(60)\n")
    with Terminal(*RUN, folder=tmp_path, environ={**PLAIN, **KITTY}) as terminal:
        terminal.expect_raw(b"\x1b_Ga=T")
        terminal.expect("printed")


@pytest.mark.parametrize("kind", ["xterm", "dumb", "tmux-256color", "screen"])
def test_other_terminals_name_pictures(tmp_path: Path, kind: str) -> None:
    written(tmp_path, PROGRAM + "display(Image(png(8)))")
    environ = {
        **PLAIN,
        "TERM": kind,
        "TERM_PROGRAM": "" if kind == "xterm" else "WezTerm",
    }
    terminal = run(tmp_path, environ)

    assert b"\x1b]1337" not in terminal.raw
    assert "output 2: output-2.png, image/png, " in terminal.shown
    assert "--out FOLDER keeps them" in terminal.shown


def test_no_terminal_gets_no_picture(tmp_path: Path) -> None:
    written(tmp_path)
    done = subprocess.run(
        [TOOLCELL, *RUN, "--out", "made"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **KITTY},
        capture_output=True,
        check=True,
    )

    assert done.stdout == b"before\n'text'\nprinted\n"
    assert b"\x1b" not in done.stderr
    assert b"output 2: output-2.png, image/png, " in done.stderr
    saved = (tmp_path / "made" / "output-2.png").read_bytes()
    assert saved.startswith(b"\x89PNG")


def test_machines_get_outputs_whole(tmp_path: Path) -> None:
    written(tmp_path)
    done = subprocess.run(
        [TOOLCELL, *RUN, "--json"], cwd=tmp_path, capture_output=True, check=True
    )
    text, picture = json.loads(done.stdout)["outputs"]

    assert text["data"] == {"text/plain": "'text'"}
    assert text["origin"] == "program"
    data = base64.b64decode(picture["data"]["image/png"], validate=True)
    assert data.startswith(b"\x89PNG")


def test_pictures_that_are_artifacts_have_one_name(tmp_path: Path) -> None:
    written(
        tmp_path,
        PROGRAM + "import os; os.mkdir('artifacts')\n"
        "open('artifacts/mine.png', 'wb').write(png(8))\n"
        "display(Image(png(9)))\n"
        "open('artifacts/\\x1b[2J\\n.png', 'wb').write(png(9))\n"
        "open('artifacts/\\u202egnp.png', 'wb').write(b'text')\n",
    )
    done = subprocess.run(
        [TOOLCELL, *RUN, "--out", "made"], cwd=tmp_path, capture_output=True, check=True
    )

    assert b"output 2: output-2.png, image/png, " in done.stderr
    assert b"output 2 is mine.png" in done.stderr
    assert b"output 3 is \\u{1b}[2J\\n.png" in done.stderr
    assert b"\x1b" not in done.stderr
    assert "\u202e" not in done.stderr.decode()
    names = {"mine.png", "\\u{1b}[2J\\n.png", "\\u{202e}gnp.png"}
    assert {path.name for path in (tmp_path / "made").iterdir()} == names


def test_hidden_characters_of_texts_are_written_out(tmp_path: Path) -> None:
    written(
        tmp_path,
        "display({'text/markdown': 'a\\x1b[2Jb'}, raw=True)\n"
        "display({'image/svg+xml': '<svg>\\x1b]0;x\\x07'}, raw=True)\n"
        "display({'image/jpeg': '/9j/' + 'A' * 20, 'x/y': 'z'}, raw=True)\n"
        "display({'x/y': 'z'}, raw=True)\n",
    )
    terminal = run(tmp_path, KITTY)

    assert b"output 4: x/y, not shown" in terminal.raw
    assert b"a\\u{1b}[2Jb" in terminal.raw
    assert b"\x1b[2J" not in terminal.raw
    assert b"\x1b]0" not in terminal.raw
    assert "output 2: output-2.svg" in terminal.shown
    assert "output 3: output-3.jpg" in terminal.shown


def test_the_repl_shows_pictures(tmp_path: Path) -> None:
    environ = {**PLAIN, **KITTY}
    with Terminal(
        *("repl", "--backend", "subprocess", "--history", str(tmp_path / "h")),
        folder=tmp_path,
        environ=environ,
    ) as terminal:
        terminal.expect(">>> ")
        code = PROGRAM.split("display(")[0].strip()
        terminal.send(f"exec({code!r}); display('text'); display(Image(png(8)))\r")
        terminal.expect_raw(b"\x1b_Ga=T,f=100,q=2,m=0;")
        terminal.expect("'text'")
        terminal.send(":quit\r")
        assert terminal.wait() == 0
