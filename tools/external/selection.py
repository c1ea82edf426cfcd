"""The approved tools of one server, compared with what the server offers now."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from toolcell.core import ConfigError

from ..definition.linear_patterns import shared_patterns
from ..definition.options import MAX_NAME_CHARACTERS, provider_name
from ..definition.tool import Tool
from .definition import MAX_TOOLS, D, Listing

T = TypeVar("T", bound=Tool)
_PREFIX = re.compile(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*")
_ABSENT = "the server does not offer it any more"
_BEYOND = f"it is not among the first {MAX_TOOLS:,} tools that the server offers"
_log = logging.getLogger(__name__)


def check_prefix(prefix: str) -> None:
    """Refuse what cannot stand before `__` in the names of a server's tools.

    Raises:
        ConfigError: It is no such word, or has more than 32 characters.
    """
    if not _PREFIX.fullmatch(prefix) or len(prefix) > 32:
        raise ConfigError(
            f"{prefix!r} cannot be the prefix of a server's tools",
            hint="take words of letters and digits with `_` or `-` between",
        )


def offered_name(prefix: str, name: str) -> str:
    """Return the name of a server's tool here, `prefix__name`.

    Marks that names do not have become `_`; a long name is cut, and ends with a hash of
    it. A name with other letters than ASCII stays as it is, which no tool may have.
    """
    if not (name.isascii() and name.isprintable()):
        return f"{prefix}__{name}"
    whole = f"{prefix}__{re.sub(r'[^A-Za-z0-9_.-]+', '_', name)}"
    if len(whole) <= MAX_NAME_CHARACTERS:
        return whole
    end = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{whole[: MAX_NAME_CHARACTERS - 9]}_{end}"


class ToolSelection(Generic[D, T]):
    """The tools of one server, by the server's names.

    Args:
        server: The server in words, for the log.
        make: Makes a tool of a definition; raises ConfigError if it cannot be used.
        approved: The approved definitions. None: those of the first list are.
    """

    def __init__(
        self,
        server: str,
        make: Callable[[D], T],
        approved: Mapping[str, D] | None,
    ) -> None:
        self.tools: dict[str, T] = {}
        self.definitions: dict[str, D] = {}
        self.omitted = 0
        """Tools of the server's list beyond `MAX_TOOLS`, that nobody looked at."""
        self._server = server
        self._make = make
        self._unfit: dict[str, str] = {}
        self._changed: dict[str, str] = {}
        self.is_adopting = approved is None
        if approved is not None:
            self._adopt(approved)

    @property
    def unusable(self) -> dict[str, str]:
        """The reason for each tool that cannot be called."""
        return self._unfit | self._changed

    def change_of(self, name: str) -> str | None:
        """Return why a tool is not the approved one any more; None: it is."""
        return self._changed.get(name)

    def compare(
        self, listing: Listing[D], go_on: Callable[[], None] = lambda: None
    ) -> Mapping[str, str]:
        """Compare the server's list with the approved tools.

        Returns the reason for each of these that it does not have as it was approved.

        Args:
            listing: The list.
            go_on: Called before each tool that is made of the first list; what it
                raises ends that, and the next list is the first.
        """
        if self.is_adopting:
            self._adopt(listing.definitions, go_on)
            self.is_adopting = False
            self._unfit |= listing.refused
            self.omitted = listing.omitted
        before, self._changed = self._changed, {}
        for name in self.tools:
            now = listing.definitions.get(name)
            if name in listing.refused:
                self._changed[name] = listing.refused[name]
            elif now is None:
                self._changed[name] = _ABSENT if not listing.omitted else _BEYOND
            elif now.digest != self.definitions[name].digest:
                self._changed[name] = "the server changed it since it was approved"
        if listing.omitted != self.omitted:
            self.omitted = listing.omitted
            _log.warning(
                "%s lists %d tools more than it may have", self._server, self.omitted
            )
        if self._changed != before:
            _log.warning("tools of %s: %s", self._server, self._changed)
        return self._changed

    def _adopt(
        self, definitions: Mapping[str, D], go_on: Callable[[], None] = lambda: None
    ) -> None:
        made: dict[str, T] = {}
        unfit: dict[str, str] = {}
        with shared_patterns():
            for name, definition in definitions.items():
                go_on()
                try:
                    made[name] = self._make(definition)
                except ConfigError as error:
                    unfit[name] = error.message
        spelled = Counter(_spelled(tool) for tool in made.values())
        for name, tool in made.items():
            if spelled[_spelled(tool)] > 1:
                unfit[name] = "providers write its name like that of another"
            else:
                self.tools[name] = tool
                self.definitions[name] = definitions[name]
        self._unfit = unfit


def _spelled(tool: Tool) -> str:
    return provider_name(tool.name).lower()
