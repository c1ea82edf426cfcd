"""Types that all models of the configuration share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from toolcell.core import ConfigError
from toolcell.core.models import FrozenModel

Seconds = Annotated[float, Field(gt=0, le=86_400 * 30, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
IMPORT_PATH = (
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
)
"""`package.module:name`."""

ADDRESS = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"
"""`HOST:PORT` or `[HOST]:PORT`."""

FORMS = {IMPORT_PATH: "package.module:name", ADDRESS: "HOST:PORT"}
"""The forms that messages ask people to write, by pattern."""


def _beside_the_file(path: Path, info: ValidationInfo) -> Path:
    return Path((info.context or {}).get("folder", ""), path)


FilePath = Annotated[Path, AfterValidator(_beside_the_file)]
"""A path; a relative one starts at the folder of the configuration file."""


class Model(FrozenModel):
    """Frozen, unknown keys refused; a bad value is a ConfigError."""

    refusal = ConfigError
