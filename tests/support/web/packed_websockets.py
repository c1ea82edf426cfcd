"""The library `websockets`, for programs in cells."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import websockets


def packed_websockets() -> bytes:
    """Return an archive that a program has on its `PYTHONPATH`."""
    packed, folder = io.BytesIO(), Path(websockets.__file__).parent
    with zipfile.ZipFile(packed, "w") as archive:
        for path in folder.rglob("*.py"):
            archive.write(path, path.relative_to(folder.parent))
    return packed.getvalue()
