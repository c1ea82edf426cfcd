"""Copies of SQLite files, as a loss of power may have left them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path


def copy_as_lost(source: Path, left: Path, chance: random.Random) -> None:
    """Copy a file and its log, of which a part did not reach the disk."""
    for end in ("", "-wal"):
        shutil.copyfile(f"{source}{end}", f"{left}{end}")
    chance.choice([cut, _scramble])(Path(f"{left}-wal"), chance)


def cut(path: Path, chance: random.Random) -> None:
    """Lose the end of a file."""
    whole = path.read_bytes()
    path.write_bytes(whole[: chance.randrange(len(whole) + 1)])


def _scramble(path: Path, chance: random.Random) -> None:
    """Lose pages in the middle of a file: those after them did reach the disk."""
    whole = bytearray(path.read_bytes())
    page = chance.randrange(0, len(whole), 512)
    whole[page : page + 512] = bytes(512)
    path.write_bytes(whole)
