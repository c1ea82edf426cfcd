"""Selectors, by which policies name tools."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Annotated

from pydantic import AfterValidator

PRESETS: dict[str, tuple[str, ...]] = {
    "harmless": ("get_today_date", "calculate"),
    "read": ("read_file", "list_files", "search_files", "query_sqlite"),
    "write": ("write_file", "edit_file"),
    "code": ("run_python", "run_shell", "run_code"),
    "code_mode": ("search_tools", "describe_tools", "run_code"),
    "network": ("http_get",),
}
"""Groups of the tools that come with toolcell; a policy may add its own."""

TOOL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,127}")
_SELECTOR = re.compile(r"@?[A-Za-z0-9_*?\[\]!.:/-]{1,128}")


def is_glob(selector: str) -> bool:
    """Return whether a selector is written as a glob."""
    return any(character in selector for character in "*?[")


def _selector(text: str) -> str:
    if not _SELECTOR.fullmatch(text):
        raise ValueError(f"{text!r} is neither a tool's name, a glob nor a @group")
    return text


Selector = Annotated[str, AfterValidator(_selector)]
"""An exact tool name, a glob if written as one (`search_*`), or `@group`."""


class ToolNames:
    """A set of tool names, given by selectors without groups."""

    def __init__(self, selectors: tuple[str, ...]) -> None:
        self.exact = frozenset(
            selector for selector in selectors if not is_glob(selector)
        )
        globs = [translate(selector) for selector in selectors if is_glob(selector)]
        self._glob = re.compile("|".join(globs)) if globs else None

    @property
    def has_globs(self) -> bool:
        """True if a name outside `exact` may belong to the set."""
        return self._glob is not None

    def __contains__(self, name: str) -> bool:
        if name in self.exact:
            return True
        return self._glob is not None and self._glob.match(name) is not None
