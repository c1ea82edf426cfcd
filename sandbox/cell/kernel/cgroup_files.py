"""The text of the files in a cgroup."""

from __future__ import annotations


def oom_kills_in(text: str) -> int:
    """Return the count in a group's `memory.oom_control` or `memory.events`."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
