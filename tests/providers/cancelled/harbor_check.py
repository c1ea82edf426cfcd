"""Gives up waiting for a command of an environment of Harbor."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from toolcell.providers.harbor import ToolcellEnvironment

from .giving_up import SCRIPT, give_up


async def main(folder: Path) -> None:
    (folder / "environment").mkdir()
    environment = ToolcellEnvironment(
        environment_dir=folder / "environment",
        environment_name="task",
        session_id="one",
        trial_paths=TrialPaths(folder / "trial"),
        task_env_config=EnvironmentConfig(docker_image="none"),
        backend="subprocess",
    )
    await environment.start(force_build=False)
    thread = environment._live
    waiting = environment.exec(SCRIPT)
    await give_up("harbor", thread.guarded, waiting, thread.acall)
    await environment.stop(delete=True)


with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))
