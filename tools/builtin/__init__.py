"""Tools that come with toolcell; the risky ones run in cells."""

from .arithmetic import calculate
from .clock import get_today_date
from .code import code_tools
from .code_mode import code_mode_tools
from .database import query_sqlite_tool
from .files import workspace_tools
from .http import http_get_tool

__all__ = [
    "calculate",
    "code_mode_tools",
    "code_tools",
    "get_today_date",
    "http_get_tool",
    "query_sqlite_tool",
    "workspace_tools",
]
