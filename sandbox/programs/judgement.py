"""Judges sources by a code policy, and the large ones in a process that can be killed.

Python's parser and compiler take time and memory that no length of a source bounds, and
hold the interpreter meanwhile, so that a thread for them would stop the host as well.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import sys
from typing import Any

import anyio

from toolcell.core import InvalidInputError

from ..client.types import Program
from ..config.settings import CodePolicy
from .code_policy import Restricted, compile_restricted, find_violations

SMALL_CHARACTERS = 2_048
"""Characters of a source that is judged in the host itself, in milliseconds."""

JUDGE_SECONDS = 10
"""Seconds of CPU time for a larger one, in its own process. When it is reached the
program is refused."""

JUDGE_BYTES = 2 * 1024 * 1024 * 1024
"""Bytes of that process. When it is reached the program is refused."""

# On a machine that has no time for the process.
_WAIT_SECONDS = 60.0
_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from toolcell.sandbox.programs.judgement import answer
answer()
"""
_TOO_LARGE = "the source takes too much time or memory to be checked"


async def judge(program: Program, policy: CodePolicy | None) -> Program:
    """Return a program as it may run, or with the reasons to refuse it.

    Args:
        program: The program. For `process` isolation its code is still the source.
        policy: The policy of the configuration.

    Raises:
        InvalidInputError: It cannot be compiled for `process` isolation.
    """
    if program.language != "python":
        return program
    if program.restricted_imports is not None:
        compiled = await _judged(program.source, None)
        program = program._replace(code=compiled.code, refused=compiled.reasons)
    if program.refused or policy is None:
        return program
    return program._replace(refused=(await _judged(program.source, policy)).reasons)


async def _judged(source: str, policy: CodePolicy | None) -> Restricted:
    if len(source) <= SMALL_CHARACTERS:
        return _judge(source, policy)
    asked = {
        "source": source,
        "policy": policy and policy.model_dump(),
        "seconds": JUDGE_SECONDS,
    }
    with anyio.move_on_after(_WAIT_SECONDS):
        done = await anyio.run_process(
            [sys.executable, "-I", "-c", _PROGRAM, *sys.path],
            input=json.dumps(asked).encode(),
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
            env={"PATH": os.defpath},
        )
        if done.returncode == 0:
            return _read(json.loads(done.stdout))
    return Restricted(b"", (_TOO_LARGE,))


def _judge(source: str, policy: CodePolicy | None) -> Restricted:
    """Judge by a policy; None: compile for `process` isolation."""
    if policy is None:
        return compile_restricted(source)
    return Restricted(b"", find_violations(source, policy))


def _read(answer: dict[str, Any]) -> Restricted:
    if "error" in answer:
        raise InvalidInputError(answer["error"], hint=answer["hint"])
    return Restricted(base64.b64decode(answer["code"]), tuple(answer["reasons"]))


def answer() -> None:
    """Judge the source on standard input, and write what was found."""
    resource.setrlimit(resource.RLIMIT_AS, (JUDGE_BYTES, JUDGE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    policy = asked["policy"] and CodePolicy.model_validate(asked["policy"])
    answer: dict[str, Any]
    try:
        found = _judge(asked["source"], policy)
        code = base64.b64encode(found.code).decode()
        answer = {"code": code, "reasons": found.reasons}
    except InvalidInputError as error:
        answer = {"error": error.message, "hint": error.hint}
    json.dump(answer, sys.stdout)
