"""Values of the sandbox as messages: results, events, errors, limits."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from toolcell.core import (
    CellLostError,
    ConfigError,
    ErrorInfo,
    GuardDeniedError,
    InvalidInputError,
    PackageError,
    SandboxError,
    SandboxUnavailableError,
    ToolcellError,
)
from toolcell.sandbox import (
    Artifact,
    Connected,
    Displayed,
    Event,
    ExecutionResult,
    Finished,
    Limits,
    Network,
    Output,
    Stderr,
    Stdout,
)
from toolcell.sandbox.spi import ArtifactMade, Connection, OpaqueValue

from .message import WireError, WireMessage

_Fields = dict[str, Any]
_ERRORS = {
    kind.kind: kind
    for kind in (
        CellLostError,
        ConfigError,
        InvalidInputError,
        PackageError,
        SandboxError,
        SandboxUnavailableError,
    )
}
# The other end makes the texts of the bytes; the value stands apart.
_LEFT_OUT = {"stdout", "stderr", "value"}


def pack_error(error: ToolcellError) -> _Fields:
    """Return the fields of an error."""
    return ErrorInfo.of(error).model_dump()


def read_error(fields: _Fields) -> ToolcellError:
    """Return the error of its fields. Raises WireError."""
    try:
        info = ErrorInfo.model_validate(fields)
    except ValidationError as error:
        raise WireError(f"an error cannot be read: {error}") from None
    kind = _ERRORS.get(info.kind, SandboxError)
    return kind(info.message, hint=info.hint, details=info.details)


def pack_refusal(error: ToolcellError) -> _Fields:
    """Return the fields of what a guard refuses an act with."""
    fields = pack_error(error)
    fields["details"] = {"reason": error.kind, **fields["details"]}
    return fields


def read_refusal(fields: _Fields) -> GuardDeniedError:
    """Return the refusal of its fields. Raises WireError."""
    error = read_error(fields)
    return GuardDeniedError(error.message, hint=error.hint, details=error.details)


def pack_model(model: BaseModel | None) -> _Fields | None:
    """Return the fields that were set in limits or a network."""
    return None if model is None else model.model_dump(mode="json", exclude_unset=True)


def read_limits(fields: _Fields | None) -> Limits | None:
    """Return limits with the fields that were set in them."""
    return None if fields is None else Limits.model_validate(fields)


def read_network(fields: _Fields | None) -> Network | None:
    """Return a network with the fields that were set in it."""
    return None if fields is None else Network.model_validate(fields)


def pack_result(result: ExecutionResult) -> tuple[_Fields, list[bytes]]:
    """Return the fields of a result, and its raw bytes; defaults are left out."""
    fields: _Fields = {
        "result": result.model_dump(mode="json", exclude_unset=True, exclude=_LEFT_OUT)
    }
    if isinstance(result.value, OpaqueValue):
        fields["opaque"] = result.value.model_dump()
    elif result.value is not None:
        fields["value"] = result.value
    blobs = [result.stdout_bytes, result.stderr_bytes]
    blobs += [artifact.data for artifact in result.artifacts]
    if (_text(blobs[0]), _text(blobs[1])) != (result.stdout, result.stderr):
        fields["texts"] = [result.stdout, result.stderr]
    return fields, blobs


def read_result(message: WireMessage) -> ExecutionResult:
    """Return the result in a message. Raises WireError."""
    fields, blobs = message.fields, message.blobs
    try:
        values = dict(fields["result"])
        out, err, *rest = blobs
        artifacts = [
            {**about, "data": data}
            for about, data in zip(values.pop("artifacts", ()), rest, strict=True)
        ]
        texts = fields.get("texts") or (_text(out), _text(err))
        result = ExecutionResult.model_validate(
            {
                **values,
                "artifacts": artifacts,
                "stdout_bytes": out,
                "stderr_bytes": err,
                "stdout": texts[0],
                "stderr": texts[1],
                "value": None,
            }
        )
        _require_measured(result)
        value = fields.get("value")
        if "opaque" in fields:
            value = OpaqueValue.model_validate(fields["opaque"])
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"a result cannot be read: {error}") from None
    if value is None:
        return result
    # A dict is not to be taken for the description of an opaque value.
    return result.model_copy(update={"value": value})


def _require_measured(result: ExecutionResult) -> None:
    """Raise ValueError if a figure is negative: budgets are settled by them."""
    figures = result.usage.model_dump(exclude={"enforced_by"})
    if odd := [name for name, figure in figures.items() if figure < 0]:
        raise ValueError(f"{', '.join(odd)} is negative")
    for artifact in result.artifacts:
        if artifact.size != len(artifact.data):
            raise ValueError("an artifact has another size")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def pack_event(event: Event) -> tuple[_Fields, list[bytes]]:
    """Return the fields of an event, and its raw bytes."""
    match event:
        case Stdout(data):
            return {"event": "stdout"}, [data]
        case Stderr(data):
            return {"event": "stderr"}, [data]
        case Connected(connection):
            return {"event": "connected", "about": connection.model_dump()}, []
        case Displayed(output):
            return {"event": "displayed", "about": output.model_dump(mode="json")}, []
        case ArtifactMade(artifact):
            about = artifact.model_dump(mode="json")
            return {"event": "artifact", "about": about}, [artifact.data]
        case Finished(result):
            fields, blobs = pack_result(result)
            return {"event": "finished", **fields}, blobs


def read_event(message: WireMessage) -> Event:
    """Return the event in a message. Raises WireError."""
    kind = message.fields.get("event")
    about = message.fields.get("about")
    try:
        match kind:
            case "stdout":
                return Stdout(message.blobs[0])
            case "stderr":
                return Stderr(message.blobs[0])
            case "connected":
                return Connected(Connection.model_validate(about))
            case "displayed":
                return Displayed(Output.model_validate(about))
            case "artifact":
                values = {**dict(about or {}), "data": message.blobs[0]}
                return ArtifactMade(Artifact.model_validate(values))
            case "finished":
                return Finished(read_result(message))
    except (ValidationError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"an event cannot be read: {error}") from None
    raise WireError(f"there is no event {kind!r}")
