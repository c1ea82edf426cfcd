"""Finds out which limits a container runtime really enforces, and caches the answer.

An engine accepts a memory limit for any runtime, but gVisor started with
--ignore-cgroups enforces none. So a cell with small limits tries to exceed them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from ..config.settings import Limits

if TYPE_CHECKING:
    from ..client.cell import Cell

_LIMITS = Limits(memory_mib=64, pids=16, wall_seconds=20, disk_mib=1)
_EXCEED_PIDS = b"""\
import os, time
started = 0
try:
    for _ in range(32):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        started += 1
except OSError:
    pass
os._exit(1 if started == 32 else 0)
"""
_EXCEED_MEMORY = b"import os; x = b'1' * (192 << 20); os._exit(1)"


class EnforcedLimits(BaseModel):
    """The limits that a runtime enforces by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    memory: bool = True
    pids: bool = True


async def probe(create_cell: Callable[[Limits], Awaitable[Cell]]) -> EnforcedLimits:
    """Try to exceed both limits in a cell; return those that held."""
    from ..client.types import Program

    held = []
    for code in (_EXCEED_PIDS, _EXCEED_MEMORY):
        program = Program(
            code=code, language="python", inputs=b"", limits=_LIMITS, unwatched=True
        )
        async with await create_cell(_LIMITS) as cell:
            result = cell.result(await cell.run(program), program)
        held.append(result.exit_code != 1)
    return EnforcedLimits(pids=held[0], memory=held[1])


def _cache_file(set_up: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(set_up.encode()).hexdigest()[:32]
    return Path(base, "toolcell", f"runtime-{name}.json")


def load_cached(set_up: str) -> EnforcedLimits | None:
    """Return the result of an earlier probe of this engine and runtime, if any."""
    try:
        return EnforcedLimits.model_validate_json(_cache_file(set_up).read_bytes())
    except (OSError, ValidationError):
        return None


def save_cached(set_up: str, held: EnforcedLimits) -> None:
    """Save the result of a probe; failures are ignored, as they only cost time."""
    file = _cache_file(set_up)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(held.model_dump()))
        temporary.replace(file)
