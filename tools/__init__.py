"""What agents can do: tools, their registry, and the executors that call them."""

from .context import ArtifactSink, Progress, ToolContext
from .options import ToolOptions
from .registry import Reload, ToolRegistry
from .snapshot import Snapshot
from .tool import FunctionTool, Tool, tool
from .validation import Arguments

__all__ = [
    "Arguments",
    "ArtifactSink",
    "FunctionTool",
    "Progress",
    "Reload",
    "Snapshot",
    "Tool",
    "ToolContext",
    "ToolOptions",
    "ToolRegistry",
    "tool",
]
