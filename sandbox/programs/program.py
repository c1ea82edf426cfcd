"""Checks a request to run a program and packs it for a cell."""

import base64
import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from pydantic import SecretStr

from toolcell.core import InvalidInputError

from ..cell.wire.contract import ARGV, MERGED, SECRETS, STDIN
from ..cell.wire.frames import FrameError, strict_json
from ..client.host_calls import HostCalls
from ..client.types import Freshness, Language, OnDisplay, OnOutput, Program
from ..config.argument_checks import check_freshness, check_kinds
from ..config.network import Network
from ..config.settings import Limits
from .code_policy import LAST_RESORT_IMPORTS

if TYPE_CHECKING:
    from ..network.gate import RequestGate
    from ..network.types import OnConnection
    from ..results.result import ExecutionResult

MAX_KEPT_BYTES = 32 * 1024 * 1024
_LANGUAGES = get_args(Language)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_MAX_SECRET_BYTES = 65_536


class RunRequest(NamedTuple):
    """One program and its options, as a caller of `run` or `stream` gave them.

    Nothing of it is checked yet; `make_program` does that.
    """

    code: str
    language: Language = "python"
    inputs: Mapping[str, Any] | None = None
    limits: Limits | None = None
    """Narrower limits for this run; None takes the manager's."""

    argv: Sequence[str] = ()
    stdin: bytes | None = None
    merge_stderr: bool = False
    secrets: Mapping[str, SecretStr] | None = None
    calls: HostCalls | None = None
    streamed: bool = False
    """True if output is passed on as it comes, and not kept for the result."""

    files: Mapping[str, bytes | str] | None = None
    packages: Sequence[str] = ()
    agent_id: str | None = None
    network: Network | None = None
    minimum_freshness: Freshness = "program"
    """The fields from `files` to here are for runs outside of sessions."""

    on_output: OnOutput | None = None
    on_display: OnDisplay | None = None
    on_connection: "OnConnection | None" = None
    gate: "RequestGate | None" = None
    fresh: bool = False
    """True takes a new interpreter in a session."""

    batch: int = 0
    """The number of the batch that it belongs to; 0: it belongs to none."""

    @property
    def owner(self) -> "str | int | None":
        """The one whose programs may use one cell in turn: an agent, or a batch."""
        return self.agent_id if self.agent_id is not None else self.batch or None

    def __repr__(self) -> str:
        """Show no value: inputs and files may be secret."""
        return f"<request to run {len(self.code)} characters of {self.language}>"


def refused(program: Program) -> "ExecutionResult | None":
    """Return the `refused` result of a program that has reasons not to run."""
    if not program.refused:
        return None
    from ..results.result import ExecutionResult, Usage

    return ExecutionResult(status="refused", reasons=program.refused, usage=Usage())


def check_request(request: RunRequest, limits: Limits) -> None:
    """Check a request before it travels to the machine that runs it.

    Args:
        request: The program and its options.
        limits: The limits of that machine, or of its session.

    Raises:
        InvalidInputError: As `SandboxManager.run`.
    """
    check_kinds(
        limits=(request.limits, Limits),
        files=(request.files, Mapping),
        network=(request.network, Network),
    )
    check_freshness(request.minimum_freshness)
    own = limits if request.limits is None else limits.narrowed_by(request.limits)
    make_program(request, own, restricted=False, final=True)


def make_program(
    request: RunRequest,
    limits: Limits,
    *,
    restricted: bool,
    final: bool,
    branch: str | None = None,
) -> Program:
    """Check a request and return a program that a cell can run.

    Args:
        request: The program and its options.
        limits: The limits that hold for the run.
        restricted: True if it is for `process` isolation; `judge` compiles it.
        final: True if its cell runs no other program afterwards.
        branch: The interpreter that runs it and keeps its state; None is a new one.

    Raises:
        InvalidInputError: The code is no text, too large, in an unknown language,
            an input has no usable name or is not JSON, a secret cannot be an
            environment variable, or an option is of another type.
    """
    _check_options(request, limits)
    code, language = request.code, request.language
    source = _encode(code, limits)
    values, large = _pack_values(request, limits)
    if restricted:
        _check_restricted(request)
    return Program(
        code=source,
        source=code,
        language=language,
        inputs=values,
        large_inputs=large,
        limits=limits,
        restricted_imports=LAST_RESORT_IMPORTS if restricted else None,
        final=final,
        branch=branch,
        streamed=request.streamed,
        calls=request.calls,
    )


