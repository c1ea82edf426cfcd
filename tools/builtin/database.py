"""Answers questions to an SQLite file, and changes nothing in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import Field, JsonValue

from toolcell.core import ConfigError, ToolError, ToolTimeoutError

from ..definition.tool import Tool, tool

_PROGRAM = Path(__file__).with_name("sqlite_worker.py")
_Parameter = str | int | float | bool | None
_Parameters = Annotated[list[_Parameter], Field(max_length=100)]


def query_sqlite_tool(
    path: str | Path,
    *,
    max_rows: int = 1_000,
    max_bytes: int = 1_048_576,
    timeout_seconds: float = 5.0,
    memory_mib: int = 256,
) -> Tool:
    """Return `query_sqlite`, which reads one database.

    Each query has its own process, with the file opened read-only. SQL that never
    ends, or that needs too much memory, is killed with its process.

    Args:
        path: The file. It must be there.
        max_rows: Rows of one answer; default 1,000. When it is reached the rest is left
            out, and `more` is true.
        max_bytes: Bytes of the rows as JSON; default 1 MiB. When it is reached the same
            happens.
        timeout_seconds: Seconds of one query; default 5. When it is reached the process
            is killed and the call ends as `timeout`.
        memory_mib: MiB of address space of the process, and of its temporary files;
            default 256. When it is reached the query fails.

    Raises:
        ConfigError: There is no such file, or a number cannot be used.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigError(
            f"there is no database at {path}", hint="name a SQLite file that exists"
        )
    if min(max_rows, max_bytes, memory_mib) < 1 or timeout_seconds <= 0:
        raise ConfigError(
            "limits of query_sqlite must be above 0",
            hint="leave them out for the defaults",
        )
    limits = {"rows": max_rows, "bytes": max_bytes, "memory_mib": memory_mib}

    @tool(tags={"database"}, timeout=timeout_seconds + 5)
    async def query_sqlite(
        sql: str, parameters: _Parameters | None = None
    ) -> dict[str, JsonValue]:
        """Run one SELECT statement on the database.

        Args:
            sql: The statement, with `?` for values.
            parameters: The values, in order.
        """
        asked = {"path": str(file), "sql": sql, "parameters": parameters or []}
        answer = await _ask(json.dumps(asked | limits), timeout_seconds)
        if "error" in answer:
            raise ToolError(
                str(answer["error"]),
                hint="change the statement or its parameters as it says",
            )
        return answer

    return query_sqlite


async def _ask(asked: str, seconds: float) -> dict[str, JsonValue]:
    command = [sys.executable, "-I", "-S", str(_PROGRAM)]
    with anyio.move_on_after(seconds):
        done = await anyio.run_process(
            command,
            input=asked.encode(),
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
            env={"PATH": os.defpath},
        )
        if done.returncode != 0:
            raise ToolError(
                "the query needs more memory or space than it may have",
                hint="select fewer rows or columns, or add a LIMIT",
            )
        answer: dict[str, JsonValue] = json.loads(done.stdout)
        return answer
    raise ToolTimeoutError(
        f"the query did not end within {seconds:g} s",
        hint="select less, or add a LIMIT",
    )
