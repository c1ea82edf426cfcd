"""Arguments of runs, as a node reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from toolcell.core import InvalidInputError
from toolcell.sandbox import HostCalls, Limits
from toolcell.sandbox.spi import RequestGate, RunRequest, check_request

from ..wire.codec import pack_model
from ..wire.protocol import OPTIONS

_Fields = dict[str, Any]


@dataclass(slots=True)
class RemoteRun:
    """One `run` or `stream`, of the cluster or of a session."""

    request: RunRequest
    was_heard: bool = False
    """True once a function of the caller was called; it must not be called again."""

    def packed(self, limits: Limits, more: _Fields) -> tuple[_Fields, list[bytes]]:
        """Return the fields and blobs of the request; defaults are left out.

        Args:
            limits: The limits of the node, or of the session.
            more: Further fields.

        Raises:
            InvalidInputError: The arguments cannot be used.
        """
        check_request(self.request, limits)
        usual = RunRequest(self.request.code)
        given = {
            name: value
            for name, value in self.request._asdict().items()
            if name == "code" or value != getattr(usual, name)
        }
        options = {name: _plain(given[name]) for name in OPTIONS & given.keys()}
        fields: _Fields = {"options": options, **more}
        for name, pack in _PACKED.items():
            if name in given:
                fields[name] = pack(given[name])
        blobs = [given["stdin"]] if "stdin" in given else []
        blobs += map(bytes_of, given.get("files", {}).values())
        return fields, blobs


def _plain(value: Any) -> Any:
    """Return an option as JSON has it."""
    if isinstance(value, Mapping):
        return dict(value)
    return listed(value) if isinstance(value, Sequence) else value


def listed(value: Sequence[str]) -> Sequence[str]:
    """Return a sequence as JSON has it; a text stays one, for the node to refuse."""
    return value if isinstance(value, str) else list(value)


def bytes_of(data: bytes | str) -> bytes:
    """Return the bytes of a file's data. Raises InvalidInputError."""
    try:
        return data.encode() if isinstance(data, str) else bytes(memoryview(data))
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInputError(
            f"this cannot be written to a file: {error}",
            hint="pass bytes or text",
            details={"reason": "invalid_data"},
        ) from None


def _revealed(secrets: Mapping[str, SecretStr]) -> _Fields:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def packed_calls(calls: HostCalls) -> _Fields:
    """Return what a node is to know of the calls that a program may make."""
    return {
        "names": list(calls.names),
        "max_calls": calls.max_calls,
        "max_concurrency": calls.max_concurrency,
        "max_pause_seconds": calls.max_pause_seconds,
        "describes": calls.describe is not None,
    }


def packed_gate(gate: RequestGate) -> _Fields:
    """Return what a node is to know of a gate."""
    return {"max_pause_seconds": gate.max_pause_seconds}


def _is_given(_: object) -> bool:
    return True


_PACKED: dict[str, Callable[[Any], Any]] = {
    "limits": pack_model,
    "network": pack_model,
    "secrets": _revealed,
    "stdin": _is_given,
    "files": list,
    "calls": packed_calls,
    "gate": packed_gate,
    "on_output": _is_given,
    "on_display": _is_given,
    "on_connection": _is_given,
}
"""Stands in messages to nodes for options that are no JSON."""