def _check_options(request: RunRequest, limits: Limits) -> None:
    check_kinds(
        inputs=(request.inputs, Mapping),
        secrets=(request.secrets, Mapping),
        calls=(request.calls, HostCalls),
        stdin=(request.stdin, bytes),
        merge_stderr=(request.merge_stderr, bool),
    )
    if request.language not in _LANGUAGES:
        raise InvalidInputError(
            f"unknown language {request.language!r}",
            hint="use 'python', 'bash' or 'node'",
        )
    if not request.streamed and limits.output_bytes > MAX_KEPT_BYTES:
        raise InvalidInputError(
            f"output_bytes is {limits.output_bytes}; {MAX_KEPT_BYTES} can be kept",
            hint="use stream() for more",
        )


def _check_restricted(request: RunRequest) -> None:
    if request.secrets:
        raise InvalidInputError(
            "'process' isolation has no environment variables for secrets",
            hint="use a stronger backend, or pass no secrets",
        )
    if request.language != "python":
        raise InvalidInputError(
            "'process' isolation runs Python only",
            hint="use a stronger backend for other languages",
        )


def _pack_values(request: RunRequest, limits: Limits) -> tuple[bytes, bytes]:
    """Return inputs, secrets, arguments and standard input as JSON bytes.

    Those in the second part, for a file, are no secrets.
    """
    inputs = dict(request.inputs or {})
    packed = _encode_inputs(inputs, request.language, limits.input_bytes)
    extra: dict[str, Any] = {}
    if request.argv:
        extra[ARGV] = _checked_arguments(request.argv, limits.input_bytes)
    if request.stdin is not None:
        _fits("the standard input", len(request.stdin), limits.input_bytes)
        extra[STDIN] = base64.b64encode(request.stdin).decode()
    if request.merge_stderr:
        extra[MERGED] = True
    if extra:
        packed = json.dumps({**inputs, **extra}).encode()
    if not request.secrets:
        return (b"", packed) if len(packed) > limits.code_bytes else (packed, b"")
    taken = inputs if request.language == "bash" else {}
    secret = {SECRETS: _variables(request.secrets, taken)}
    if len(packed) > limits.code_bytes:
        return json.dumps(secret).encode(), packed
    return json.dumps({**inputs, **extra, **secret}).encode(), b""


def _checked_arguments(argv: Sequence[str], max_bytes: int) -> list[str]:
    arguments = list(argv)
    if isinstance(argv, str) or not all(
        isinstance(argument, str) for argument in arguments
    ):
        raise InvalidInputError(
            "argv must be a list of str", hint='write it like argv=["prog", "--fast"]'
        )
    try:
        size = sum(len(argument.encode()) for argument in arguments)
    except UnicodeEncodeError:
        raise InvalidInputError(
            "an argument is not valid Unicode",
            hint="drop lone surrogates, or pass it as a file",
        ) from None
    if any("\0" in argument for argument in arguments):
        raise InvalidInputError(
            "arguments must not hold a NUL character", hint="pass such data as a file"
        )
    _fits("the arguments", size, max_bytes)
    return arguments


