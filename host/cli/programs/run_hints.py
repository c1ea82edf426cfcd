"""Suggests options of the command line to a person whose program failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolcell.core.text.counted import counted
from toolcell.sandbox.spi import missing_package

if TYPE_CHECKING:
    from toolcell.sandbox import ExecutionResult

_NO_NETWORK = re.compile(
    r"Network is unreachable|name resolution|Name or service not known|getaddrinfo"
    r"|ENETUNREACH|EAI_AGAIN|ENOTFOUND"
)
_OLD_NODE = re.compile(r"\((TypeScript needs node [^)]{1,100})\)$")
_MAX_NAMED = 5


def hints(
    result: ExecutionResult,
    *,
    left: Sequence[str],
    has_network: bool,
    has_stdin: bool,
    saved: bool,
) -> list[str]:
    """Return what the person at the shell may do; a guess from the program's error.

    Args:
        result: The result of the program.
        left: Names of the files that it left.
        has_network: True if it could reach something.
        has_stdin: True if it had a standard input.
        saved: True if the files were saved.
    """
    found = [] if saved else _left_behind(left)
    if (error := result.exception) is None:
        return found
    kind, message = error.type.rpartition(".")[2], error.message
    if kind == "SyntaxError" and (older := _OLD_NODE.search(message)):
        found.append(older[1])
    elif any(remark in result.warnings for remark in missing_package(error)):
        found.append("--package NAME adds a package")
    elif kind == "EOFError" and not has_stdin:
        found.append("its standard input is empty (--stdin passes this one on)")
    elif not has_network and _NO_NETWORK.search(f"{message}\n{error.traceback}"):
        found.append("it has no network (--allow-host HOST:PORT lets it reach one)")
    return found


def _left_behind(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    count, them = counted(len(names), "artifact"), "it" if len(names) == 1 else "them"
    shown = [*names[:_MAX_NAMED], "..."] if len(names) > _MAX_NAMED else names
    return [f"{count} left behind: {', '.join(shown)} (--out FOLDER keeps {them})"]
