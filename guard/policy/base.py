"""The base of all models that policies consist of."""

from __future__ import annotations

from toolcell.core import PolicyError
from toolcell.core.models import FrozenModel


class PolicyModel(FrozenModel):
    """A frozen model that refuses unknown keys; a bad value raises `PolicyError`."""

    refusal = PolicyError
    refusal_hint = "see the docstring of the class for fields, units and ranges"