def _fits(what: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise InvalidInputError(
            f"{what}: {size} bytes, the limit is {max_bytes}",
            hint="raise limits.input_bytes, or pass a file",
        )


def _encode(code: str, limits: Limits) -> bytes:
    if not isinstance(code, str):
        raise InvalidInputError(
            f"code must be str, not {type(code).__name__}",
            hint="pass the program's text",
        )
    try:
        data = code.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"the code is not valid Unicode: {error}",
            hint="drop lone surrogates, or write them as \\u escapes",
        ) from None
    if len(data) > limits.code_bytes:
        raise InvalidInputError(
            f"the code has {len(data)} bytes, the limit is {limits.code_bytes}",
            hint="raise limits.code_bytes or pass data as inputs",
        )
    return data


def _encode_inputs(inputs: dict[str, Any], language: Language, max_bytes: int) -> bytes:
    if not inputs:
        return b""
    for name in inputs:
        if not isinstance(name, str) or not name.isidentifier() or _reserved(name):
            raise InvalidInputError(
                f"the input name {name!r} cannot be a variable",
                hint="name it like a Python variable that is no keyword",
            )
        if language == "bash" and not name.isascii():
            raise InvalidInputError(
                f"the input name {name!r} cannot be used in bash",
                hint="use at most 256 ASCII letters, digits and underscores",
            )
    try:
        data = _as_json(inputs)
    except (TypeError, ValueError, RecursionError, FrameError) as error:
        raise InvalidInputError(
            f"the inputs are not JSON values: {error}",
            hint="pass None, bool, int, float, str, list and dict only",
        ) from None
    if len(data) > max_bytes:
        raise InvalidInputError(
            f"the inputs have {len(data)} bytes, the limit is {max_bytes}",
            hint="raise limits.input_bytes, or pass files",
        )
    texts = [value for value in inputs.values() if isinstance(value, str)]
    if language == "bash" and any("\0" in text for text in texts):
        raise InvalidInputError(
            "inputs of bash must not hold a NUL character",
            hint="pass such data as a file",
        )
    return data


def _as_json(inputs: dict[str, Any]) -> bytes:
    """Return inputs as strict JSON bytes.

    Raises:
        ValueError: A value is not JSON.
        TypeError: A value is not JSON, or would come back as another one.
    """
    _require_json(inputs)
    text = json.dumps(inputs, allow_nan=False).encode()
    strict_json(text)
    return text


def _require_json(value: Any) -> None:
    """Refuse what json.dumps changes silently: keys that are no text, tuples."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is not a str")
            _require_json(item)
    elif isinstance(value, list):
        for item in value:
            _require_json(item)
    elif isinstance(value, tuple):
        raise TypeError("a tuple would come back as a list")


def _variables(
    secrets: Mapping[str, SecretStr], taken: Mapping[str, Any]
) -> dict[str, str]:
    """Return secrets as environment variables. No error repeats what was sent."""
    variables = {}
    size = 0
    for name, value in secrets.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise InvalidInputError(
                "the name of a secret cannot be an environment variable",
                hint="use at most 256 ASCII letters, digits and underscores",
            )
        if not isinstance(value, SecretStr):
            raise InvalidInputError(
                f"the secret {name} is not a SecretStr",
                hint="pass pydantic.SecretStr(...), which no log or repr shows",
            )
        if name in taken:
            raise InvalidInputError(
                f"{name} is both an input and a secret", hint="rename one of them"
            )
        text = value.get_secret_value()
        # Not `encode()` in strict mode: its error would hold the text.
        data = text.encode("utf-8", "replace")
        if "\0" in text or data.decode() != text:
            raise InvalidInputError(
                f"the secret {name} holds NUL or is not Unicode",
                hint="encode it, for example with base64",
            )
        variables[name] = text
        size += len(data)
    if size > _MAX_SECRET_BYTES:
        raise InvalidInputError(
            f"the secrets have {size} bytes, the limit is {_MAX_SECRET_BYTES}",
            hint="pass fewer, or shorter ones",
        )
    return variables


def _reserved(name: str) -> bool:
    return keyword.iskeyword(name) or (name.startswith("__") and name.endswith("__"))
