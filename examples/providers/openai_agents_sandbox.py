"""A SandboxAgent of OpenAI Agents whose shell is in a cell; the model is scripted."""

from __future__ import annotations

from agents import RunConfig, Runner
from agents.items import ToolCallOutputItem
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.openai_agents import ToolcellSandboxClient

POLICY = AgentPolicy(
    agent_id="openai-agents",
    allow=["exec", "read_file", "write_file"],
    deny=[{"tools": ["exec"], "when": {"command": {"contains": "git push"}}}],
)
COMMANDS = ["cat notes/today.txt && pwd", "git push"]

model = ScriptedModel(
    [
        *(
            [function_call("exec_command", {"cmd": each}, call_id=f"call-{number}")]
            for number, each in enumerate(COMMANDS)
        ),
        [assistant_message("Done.")],
    ]
)
agent = SandboxAgent(
    name="worker",
    model=model,
    default_manifest=Manifest(entries={"notes/today.txt": File(content=b"hello\n")}),
)
client = ToolcellSandboxClient(guard=ActionGuard([POLICY]))
ended = Runner.run_sync(
    agent,
    "Try it.",
    run_config=RunConfig(
        sandbox=SandboxRunConfig(client=client), tracing_disabled=True
    ),
)
for item in ended.new_items:
    if isinstance(item, ToolCallOutputItem):
        print("exec_command:", *item.output.splitlines()[4:])
print(ended.final_output)
