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
    OnDisplay,
    OnOutput,
    RunRequest,
    check_request,
)

from ..wire.codec import pack_model

_Fields = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class RemoteRun:
    """One `run` or `stream`, of the cluster or of a session."""

    request: RunRequest
    fresh: bool | None = None
    """As in `Session.run`; None outside of sessions."""

    on_output: OnOutput | None = None
    on_display: OnDisplay | None = None
    on_connection: OnConnection | None = None
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
        asked = self.request
        check_request(asked, limits)
        fields = {"options": self._options(), **more}
        blobs: list[bytes] = []
        if asked.limits is not None:
            fields["limits"] = pack_model(asked.limits)
        if asked.network is not None:
            fields["network"] = pack_model(asked.network)
        if asked.secrets is not None:
            fields["secrets"] = _revealed(asked.secrets)
        if asked.stdin is not None:
            fields["stdin"] = True
            blobs.append(asked.stdin)
        if asked.files is not None:
            fields["files"] = list(asked.files)
            blobs += map(bytes_of, asked.files.values())
        if asked.calls is not None:
            fields["calls"] = _packed_calls(asked.calls)
        if self.on_output is not None:
            fields["on_output"] = True
        if self.on_display is not None:
            fields["on_display"] = True
        if self.on_connection is not None:
            fields["on_connection"] = True
        return fields, blobs

    def _options(self) -> _Fields:
        asked = self.request
        options: _Fields = {"code": asked.code}
        if asked.language != "python":
            options["language"] = asked.language
        if asked.agent_id is not None and self.fresh is None:
            options["agent_id"] = asked.agent_id
        if asked.minimum_freshness != "program":
            options["minimum_freshness"] = asked.minimum_freshness
        if asked.inputs is not None:
            options["inputs"] = dict(asked.inputs)
        if asked.argv:
            options["argv"] = list(asked.argv)
        if asked.merge_stderr:
            options["merge_stderr"] = True
        if asked.packages:
            options["packages"] = listed(asked.packages)
        if self.fresh:
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


def _revealed(secrets: Mapping[str, SecretStr]) -> _Fields:
    return {name: secret.get_secret_value() for name, secret in secrets.items()}


def _packed_calls(calls: HostCalls) -> _Fields:
    return {
        "names": list(calls.names),
        "max_calls": calls.max_calls,
        "max_concurrency": calls.max_concurrency,
        "max_pause_seconds": calls.max_pause_seconds,
    }
