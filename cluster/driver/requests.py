"""Arguments of runs, as a node reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from toolcell.core import InvalidInputError
from toolcell.sandbox import HostCalls, Limits, Network, OnConnection, OnOutput

from ..wire.codec import pack_model

_Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """The arguments of one `run` or `stream`; `options` are JSON values."""

    options: _Fields = field(repr=False)
    limits: Limits | None = None
    network: Network | None = None
    secrets: Mapping[str, SecretStr] | None = None
    stdin: bytes | None = field(default=None, repr=False)
    files: Mapping[str, bytes | str] | None = field(default=None, repr=False)
    calls: HostCalls | None = None
    on_output: OnOutput | None = None
    on_connection: OnConnection | None = None

    def packed(self, operation: str, **more: Any) -> tuple[_Fields, list[bytes]]:
        """Return the fields and blobs of the request.

        Raises:
            InvalidInputError: An argument is of another type.
        """
        self._check()
        blobs = [] if self.stdin is None else [self.stdin]
        blobs += [bytes_of(data) for data in (self.files or {}).values()]
        fields = {
            "op": operation,
            "options": self.options,
            "limits": pack_model(self.limits),
            "network": pack_model(self.network),
            "secrets": _revealed(self.secrets),
            "stdin": self.stdin is not None,
            "files": None if self.files is None else list(self.files),
            "calls": _packed_calls(self.calls),
            "on_output": self.on_output is not None,
            "on_connection": self.on_connection is not None,
            **more,
        }
        return fields, blobs

    def _check(self) -> None:
        kinds: dict[str, tuple[object, type]] = {
            "inputs": (self.options.get("inputs"), Mapping),
            "limits": (self.limits, Limits),
            "network": (self.network, Network),
            "secrets": (self.secrets, Mapping),
            "stdin": (self.stdin, bytes),
            "files": (self.files, Mapping),
            "calls": (self.calls, HostCalls),
        }
        for name, (value, kind) in kinds.items():
            if value is not None and not isinstance(value, kind):
                raise InvalidInputError(
                    f"{name} must be a {kind.__name__}, not {type(value).__name__}",
                    hint=f"pass a {kind.__name__}, or leave it out",
                )


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


def _revealed(secrets: Mapping[str, SecretStr] | None) -> _Fields | None:
    if secrets is None:
        return None
    for name, secret in secrets.items():
        if not isinstance(secret, SecretStr):
            raise InvalidInputError(
                f"the secret {name!r} must be a SecretStr",
                hint="use pydantic.SecretStr",
            )
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def _packed_calls(calls: HostCalls | None) -> _Fields | None:
    if calls is None:
        return None
    return {
        "names": list(calls.names),
        "max_calls": calls.max_calls,
        "max_concurrency": calls.max_concurrency,
        "max_pause_seconds": calls.max_pause_seconds,
    }
