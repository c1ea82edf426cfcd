"""The base of what policies are written with."""

from __future__ import annotations

from toolcell.core import FrozenModel, PolicyError


class PolicyModel(FrozenModel):
    """Frozen, unknown keys refused; a bad value is a PolicyError."""

    refusal = PolicyError
    refusal_hint = "see the docstring of the class for fields, units and ranges"
