"""Cells whose code lacks something, to see that tests notice."""

from __future__ import annotations

import marshal
from collections.abc import Sequence

from toolcell.sandbox.backends import cell_bundle

Change = Sequence[str]
"""The name of a module below `cell`, a text in it, and the text in its place."""


def changed_bundle(changes: Sequence[Change]) -> bytes:
    """Return the code of cells with some of its text replaced."""
    sources = cell_bundle.sources()
    for module, old, new in changes:
        name = f"toolcell_cell.{module}"
        assert sources[name].count(old) == 1, (name, old)
        sources[name] = sources[name].replace(old, new)
    return cell_bundle.framed(marshal.dumps(sources, 2))
