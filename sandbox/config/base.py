"""The base of every model that configures a sandbox."""

from __future__ import annotations

from toolcell.core import ConfigError
from toolcell.core.models import FrozenModel


class SettingsModel(FrozenModel):
    """Frozen, unknown keys refused; a bad value is a ConfigError."""

    refusal = ConfigError
    refusal_hint = "see the docstring of the class for fields, units and ranges"
