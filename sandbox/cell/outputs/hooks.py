"""Leads the imports of some libraries, so that they display here.

`IPython` is found although it is not installed; one that is installed, matplotlib,
plotly and Pillow show by `display`. Plotly and altair give the data of a chart, as they
do where a notebook can draw it, and no page with a script.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Callable, Dict, Optional


_PLOTLY = "application/vnd.plotly.v1+json"
_PACKAGES = ("IPython", "IPython.core")


def find(name: str, path: Any) -> Optional[importlib.machinery.ModuleSpec]:
    """Return how to load one of the modules that `program.displays` names.

    None if it is not there.
    """
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None:
        package = name in _PACKAGES
        if name.partition(".")[0] != "IPython":
            return None
        return importlib.machinery.ModuleSpec(name, _Names(), is_package=package)
    change = _CHANGES.get(name)
    if change is not None and spec.loader is not None:
        _change_after(spec.loader, change)
    return spec


class _Names(importlib.abc.Loader):
    """Loads a module of IPython that is not installed."""

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        from . import ipython

        names = {name: each for name, each in vars(ipython).items() if name[0] != "_"}
        module.__dict__.update({n: e for n, e in names.items() if n not in _OURS})
        if module.__name__ == "IPython":
            version = ".".join(map(str, ipython.VERSION))
            module.__dict__.update(version_info=ipython.VERSION, __version__=version)
            # As after the import of the real one.
            del module.__dict__["display"]
            __import__("IPython.display")


_OURS = ("VERSION", "annotations", "os", "publish", "TYPE_CHECKING")


def _change_after(loader: Any, change: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        # It may be the program's own module of that name, or have other names.
        with contextlib.suppress(Exception):
            change(module)

    loader.exec_module = exec_module


def _change_ipython(module: Any) -> None:
    from . import display, ipython

    for name in ("clear_output", "publish_display_data", "update_display"):
        if hasattr(module, name):
            setattr(module, name, getattr(ipython, name))
    if hasattr(module, "display"):
        module.display = display.display


def _change_pyplot(module: Any) -> None:
    from . import display

    def show(*arguments: Any, **options: Any) -> None:
        """Display all open figures, and close them."""
        display.show_figures()

    module.show = show


def _change_plotly(module: Any) -> None:
    shows = module.show
    if "PLOTLY_RENDERER" not in os.environ:
        module.renderers.default = "plotly_mimetype"
    module.renderers.render_on_display = True

    def show(
        figure: Any, renderer: Any = None, *arguments: Any, **options: Any
    ) -> None:
        """Display a figure as the data of which plotly draws it."""
        if (renderer or module.renderers.default) != "plotly_mimetype":
            shows(figure, renderer, *arguments, **options)
            return
        import json

        from . import display

        text = sys.modules["plotly.io"].to_json(figure)
        display.publish({_PLOTLY: json.loads(text)})

    module.show = show


def _change_altair(module: Any) -> None:
    module.renderers.enable("mimetype")


def _change_pillow(module: Any) -> None:
    from . import display

    class Displayed(module.Viewer):  # type: ignore[misc]
        def show_image(self, image: Any, **options: Any) -> int:
            display.display(image)
            return 1

    module.register(Displayed, -1)


_CHANGES: Dict[str, Callable[[Any], None]] = {
    "IPython.core.display": _change_ipython,
    "IPython.core.display_functions": _change_ipython,
    "PIL.ImageShow": _change_pillow,
    "altair": _change_altair,
    "matplotlib.pyplot": _change_pyplot,
    "plotly.io._renderers": _change_plotly,
}
