"""A shell of SWE-ReX in a cell; the model is a list of the commands it would write."""

from __future__ import annotations

import asyncio

from swerex.exceptions import SwerexException
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.swe_rex import ToolcellDeployment

POLICY = AgentPolicy(
    agent_id="swe-rex",
    allow=["exec"],
    deny=[{"tools": ["exec"], "when": {"command": {"contains": "git push"}}}],
)
COMMANDS = ["cd /tmp && name=toolcell", 'echo "$PWD $name"', "git push origin main"]


async def main() -> None:
    """Run the commands in one shell, of which the guard refuses the last."""
    deployment = ToolcellDeployment(guard=ActionGuard([POLICY]))
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    for command in COMMANDS:
        try:
            seen = await deployment.runtime.run_in_session(BashAction(command=command))
            print(f"{seen.exit_code}: {seen.output.strip()}")
        except SwerexException as error:
            print(f"{type(error).__name__}: {error}")
    await deployment.stop()


asyncio.run(main())
