"""The table `[flows]` of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import IMPORT_PATH, Count, Model
from .secrets import SecretReference


class FlowsConfig(Model):
    """Graphs that the host runs in threads, for `toolcell flow` and `Host.flows`.

    Threads are stored in `state.folder`, or in Redis.
    """

    graphs: tuple[Annotated[str, Field(pattern=IMPORT_PATH)], ...] = ()
    """Graphs as `package.module:name`, imported like `tools.python` when a host
    starts."""

    agent: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The agent that makes the calls of new threads, and whose questions people answer;
    it needs a policy. None: calls name no agent, and so are refused."""

    max_concurrency: Count = 16
    """Tasks of one thread at once. When it is reached further ones wait."""

    history_days: Count | None = None
    """Days for which threads stay that are done or were cancelled. When they are over,
    `toolcell flow work` deletes them, and `toolcell flow prune` does without `--days`.
    None: they stay."""

    redis_url: SecretReference | None = None
    """A Redis server for the threads, shared by many machines; its keys begin with
    `state.redis_prefix`. None: they are in `state.folder`."""
