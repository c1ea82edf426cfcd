"""The base of all parts of a result."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ResultModel(BaseModel):
    """A value that does not change."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
