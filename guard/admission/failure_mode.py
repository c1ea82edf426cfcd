"""The three ways to answer calls while the store is unavailable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from toolcell.core import PolicyError

_LOCAL = re.compile(r"local\(([1-9][0-9]{0,5})\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMode:
    """One way to answer calls while the store is unavailable."""

    kind: Literal["closed", "local", "open"]
    calls: int = 0
    """Calls that `local` admits of each agent in one outage."""

    @classmethod
    def parse(cls, text: str) -> FailureMode:
        """Read `closed`, `open` or `local(20)`.

        Raises:
            PolicyError: It is none of them.
        """
        if text == "closed":
            return cls(kind="closed")
        if text == "open":
            return cls(kind="open")
        found = _LOCAL.fullmatch(text)
        if found is None:
            raise PolicyError(
                f"{text!r} is not a failure mode",
                hint="it is 'closed', 'local(20)' or 'open'",
            )
        return cls(kind="local", calls=int(found[1]))
