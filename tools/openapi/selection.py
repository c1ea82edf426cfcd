"""The operations of a document that are wanted, by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from toolcell.core import ConfigError
from toolcell.core.text.printable import escaped

MAX_NAMES_SHOWN = 10
"""Names of a document that an error shows. When it is reached the rest is counted."""


class Selection:
    """Patterns of names, and those of them that matched none so far.

    `*` alone asks for whatever there is, so it need not match.

    Args:
        patterns: The patterns, as `get*`.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(patterns)
        self._unmatched = dict.fromkeys(
            pattern for pattern in self._patterns if pattern != "*"
        )
        self._names: list[str] = []

    def has(self, name: str) -> bool:
        """Return True if a pattern matches the name."""
        self._names.append(name)
        matching = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
        for pattern in matching:
            self._unmatched.pop(pattern, None)
        return bool(matching)

    def check(self, api: str) -> None:
        """Refuse a pattern that matched none of the names.

        Args:
            api: The API, for the message.

        Raises:
            ConfigError: There is one; the hint shows the names.
        """
        if not self._unmatched:
            return
        patterns = " or ".join(map(repr, self._unmatched))
        names = [escaped(name, 64) for name in self._names[:MAX_NAMES_SHOWN]]
        left = len(self._names) - len(names)
        shown = ", ".join(names) + (f" and {left:,} more" if left else "")
        raise ConfigError(
            f"no operation of the API {api} has a name like {patterns}",
            hint=f"its document has {shown or 'no operations'}; a name has `_` where "
            "its operationId has another character than letters, digits, `_`, `.`, `-`",
        )
