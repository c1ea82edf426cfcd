"""Checks what a caller wants to run and packs it for a cell."""

from __future__ import annotations

import keyword
from typing import Any

from toolcell.core import InvalidInputError

from .cell.frames import FrameError
from .cell_client import Language, Program, encode_inputs
from .code_policy import LAST_RESORT_IMPORTS, compile_restricted
from .config import Limits

MAX_KEPT_BYTES = 32 * 1024 * 1024


def make_program(
    code: str,
    language: Language,
    inputs: dict[str, Any],
    limits: Limits,
    *,
    restricted: bool,
    final: bool,
    branch: str | None = None,
    streamed: bool = False,
) -> Program:
    """Return a program that a cell can run.

    Raises:
        InvalidInputError: The code is no text, too large, in an unknown language,
            or an input has no usable name or is not JSON.
    """
    if language not in ("python", "bash"):
        raise InvalidInputError(
            f"unknown language {language!r}", hint="use 'python' or 'bash'"
        )
    if not streamed and limits.output_bytes > MAX_KEPT_BYTES:
        raise InvalidInputError(
            f"output_bytes is {limits.output_bytes}; {MAX_KEPT_BYTES} can be kept",
            hint="use stream() for more",
        )
    source = _encode(code, limits)
    values = _encode_inputs(inputs, language, limits)
    refused: tuple[str, ...] = ()
    data = source
    if restricted:
        if language != "python":
            raise InvalidInputError("'process' isolation runs Python only")
        compiled = compile_restricted(code)
        data, refused = compiled.code, compiled.reasons
    return Program(
        code=data,
        source=code,
        language=language,
        inputs=values,
        limits=limits,
        restricted_imports=LAST_RESORT_IMPORTS if restricted else None,
        refused=refused,
        final=final,
        branch=branch,
        streamed=streamed,
    )


def _encode(code: str, limits: Limits) -> bytes:
    if not isinstance(code, str):
        raise InvalidInputError(f"code must be str, not {type(code).__name__}")
    try:
        data = code.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the code is not valid Unicode: {error}") from None
    if len(data) > limits.code_bytes:
        raise InvalidInputError(
            f"the code has {len(data)} bytes, the limit is {limits.code_bytes}",
            hint="raise limits.code_bytes or pass data as inputs",
        )
    return data


def _encode_inputs(inputs: dict[str, Any], language: Language, limits: Limits) -> bytes:
    if not inputs:
        return b"{}"
    for name in inputs:
        if not isinstance(name, str) or not name.isidentifier() or _reserved(name):
            raise InvalidInputError(f"the input name {name!r} cannot be a variable")
        if language == "bash" and not name.isascii():
            raise InvalidInputError(f"the input name {name!r} cannot be used in bash")
    try:
        data = encode_inputs(inputs)
    except (TypeError, ValueError, RecursionError, FrameError) as error:
        raise InvalidInputError(
            f"the inputs are not JSON values: {error}",
            hint="pass None, bool, int, float, str, list and dict only",
        ) from None
    if len(data) > limits.code_bytes:
        raise InvalidInputError(
            f"the inputs have {len(data)} bytes, the limit is {limits.code_bytes}",
            hint="raise limits.code_bytes",
        )
    texts = [value for value in inputs.values() if isinstance(value, str)]
    if language == "bash" and any("\0" in text for text in texts):
        raise InvalidInputError("inputs of bash must not hold a NUL character")
    return data


def _reserved(name: str) -> bool:
    return keyword.iskeyword(name) or (name.startswith("__") and name.endswith("__"))
