"""A ProgramOfThought whose programs run in a cell; the model is scripted."""

from __future__ import annotations

import dspy
from dspy.utils import DummyLM

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.providers.dspy import CodeExecutionError, ToolcellInterpreter

POLICY = AgentPolicy(
    agent_id="dspy",
    allow=["run_python", "SUBMIT"],
    deny=[{"tools": ["run_python"], "when": {"code": {"contains_word": "socket"}}}],
)
SCRIPT = [
    {
        "reasoning": "Multiply.",
        "generated_code": "```python\nSUBMIT({'answer': 6 * 7})\n```",
    },
    {"reasoning": "The program says so.", "answer": "42"},
]


def make() -> ToolcellInterpreter:
    """Return an interpreter behind the guard."""
    return ToolcellInterpreter(guard=ActionGuard([POLICY]))


dspy.configure(lm=DummyLM(SCRIPT), interpreter_factory=make)
print("answer:", dspy.ProgramOfThought("question -> answer")(question="6 * 7?").answer)
try:
    make().execute("import socket")
except CodeExecutionError as error:
    print("refused:", error)
