"""The table of actions: all that clients of sandboxes can do through the guard."""

from __future__ import annotations

from typing import Any

from .action import Action
from .code import CODE
from .commands import COMMAND
from .creation import CREATE
from .files import LIST, MAKE_FOLDER, MOVE, READ, REMOVE, STAT, WATCH, WRITE
from .lifetimes import PAUSE, RESUME, SET_TIMEOUT
from .networks import SET_NETWORK
from .ports import CONNECT
from .snapshots import FORK, REMOVE_SNAPSHOT, TAKE_SNAPSHOT

ACTIONS: tuple[Action[Any, Any], ...] = (
    *(CREATE, PAUSE, RESUME, SET_TIMEOUT, SET_NETWORK),
    *(COMMAND, CODE, CONNECT),
    *(READ, STAT, LIST, WATCH, WRITE, MAKE_FOLDER, MOVE, REMOVE),
    *(TAKE_SNAPSHOT, FORK, REMOVE_SNAPSHOT),
)
