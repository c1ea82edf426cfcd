"""The representations of a value by media type, found as IPython finds them.

This runs in the program's process, and calls methods of the program's objects.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback

from . import figures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Container, Dict, Optional, Tuple

    Bundle = Dict[str, Any]


PLAIN = "text/plain"
_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
    ("_repr_pdf_", "application/pdf"),
)


def bundle_of(
    value: Any,
    include: Optional[Container[str]] = None,
    exclude: Optional[Container[str]] = None,
) -> Tuple[Bundle, Bundle]:
    """Return the representations of a value, and metadata, by media type.

    Both are empty if the value has displayed itself. `_repr_mimebundle_` comes first;
    for other types the methods named after them are asked. One that raises is left out,
    and its traceback is printed.
    """
    data: Bundle = {}
    metadata: Bundle = {}
    if _call(value, "_ipython_display_") is not _NOTHING:
        return data, metadata
    found = _call(value, "_repr_mimebundle_", include=include, exclude=exclude)
    if isinstance(found, tuple) and len(found) == 2:
        found, metadata = found[0], dict(found[1] or {})
    if isinstance(found, dict):
        data.update(found)
    if PLAIN not in data:
        data[PLAIN] = text_of(value)
    for name, mime in _METHODS:
        if mime not in data:
            _add(_call(value, name), mime, data, metadata)
    if figures.is_figure(value):
        data = {**figures.bundle_of(value), **data}
    elif _is_table(value) and importlib.util.find_spec("e2b_charts") is not None:
        columns = _call(value, "to_dict", orient="list")
        if columns is not _NOTHING:
            data["e2b/data"] = figures.as_json(columns)
    kept = {mime: each for mime, each in data.items() if _keeps(mime, include, exclude)}
    return kept, metadata


def _is_table(value: Any) -> bool:
    module = sys.modules.get("pandas")
    return module is not None and isinstance(value, module.DataFrame)


def _add(found: Any, mime: str, data: Bundle, metadata: Bundle) -> None:
    if isinstance(found, tuple) and len(found) == 2:
        found, metadata[mime] = found
    if found is not None and found is not _NOTHING:
        data[mime] = found


def _keeps(
    mime: str,
    include: Optional[Container[str]],
    exclude: Optional[Container[str]],
) -> bool:
    return not (include and mime not in include) and not (exclude and mime in exclude)


_NOTHING = object()


def _call(value: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Call a method of a value's class; `_NOTHING` if it has none, or it fails."""
    # Looked up on the class: objects that answer to any name have no such method.
    if isinstance(value, type) or not callable(getattr(type(value), name, None)):
        return _NOTHING
    try:
        return getattr(value, name)(*arguments, **options)
    except NotImplementedError:
        return _NOTHING
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return _NOTHING


def text_of(value: Any) -> str:
    """Return a value as plain text, by `_repr_pretty_` or `repr`."""
    printer = _Printer()
    try:
        if _call(value, "_repr_pretty_", printer, False) is not _NOTHING:
            return printer.written
        return repr(value)
    except Exception:
        traceback.print_exc(file=sys.stderr)
        return object.__repr__(value)


class _Printer:
    """As much of IPython's pretty printer as simple `_repr_pretty_` methods use."""

    def __init__(self) -> None:
        self.written = ""

    def text(self, text: str) -> None:
        self.written += text

    def breakable(self, sep: str = " ") -> None:
        self.written += sep

    def pretty(self, value: Any) -> None:
        self.written += repr(value)
