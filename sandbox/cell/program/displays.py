"""Outputs of a program, of which nothing is loaded until a program needs it."""

from __future__ import annotations

import os
import sys

from . import stateful

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_PYPLOT = "matplotlib.pyplot"
_METHODS = (
    "_repr_html_",
    "_repr_mimebundle_",
    "_ipython_display_",
    "_repr_png_",
    "_repr_svg_",
    "_repr_latex_",
    "_repr_markdown_",
    "_repr_jpeg_",
    "_repr_json_",
    "_repr_javascript_",
    "_repr_pdf_",
)
_LED = frozenset(
    (
        "IPython",
        "IPython.display",
        "IPython.core",
        "IPython.core.display",
        "IPython.core.display_functions",
        "PIL.ImageShow",
        "altair",
        "matplotlib.pyplot",
        "plotly.io._renderers",
    )
)
# The module that does the work, once it is loaded.
_outputs: Any = None
_home = ""
_pid = 0


class Finder:
    """Leads the imports of a few libraries to `outputs.hooks`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _LED:
            return None
        from ..outputs import hooks

        _load()
        return hooks.find(name, path)


def display(*objects: Any, **options: Any) -> Any:
    """Show values as outputs, with all their representations, as in a notebook."""
    return _load().display(*objects, **options)


def begin(home: str) -> None:
    """Begin the outputs of a run."""
    global _home, _pid
    _home, _pid = home, os.getpid()
    if _outputs is not None:
        _outputs.begin(_home, _pid)


def in_child() -> bool:
    """Return True in a process that the program forked."""
    return os.getpid() != _pid


def end() -> None:
    """End the outputs of a run."""
    if _outputs is not None:
        _outputs.end()


def wanted(value: Any) -> bool:
    """Return True if there may be something to show; costs next to nothing."""
    if _PYPLOT in sys.modules:
        return True
    kind = type(value)
    if kind.__module__ == "builtins":
        return False
    return any(hasattr(kind, name) for name in _METHODS) or _is_figure(value)


def _is_figure(value: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def finish(value: Any, *, whole: bool, is_value: bool) -> object:
    """Show the value of the last expression, and open figures.

    Args:
        value: The value.
        whole: True if it is shown although it has no more than a plain text.
        is_value: True if it is the value of the run.
    """
    return _load().finish(value, whole=whole, is_value=is_value)


def finish_figures() -> None:
    """Show the figures that a program left open when it exited or failed."""
    if _PYPLOT in sys.modules and not in_child():
        _load().finish_figures()


def _load() -> Any:
    global _outputs
    if _outputs is None:
        # Nothing can be imported again whose first import failed.
        with stateful.PlainBuiltins():
            from ..outputs import display as outputs

        outputs.begin(_home, _pid)
        _outputs = outputs
    return _outputs
