"""Arguments of runs, as a node reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from toolcell.core import InvalidInputError
from toolcell.sandbox import (
    HostCalls,
    Limits,
    OnConnection,
    OnOutput,
    RunRequest,
    check_request,
)

from ..wire.codec import pack_model

_Fields = dict[str, Any]
_IN_SESSION = ("code", "language")
_ALONE = (*_IN_SESSION, "agent_id", "minimum_freshness")


@dataclass(slots=True, kw_only=True)
class RemoteRun:
    """One `run` or `stream`, of the cluster or of a session."""

    request: RunRequest
    fresh: bool | None = None
    """As in `Session.run`; None outside of sessions."""

    on_output: OnOutput | None = None
    on_connection: OnConnection | None = None
    was_heard: bool = False
    """True once a function of the caller was called; it must not be called again."""

    def packed(self, limits: Limits, more: _Fields) -> tuple[_Fields, list[bytes]]:
        """Return the fields and blobs of the request.

        Args:
            limits: The limits of the node, or of the session.
            more: Further fields.

        Raises:
            InvalidInputError: The arguments cannot be used.
        """
        asked = self.request
        check_request(asked, limits)
        blobs = [] if asked.stdin is None else [asked.stdin]
        blobs += [bytes_of(data) for data in (asked.files or {}).values()]
        fields = {
            "options": self._options(),
            "limits": pack_model(asked.limits),
            "network": pack_model(asked.network),
            "secrets": _revealed(asked.secrets),
            "stdin": asked.stdin is not None,
            "files": None if asked.files is None else list(asked.files),
            "calls": _packed_calls(asked.calls),
            "on_output": self.on_output is not None,
            "on_connection": self.on_connection is not None,
            **more,
        }
        return fields, blobs

    def _options(self) -> _Fields:
        asked = self.request
        names = _ALONE if self.fresh is None else _IN_SESSION
        options: _Fields = {name: getattr(asked, name) for name in names}
        if asked.inputs is not None:
            options["inputs"] = dict(asked.inputs)
        if asked.argv:
            options["argv"] = list(asked.argv)
        if asked.packages:
            options["packages"] = listed(asked.packages)
        if self.fresh is not None:
            options["fresh"] = self.fresh
        return options


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
