"""Bytes that wait to be sent, as views: nothing of them is copied."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque


def drop_sent(views: deque[memoryview], sent: int) -> None:
    """Take the first `sent` bytes out of what waits."""
    while views and sent >= len(views[0]):
        sent -= len(views.popleft())
    if sent:
        views[0] = views[0][sent:]
