"""Encodes requests to run programs."""

from __future__ import annotations

from typing import Any

from ..cell.wire.frames import RUN_DEFAULTS, encode_header, frame_prefix, omit_defaults
from .types import CellTraits, Program


class RequestEncoder:
    """Encodes the requests of one cell, the next of which is often the same.

    Args:
        traits: The promises of the cell's backend.
    """

    def __init__(self, traits: CellTraits) -> None:
        self._traits = traits
        # Of the last request.
        self._header: dict[str, Any] = {}
        self._text = b""

    def encode(self, program: Program) -> bytes:
        """Return the frame that asks a cell to run a program."""
        limits, calls = program.limits, program.calls
        held = self._traits.enforced_by.get("memory_mib") == "cgroup"
        watch = not held and not program.unwatched
        header: dict[str, Any] = {
            "type": "run",
            "code_bytes": len(program.code) if program.inputs else None,
            "wall_seconds": limits.wall_seconds,
            "memory_mib": limits.memory_mib,
            "output_bytes": limits.output_bytes,
            "language": program.language,
            "cpu_seconds": limits.cpu_seconds,
            "stop_at_output_limit": limits.stop_at_output_limit,
            "watch_memory_bytes": limits.memory_mib << 20 if watch else 0,
            "restricted": program.restricted_imports,
            "final": program.final,
            "again": program.again,
            "branch": program.branch,
            "streamed": program.streamed,
            "tools": list(calls.names) if calls else [],
            "calls_at_once": (
                calls.max_concurrency if calls else RUN_DEFAULTS["calls_at_once"]
            ),
            "max_calls": calls.max_calls if calls else RUN_DEFAULTS["max_calls"],
            "packages": program.packages,
            "network": program.egress.request if program.egress else None,
            "inputs_file": program.inputs_file,
        }
        if header != self._header:
            self._header = header
            self._text = encode_header(omit_defaults(header, RUN_DEFAULTS))
        payload = program.code + program.inputs
        return frame_prefix(self._text, len(payload)) + payload
