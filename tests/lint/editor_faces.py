"""What an editor is to understand: every face, and every public name."""

from toolcell import core, guard, host, sandbox, tools
from toolcell.sandbox import ExecutionResult, run
from toolcell.tools import builtin, tool

FACES = (core, guard, host, sandbox, tools, builtin)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def first(code: str) -> ExecutionResult:
    return run(code)


def manager() -> sandbox.SandboxManager:
    return sandbox.SandboxManager(sandbox.SandboxConfig(limits=sandbox.Limits()))


def loaded(path: str) -> host.HostConfig:
    return host.HostConfig.from_file(path)
