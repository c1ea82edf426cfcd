"""A trial of Harbor whose environment is a cell; its agent is a list of commands.

On a command line, `harbor run --env toolcell.providers.harbor:ToolcellEnvironment`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the internet otherwise

from harbor.agents.base import BaseAgent
from harbor.models.trial.config import TrialConfig
from harbor.trial.trial import Trial

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.harbor import ToolcellEnvironment

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "subprocess"
IMAGE = os.environ.get("TOOLCELL_TEST_IMAGE", "python:3.12-slim")
COMMANDS = ["read a b < numbers.txt && echo $((a + b)) > sum.txt", "git push"]
FILES = {
    "task.toml": f'version = "1.0"\n[environment]\ndocker_image = "{IMAGE}"\n',
    "instruction.md": "Write the sum of numbers.txt into sum.txt.\n",
    "environment/numbers.txt": "40 2\n",
    "tests/test.sh": "#!/bin/bash\ngrep -qx 42 sum.txt\n"
    "echo $((1 - $?)) > /logs/verifier/reward.txt\n",
}
POLICY = AgentPolicy(
    agent_id="harbor",
    allow=["exec", "read_file", "write_file"],
    deny=[{"tools": ["exec"], "when": {"command": {"contains": "git push"}}}],
)


class GuardedEnvironment(ToolcellEnvironment):
    """An environment behind a guard; Harbor loads a class by its name."""

    guard = ActionGuard([POLICY])


class ScriptedAgent(BaseAgent):
    """Runs the commands of its script."""

    @staticmethod
    def name() -> str:
        return "scripted"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: ToolcellEnvironment) -> None:
        pass

    async def run(self, instruction, environment, context) -> None:
        for command in COMMANDS:
            done = await environment.exec(command)
            print(f"{done.return_code}: {done.stderr}")


async def main(folder: Path) -> None:
    """Write a task, and run a trial of it."""
    for name, text in FILES.items():
        (folder / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "task" / name).write_text(text)
    (folder / "task" / "tests" / "test.sh").chmod(0o755)
    config = {
        "task": {"path": str(folder / "task")},
        "trials_dir": str(folder / "trials"),
        "agent": {"import_path": f"{__name__}:ScriptedAgent"},
        "environment": {
            "import_path": f"{__name__}:GuardedEnvironment",
            "kwargs": {"backend": BACKEND},
        },
    }
    trial = await Trial.create(TrialConfig.model_validate(config))
    result = await trial.run()
    print("rewards:", json.dumps(result.verifier_result.rewards))


with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))
