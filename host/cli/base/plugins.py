"""A start without plugins of pydantic, for commands that run no code of their user."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_NAME = "metadata"
_METADATA = f"importlib.{_NAME}"


@contextlib.contextmanager
def without_plugins() -> Iterator[None]:
    """Look for no plugins of pydantic, and do not import what would look for them.

    To look takes as long as Python's own start. The import takes 5 ms of the 123 of
    `toolcell run` (quickest of 30 in turns), as it brings the standard library's parser
    of e-mail.
    """
    before = os.environ.get(_NO_PLUGINS)
    os.environ[_NO_PLUGINS] = "__all__"
    try:
        with _metadata_waits():
            yield
    finally:
        if before is None:
            del os.environ[_NO_PLUGINS]
        else:
            os.environ[_NO_PLUGINS] = before


@contextlib.contextmanager
def _metadata_waits() -> Iterator[None]:
    """Import `importlib.metadata` only when something of it is used.

    pydantic takes `entry_points` from it, which it calls for plugins alone. Until then
    a module of the same names stands in, which whoever took it may keep.
    """
    spec = None if _METADATA in sys.modules else find_spec(_METADATA)
    if spec is None:
        yield
        return
    waiting = module_from_spec(spec)

    def real() -> ModuleType:
        _remove(waiting)
        return importlib.import_module(_METADATA)

    def entry_points(**selection: Any) -> Any:
        return real().entry_points(**selection)

    waiting.__dict__.update(
        entry_points=entry_points, __getattr__=lambda name: getattr(real(), name)
    )
    sys.modules[_METADATA] = waiting
    setattr(importlib, _NAME, waiting)
    try:
        yield
    finally:
        _remove(waiting)


def _remove(waiting: ModuleType) -> None:
    if sys.modules.get(_METADATA) is waiting:
        del sys.modules[_METADATA]
        delattr(importlib, _NAME)
