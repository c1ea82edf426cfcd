"""Files that are written whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def written_whole(target: Path) -> Iterator[IO[bytes]]:
    """Give a new file to a block, which is put in the place of `target` at its end.

    It is on the disk then, and for this user alone. If the block fails, `target` stays
    as it was.

    Raises:
        OSError: It cannot be written.
    """
    with tempfile.NamedTemporaryFile(
        dir=target.parent, prefix=target.name, delete=False
    ) as part:
        try:
            yield part
            part.flush()
            os.fsync(part.fileno())
            os.replace(part.name, target)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
