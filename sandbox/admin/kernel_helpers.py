"""Programs that this machine's kernel starts for others: of cores, and by file format.

They run outside of every cell, so an operator may want to know of them. They are facts,
not faults: programs in cells cannot reach them, but for what docs/security.md names.
"""

from __future__ import annotations

from pathlib import Path

_CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
_BINFMT_MISC = Path("/proc/sys/fs/binfmt_misc")
_OF_THE_FOLDER = ("register", "status")


def facts() -> dict[str, str]:
    """Return what there is on this machine: a name and a sentence each."""
    found = {}
    if handler := core_handler():
        found["core handler"] = f"{handler}; cells allow no core"
    if formats := format_handlers():
        found["file format handlers"] = ", ".join(formats)
    return found


def core_handler(pattern: Path = _CORE_PATTERN) -> str:
    """Return the receiver of crashed processes' cores; empty if cores are files.

    Args:
        pattern: The file with the kernel's pattern.
    """
    try:
        text = pattern.read_text().strip()
    except OSError:
        return ""
    # A pipe to a program, or a socket (Linux 6.16 and newer).
    return text if text.startswith(("|", "@")) else ""


def format_handlers(folder: Path = _BINFMT_MISC) -> list[str]:
    """Return the handlers registered with binfmt_misc, as `name: interpreter`.

    Args:
        folder: The mount point of binfmt_misc.
    """
    found = []
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    for entry in entries:
        if entry.name in _OF_THE_FOLDER:
            continue
        try:
            lines = entry.read_text().splitlines()
        except OSError:
            continue
        interpreter = next(
            (
                line.split(" ", 1)[1]
                for line in lines
                if line.startswith("interpreter ")
            ),
            "unknown",
        )
        found.append(f"{entry.name}: {interpreter}")
    return found
