"""What a node has ready for programs: an image, and sets of packages."""

from __future__ import annotations

from collections.abc import Sequence

from toolcell.sandbox import SandboxConfig

MAX_SETS = 64
"""Sets of packages that a node tells of. When it is exceeded the one that was longest
out of use is told no more; it stays installed."""


class Inventory:
    """Knows what programs find on a node without a wait.

    Args:
        config: The configuration of its sandbox.
    """

    def __init__(self, config: SandboxConfig) -> None:
        names_image = config.backend == "docker" or "image" in config.model_fields_set
        self.image = config.image if names_image else ""
        """The image of its cells; empty where they have none."""

        self._sets: dict[tuple[str, ...], None] = {}

    @property
    def packages(self) -> list[list[str]]:
        """The sets of packages that were installed since this node began."""
        return [list(each) for each in sorted(self._sets)]

    def note(self, packages: Sequence[str]) -> bool:
        """Note that a set of packages is there; return True if that is news."""
        found = tuple(sorted(set(packages)))
        is_new = found not in self._sets
        self._sets.pop(found, None)
        self._sets[found] = None
        if len(self._sets) > MAX_SETS:
            del self._sets[next(iter(self._sets))]
        return is_new
