"""The pictures of the docs are those that the present console makes."""

from __future__ import annotations

import struct
from pathlib import Path

from ...support.console.screenshots import FOLDER, make


def test_every_picture_of_the_docs_can_be_made_anew(tmp_path: Path) -> None:
    make(tmp_path)
    pictures = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert pictures.keys() == {path.name for path in FOLDER.glob("console-*.png")}
    for name, data in pictures.items():
        width, height = struct.unpack(">II", data[16:24])
        assert (width, height) >= (1100, 860), name
